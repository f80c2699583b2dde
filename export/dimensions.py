"""Sizes that a user gives for symbolic dimensions, such as ``sequence`` of a transformer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir
from onnx_ir.passes import common

from .errors import ExportError

MAX_SIZE = 2**31 - 1
"""Largest size of a dimension: products of several stay finite."""

Dims = Mapping[str, int]
"""Sizes by the name of the dimension."""


def require_sizes(dims: Dims) -> None:
    """Raise ValueError where a size is none."""
    for name, size in dims.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"the dimension {name!r} is {size!r}, it must be at least 1")
        if size > MAX_SIZE:
            raise ValueError(f"the dimension {name!r} is {size}, it must be at most {MAX_SIZE}")


def require_known(dims: Dims, model: ir.Model, source: str) -> None:
    """Raise ExportError where a name is none of the symbolic dimensions of a model's inputs."""
    symbols = {
        size for value in model.graph.inputs for size in _sizes(value) if isinstance(size, str)
    }
    for name in dims:
        if name not in symbols:
            known = ", ".join(sorted(symbols)) or "none"
            raise ExportError(
                f"{source} has no dimension {name!r} to give a size; its inputs have {known}"
            )


def with_inferred(model: ir.Model, dims: Dims, batch: int) -> dict[str, int]:
    """Find what the given sizes mean for dimensions that shape inference has named.

    Args:
        model: with its shapes inferred; it stays as it is.
        dims: sizes of dimensions of its inputs.
        batch: size of the first dimension of the first input, unless it is among them.

    Returns:
        The given sizes and those that follow from them; none where none are given.

    """
    if not dims:
        return {}
    first = _sizes(model.graph.inputs[0])[:1] if model.graph.inputs else []
    dims = {size: batch for size in first if isinstance(size, str)} | dict(dims)
    fixed = model.clone()
    for value in fixed.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([dims.get(str(size), size) for size in _sizes(value)])
    for node in fixed.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    common.ShapeInferencePass(strict_mode=False)(fixed)
    known = {value.name: value for value in _computed(fixed)}
    found = dict(dims)
    for value in _computed(model):
        names, sizes = _sizes(value), _sizes(known[value.name])
        for name, size in zip(names, sizes, strict=False) if len(names) == len(sizes) else ():
            if isinstance(name, str) and isinstance(size, int):
                found.setdefault(name, size)
    return found


def _computed(model: ir.Model) -> Iterator[ir.Value]:
    for node in model.graph.all_nodes():
        yield from node.outputs


def _sizes(value: ir.Value) -> list[int | str | None]:
    """List sizes, symbols by name; none where the rank is not known."""
    if value.shape is None:
        return []
    return [size if isinstance(size, int) else size.value for size in value.shape]
