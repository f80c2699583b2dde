"""Clearing the optimizer state of weights that were removed or grown."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .sharding import is_distributed, local_part


def _zero(_: Mapping[str, Any]) -> float:
    return 0.0


# State that is a running average, a sum or a previous value: nothing has been seen of a new weight.
_AVERAGES = (
    *("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf"),
    *("exp_avg_slow", "exp_avg_var", "exp_avg_diff", "exp_hessian_diag", "exp_hessian_diag_sq"),
    *("square_avg", "grad_avg", "acc_delta", "prev", "previous_grad"),
    *("state1", "state2"),  # bitsandbytes
)
# State that is a copy of the weight, which is 0 when it is new.
_COPIES = (
    *("ax", "z", "old_p", "e_w"),
    *("slow_param", "slow_params", "slow_buffer", "lookahead_slow_buff", "cached_params"),
)

OPTIMIZER_STATE: dict[str, Callable[[Mapping[str, Any]], float]] = {
    **dict.fromkeys((*_AVERAGES, *_COPIES), _zero),
    "sum": lambda group: float(group.get("initial_accumulator_value", 0.0)),  # Adagrad
    "step_size": lambda group: float(group["lr"]),  # Rprop
}
"""What an optimizer's state of a new weight is, by the name of the state, from the weight's
parameter group. Add the names of optimizers that are not known here."""


class OptimizerStateError(TypeError):
    """An optimizer keeps state for each weight whose meaning is unknown."""


@torch.no_grad()
def reset_optimizer_state(optimizer: Optimizer, parameter: nn.Parameter, where: Tensor) -> None:
    """Give the per-element state of a parameter the values of new weights at some positions.

    Per-element state are the tensors whose last dimensions are the parameter's shape. Their names
    are in ``OPTIMIZER_STATE``. Quantized state is reset by its table of values (bitsandbytes), or
    dequantized and quantized again (torchao). Factored state (Adafactor's rows and columns) belongs
    to no single weight and stays.

    Args:
        optimizer: the optimizer.
        parameter: the parameter.
        where: bool of the parameter's shape, true at the positions to reset; if FSDP2 shards the
            parameter, of the shape of this process's part.

    Raises:
        OptimizerStateError: the meaning of a tensor is unknown; nothing is changed then.

    """
    check_optimizer_state(optimizer, parameter)
    state = _state(optimizer, parameter)
    for key, value in _per_element(state, parameter).items():
        new = OPTIMIZER_STATE[key](_group_of(optimizer, parameter))
        table = _table(state, key)
        if table is not None:
            value.masked_fill_(where, int((table - new).abs().argmin()))
        elif _is_quantized(value):
            value.copy_(value.dequantize().masked_fill(where, new))
        else:
            value.masked_fill_(where, new)


def check_optimizer_state(optimizer: Optimizer, parameter: nn.Parameter) -> None:
    """Refuse state that ``reset_optimizer_state`` could not reset.

    Raises:
        OptimizerStateError: names the state.

    """
    state = _state(optimizer, parameter)
    for key, value in _per_element(state, parameter).items():
        kind = type(optimizer).__name__
        if key not in OPTIMIZER_STATE:
            raise OptimizerStateError(
                f"{kind} keeps {key!r} for each weight, and what it must be for a newly grown "
                "weight is unknown. If it is 0, declare "
                f"fanin.trainer.OPTIMIZER_STATE[{key!r}] = lambda group: 0.0"
            )
        plain = value.dtype.is_floating_point and value.dtype.itemsize > 1
        if not plain and _table(state, key) is None and not _is_quantized(value):
            raise OptimizerStateError(
                f"{kind} keeps {key!r} for each weight as {value.dtype} without a table of values "
                "or a dequantize(), so it cannot be reset for grown weights; use an optimizer "
                "whose state is floating-point, or one of torchao or bitsandbytes"
            )


def _state(optimizer: Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    states: Mapping[nn.Parameter, dict[str, Any]] = getattr(optimizer, "state", {})
    return states.get(parameter, {})


def _per_element(state: Mapping[str, object], parameter: nn.Parameter) -> dict[str, Tensor]:
    """Return the state of each weight, sharded as the parameter is: this process's part."""
    found = {}
    for key, value in state.items():
        if not isinstance(value, Tensor) or value.dim() < parameter.dim():
            continue
        sharded = is_distributed(value)
        shape = parameter.shape if sharded else local_part(parameter).shape
        if value.shape[value.dim() - parameter.dim() :] == shape:
            found[key] = local_part(value) if sharded else value
    return found


def _table(state: Mapping[str, Any], key: str) -> Tensor | None:
    """Return the values of the codes in ``stateN``, which bitsandbytes keeps in ``qmapN``."""
    table = state.get(f"qmap{key.removeprefix('state')}")
    codes = isinstance(table, Tensor) and state[key].dtype == torch.uint8
    return table if codes else None


def _is_quantized(value: Tensor) -> bool:
    """Return whether a tensor subclass holds values in fewer bits, as those of torchao do."""
    return type(value).dequantize is not Tensor.dequantize


def _group_of(optimizer: Optimizer, parameter: nn.Parameter) -> Mapping[str, Any]:
    groups: list[dict[str, Any]] = optimizer.param_groups
    for group in groups:
        if any(parameter is other for other in group["params"]):
            return group
    return optimizer.defaults
