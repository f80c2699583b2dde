"""The inputs that a torch model is run on, and what it computes for them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .errors import ExportError
from .rounding import Rounding
from .verify import Case, largest_change

CHECK_BATCH = 3
"""Batch of the random inputs of the parity check; it is made beside 1 and the example's own."""


_MOST_NOISE = 1e-4


@contextmanager
def plain_torch() -> Iterator[None]:
    """Compute as the model is written, on the CPU, whatever context the caller is in."""
    with torch.autocast("cpu", enabled=False), torch.device("cpu"):
        yield


def as_inputs(example: Tensor | Sequence[Tensor], widen: bool = False) -> tuple[Tensor, ...]:
    """Convert the example to a tuple of CPU tensors with a batch of at least two.

    torch.export takes a dimension of size one for a constant, so a single sample is repeated.
    With ``widen`` half-precision inputs become float32, as the model has.

    Raises:
        ExportError: something else than tensors, or tensors without a common batch.

    """
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    if not inputs or not all(isinstance(tensor, Tensor) for tensor in inputs):
        raise ExportError("example_inputs must be a tensor or a tuple of tensors")
    batches = {tensor.shape[0] if tensor.ndim else None for tensor in inputs}
    if len(batches) != 1 or batches & {None, 0}:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in inputs)
        raise ExportError(
            f"the inputs have the shapes {shapes}; each needs the same first dimension, the batch, "
            "with at least one sample"
        )
    inputs = tuple(tensor.detach().cpu() for tensor in inputs)
    if widen:
        inputs = tuple(t.float() if t.is_floating_point() else t for t in inputs)
    if batches == {1}:
        inputs = tuple(tensor.repeat(2, *[1] * (tensor.ndim - 1)) for tensor in inputs)
    return inputs


def check_batches(inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], ...]:
    """Return the example, its first sample, and random inputs.

    Random inputs are drawn evenly from the range of the example, so that a model which takes
    logarithms or roots stays in its domain; integers and constant inputs are handled by
    :func:`_random_like`.
    """
    generator = torch.Generator().manual_seed(0)
    first = tuple(tensor[:1] for tensor in inputs)
    drawn = tuple(_random_like(tensor, generator) for tensor in inputs)
    return inputs, first, drawn


def run_cases(model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> list[Case]:
    """Compute the model on each of the inputs.

    Raises:
        ExportError: the model does not run on them, or gives something that is not finite.

    """
    return [_run(model, batch) for batch in batches]


def float64_noise(model: nn.Module, cases: Sequence[Case]) -> float:
    """Measure what rounding in float32 costs the model itself, as a share of its largest output.

    Returns:
        0 for a model that does not run in float64, which then is held to the usual tolerance. Never
        more than :data:`_MOST_NOISE`: a model that is further from itself is not deterministic.

    """
    if not cases:
        return 0.0
    try:
        exact = copy.deepcopy(model).double()
        with torch.no_grad():
            again = [_run(exact, _as_float64(case.inputs)) for case in cases]
    except Exception:
        # Casts in a forward, operators without a float64 form: whatever it is, it is no fault.
        return 0.0
    return min(largest_change(again, cases), _MOST_NOISE)


def _as_float64(arrays: Sequence[np.ndarray]) -> tuple[Tensor, ...]:
    tensors = (torch.from_numpy(array) for array in arrays)
    return tuple(t.double() if t.is_floating_point() else t for t in tensors)


def _random_like(example: Tensor, generator: torch.Generator) -> Tensor:
    """Make a batch of three, evenly spread over the example's range; integers are sampled from it.

    A constant example (often zeros) says nothing about the range; it becomes standard normal.
    """
    if not example.is_floating_point():
        return example[torch.arange(CHECK_BATCH) % len(example)]
    shape = (CHECK_BATCH, *example.shape[1:])
    low, high = (example.min(), example.max()) if example.numel() else (0.0, 0.0)
    if low == high:
        return torch.randn(shape, generator=generator, dtype=example.dtype)
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=example.dtype)


def _run(model: nn.Module, inputs: tuple[Tensor, ...]) -> Case:
    try:
        with torch.no_grad():
            # Clones: a model that starts with an in-place operation would change its inputs.
            result = model(*(tensor.clone() for tensor in inputs))
    except Exception as error:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in inputs)
        raise ExportError(
            f"the model does not run on inputs of the shapes {shapes}: {error}"
        ) from error
    leaves = pytree.tree_leaves(result)
    outputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    others = {type(leaf).__name__ for leaf in leaves if isinstance(leaf, (int, float, str))}
    if not outputs:
        raise ExportError(f"the model returns no tensor but {type(result).__name__}")
    if others:
        raise ExportError(
            f"the model returns {' and '.join(sorted(others))} beside its tensors, which no file "
            "can give; wrap it in a module that returns the tensors alone"
        )
    for position, output in enumerate(outputs):
        if output.dtype == torch.bfloat16:
            raise ExportError(
                f"output {position} of the model is bfloat16, which NumPy does not have; let its "
                "forward return float32"
            )
        if not torch.isfinite(output).all():
            raise ExportError(
                f"output {position} of the model is not finite on the check's inputs, so nothing "
                "can be compared; pass example_inputs with realistic values"
            )
    return Case(_arrays(inputs), _arrays(outputs))


def _arrays(tensors: Sequence[Tensor]) -> tuple[np.ndarray, ...]:
    return tuple(tensor.detach().contiguous().numpy() for tensor in tensors)


def round_weights(model: nn.Module, rounding: Rounding, dtype: torch.dtype) -> None:
    """Round weights as torch rounds, for the parity check; sums stay float32.

    The model gets new parameters: the old ones may be shared with the user's model.

    Args:
        model: the copy that was exported.
        rounding: the parameters that are rounded.
        dtype: float16 or bfloat16.

    """
    names = dict(model.named_parameters(remove_duplicate=False))
    rounded = {
        id(names[name]): nn.Parameter(
            _rounded(names[name].detach(), rounding.scales.get(name), dtype), requires_grad=False
        )
        for name in rounding.parameters
    }
    for name, parameter in names.items():
        if id(parameter) in rounded:
            owner, _, key = name.rpartition(".")
            setattr(model.get_submodule(owner), key, rounded[id(parameter)])


def _rounded(weight: Tensor, scale: np.ndarray | None, dtype: torch.dtype) -> Tensor:
    """Round a weight; where a norm scales its rows, so that they are rounded once scaled."""
    if scale is None:
        return weight.to(dtype).to(torch.float32)
    factor = torch.from_numpy(scale).reshape(-1, *[1] * (weight.ndim - 1))
    scaled = (weight.double() * factor).float().to(dtype).double()
    return torch.where(factor == 0, weight.double(), scaled / factor).float()
