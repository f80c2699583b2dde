"""Prune weights in 8 bits by magnitude, which ``fanin prune`` leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

LEAST_COLUMNS = 32
"""Outputs with fewer inputs keep all, such as those of depthwise convolutions."""

LEAST_ENTRIES = 4096
"""Smaller weights stay dense."""

Axes = tuple[int, ...]

_WEIGHTS: dict[tuple[str, str], tuple[tuple[int, Axes, int | None], ...]] = {
    ("", "MatMul"): ((1, (-1,), None),),
    ("", "Gemm"): ((1, (-1,), None),),
    ("", "Conv"): ((1, (0,), None),),
    ("", "MatMulInteger"): ((1, (-1,), 3),),
    ("", "ConvInteger"): ((1, (0,), 3),),
    ("", "QLinearMatMul"): ((3, (-1,), 5),),
    ("", "QLinearConv"): ((3, (0,), 5),),
    ("com.microsoft", "DynamicQuantizeLSTM"): ((1, (0, 2), 9), (2, (0, 2), 11)),
}
"""By operator: input of the weight, its axes of outputs, input of its zero point."""


def prune_others(path: Path, sparsity: float) -> int:
    """Zero the weights in 8 bits that are large enough, in place.

    Each output keeps the same number of inputs, those that come first where they are equal. Weights
    may be initializers or Constants, and lie behind Identity, Cast, Transpose and DequantizeLinear.

    Returns:
        How many weights were pruned.

    """
    model = ir.load(path)
    seen: set[int] = set()
    count = 0
    for node in model.graph.all_nodes():
        for number, axes, zero_input in _weights_of(node):
            zero = node.inputs[zero_input] if _has(node, zero_input) else None
            found = _constant(node.inputs[number], axes, zero)
            if found is None or id(found[0]) in seen:
                continue
            value, axes, zero = found
            seen.add(id(value))
            pruned = _pruned(_tensor(value).numpy(), axes, _zero_of(zero), sparsity)
            if pruned is not None:
                _replace(value, pruned)
                count += 1
    if count:
        ir.save(model, path)
    return count


def _weights_of(node: ir.Node) -> Iterator[tuple[int, Axes, int | None]]:
    for number, axes, zero in _WEIGHTS.get((node.domain, node.op_type), ()):
        if not _has(node, number):
            continue
        transposed = node.attributes.get("transB")
        if transposed is not None and transposed.as_int():
            axes = (0,)
        yield number, axes, zero


def _has(node: ir.Node, number: int | None) -> bool:
    return number is not None and number < len(node.inputs) and node.inputs[number] is not None


def _constant(
    value: ir.Value | None, axes: Axes, zero: ir.Value | None
) -> tuple[ir.Value, Axes, ir.Value | None] | None:
    """Follow a weight to where its numbers stand, and its axes with it."""
    while value is not None:
        producer = value.producer()
        if producer is None:
            return (value, axes, zero) if value.const_value is not None else None
        if producer.op_type == "Constant":
            return (value, axes, zero) if "value" in producer.attributes else None
        if producer.op_type == "Transpose" and "perm" in producer.attributes:
            order = producer.attributes["perm"].as_ints()
            axes = tuple(order[axis] for axis in axes)
        elif producer.op_type == "DequantizeLinear":
            zero = producer.inputs[2] if _has(producer, 2) else None
        elif producer.op_type not in ("Identity", "Cast"):
            return None
        value = producer.inputs[0]
    return None


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    producer = value.producer()
    if producer is not None:
        return producer.attributes["value"].as_tensor()
    assert value.const_value is not None
    return value.const_value


def _zero_of(value: ir.Value | None) -> int:
    if value is None:
        return 0
    found = _constant(value, (), None)
    zeros = _tensor(found[0]).numpy().astype(int).ravel() if found else np.zeros(1, int)
    # Scales of their own for each output come without zero points.
    return int(zeros[0]) if (zeros == zeros[0]).all() else 0


def _pruned(array: np.ndarray, axes: Axes, zero: int, sparsity: float) -> np.ndarray | None:
    if array.ndim < 2 or array.dtype.kind not in "iu":
        return None
    rows = np.moveaxis(array, axes, range(len(axes)))
    count = int(np.prod(rows.shape[: len(axes)]))
    flat = rows.reshape(count, -1)
    if flat.shape[1] < LEAST_COLUMNS or flat.size < LEAST_ENTRIES:
        return None
    kept = max(1, round((1 - sparsity) * flat.shape[1]))
    order = np.argsort(-np.abs(flat.astype(int) - zero), axis=1, kind="stable")[:, :kept]
    made = np.full_like(flat, zero)
    np.put_along_axis(made, order, np.take_along_axis(flat, order, 1), 1)
    return np.ascontiguousarray(np.moveaxis(made.reshape(rows.shape), range(len(axes)), axes))


def _replace(value: ir.Value, array: np.ndarray) -> None:
    tensor = ir.tensor(array, name=value.name)
    producer = value.producer()
    if producer is None:
        value.const_value = tensor
    else:
        producer.attributes["value"] = ir.AttrTensor("value", tensor)
