"""Which weights of a torch model are condensed, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, nn

from .._base.names import near_matches
from ..ort_ops.format.condensed import CondensedWeight
from .errors import ExportError
from .report import LayerReport


@dataclass(frozen=True)
class LayerPlan:
    """A decision: the report's line, and what replaces the module when it is to be condensed."""

    module_name: str
    report: LayerReport
    weight: CondensedWeight | None

    @property
    def layer(self) -> str:
        """Name of the layer in the graph; a model that is a single layer has no name of its own."""
        return self.module_name or "layer"

    def without_weight(self) -> LayerPlan:
        """Return the plan as the report needs it once the module is replaced."""
        return replace(self, weight=None)


def plan_layers(
    model: nn.Module, masks: Mapping[str, Tensor] | None, min_sparsity: float
) -> list[LayerPlan]:
    """Decide for every parameter of two or more dimensions, in the model's order.

    Args:
        model: float32 parameters on the CPU.
        masks: bool tensors by qualified parameter name. When given, only masked weights are
            candidates and the mask decides which entries are stored; None takes every weight and
            stores its non-zero entries.
        min_sparsity: candidates with a smaller share of left-out weights stay dense.

    Raises:
        ExportError: a mask names no parameter, has another shape, or leaves out a weight that is
            not 0.

    """
    owners = {
        id(parameter): f"{name}.{key}" if name else key
        for name, module in model.named_modules()
        for key, parameter in module.named_parameters(recurse=False)
    }
    by_owner = _masks_by_owner(model, masks or {}, owners)
    blocked = dict(_blocked_modules(model))
    plans = []
    for module_name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if parameter.ndim < 2:
                continue
            name = f"{module_name}.{key}" if module_name else key
            mask = by_owner.get(owners[id(parameter)])
            obstacle = blocked.get(id(module)) or _obstacle(module, key)
            if obstacle is None and masks is not None and mask is None:
                obstacle = "no mask"
            plans.append(
                _decide(module_name, name, module, parameter, mask, obstacle, min_sparsity)
            )
    return plans


def _decide(
    module_name: str,
    name: str,
    module: nn.Module,
    parameter: Tensor,
    mask: np.ndarray | None,
    obstacle: str | None,
    min_sparsity: float,
) -> LayerPlan:
    weight = parameter.detach().numpy()
    kept = weight != 0 if mask is None else mask
    _require_zeros(name, weight, mask)
    counts = np.count_nonzero(kept.reshape(len(kept), -1), axis=1)
    sparsity = 1 - float(counts.sum()) / weight.size if weight.size else 0.0
    if obstacle is None and sparsity < min_sparsity:
        obstacle = f"sparsity {sparsity:.1%}, under {min_sparsity:.0%}"
    bias = getattr(module, "bias", None)
    condensed = None
    if obstacle is None:
        array = bias.detach().numpy() if isinstance(bias, Tensor) else None
        condensed = CondensedWeight.from_dense(weight, array, kept)
    report = LayerReport(
        name=name,
        kind=type(module).__name__,
        nodes=(),
        shape=tuple(weight.shape),
        sparsity=sparsity,
        active=int(np.count_nonzero(counts)),
        fan_in=int(counts.max(initial=0)),
        padding=condensed.padding if condensed else 0,
        bytes_dense=weight.nbytes + (bias.nbytes if isinstance(bias, Tensor) else 0),
        bytes_condensed=condensed.nbytes if condensed else None,
        decision="condensed" if condensed else "dense",
        reason=obstacle or ("by its zeros" if mask is None else "by mask"),
    )
    return LayerPlan(module_name, report, condensed)


def _obstacle(module: nn.Module, key: str) -> str | None:
    """Say why this module's weight cannot be condensed; None when it can."""
    unsupported = f"{type(module).__name__} is not supported"
    if not isinstance(module, nn.Linear) or key != "weight":
        return unsupported
    if type(module).forward is not nn.Linear.forward:
        return unsupported
    if "forward" in vars(module):
        return "its forward was replaced"
    if module._forward_hooks or module._forward_pre_hooks:
        return "has forward hooks, which would be lost"
    if module.weight.numel() == 0:
        return "the weight is empty"
    return None


def _blocked_modules(model: nn.Module) -> Iterator[tuple[int, str]]:
    """Yield modules whose weight another one reads past their forward: id and reason."""
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            reason = f"{type(module).__name__} is not supported"
            for child in module.modules():
                yield id(child), reason


def _masks_by_owner(
    model: nn.Module, masks: Mapping[str, Tensor], owners: Mapping[int, str]
) -> dict[str, np.ndarray]:
    """Key the masks by the one name that `owners` has for a parameter; shared ones have several."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    found: dict[str, np.ndarray] = {}
    for name, mask in masks.items():
        if name not in parameters:
            hint = near_matches(name, parameters)
            raise ExportError(f"the mask {name!r} names no parameter of the model.{hint}")
        parameter = parameters[name]
        if mask.shape != parameter.shape or parameter.ndim < 2:
            raise ExportError(
                f"the mask of {name!r} has the shape {list(mask.shape)}, the parameter has "
                f"{list(parameter.shape)}; masks belong to weights of two or more dimensions"
            )
        array = mask.detach().cpu().numpy()
        if array.dtype != bool and not np.isin(array, (0, 1)).all():
            raise ExportError(f"the mask of {name!r} holds other values than 0 and 1")
        found[owners[id(parameter)]] = array.astype(bool)
    return found


def _require_zeros(name: str, weight: np.ndarray, mask: np.ndarray | None) -> None:
    if mask is None:
        return
    left = np.argwhere((weight != 0) & ~mask)
    if len(left):
        place = ", ".join(map(str, left[0]))
        raise ExportError(
            f"{name}[{place}] is {weight[tuple(left[0])]} although its mask leaves it out "
            f"({len(left)} such weights); multiply the weight by its mask before the export"
        )
