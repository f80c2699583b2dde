"""Read constant weights of quantized layers: as int8 with zero point 0, and scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .access import input_of
from .constants import ConstantWeight, folded_constant, resolve_constant, run_node
from .matching import is_op

COMPUTED = "the scale or zero point of its weight is no constant"
"""Why a weight is refused of which scale or zero point are not known before the run."""

_MOVES = ("Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators after a DequantizeLinear that only move entries."""


@dataclass(frozen=True)
class Refused:
    """A quantized layer that stays as it is.

    Attributes:
        reason: why, for the report.
        value: what its node reads as its weight, or where that is stored.
        kept: which weights are not 0, bool ``[out_features, ...]``; None where it is not known.

    """

    reason: str
    value: ir.Value
    kept: np.ndarray | None = None


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight in 8 bits with its origin.

    Attributes:
        integers: int8 ``[out_features, ...]``, the zero point subtracted: 0 is no weight.
        scale: float32 ``[1]`` or ``[out_features]``.
        found: the stored constant.

    """

    integers: np.ndarray
    scale: np.ndarray
    found: ConstantWeight

    @property
    def out_features(self) -> int:
        """Rows of the weight, filters of a convolution."""
        return len(self.integers)

    @property
    def row_scales(self) -> np.ndarray:
        """The scale of each row, float32 ``[out_features]``."""
        return np.broadcast_to(self.scale, (self.out_features,))

    def refuse(self, reason: str) -> Refused:
        """Say why a layer of this weight stays."""
        return Refused(reason, self.found.root, self.integers != 0)

    @property
    def dead(self) -> np.ndarray:
        """Which rows hold no weight, bool ``[out_features]``."""
        return np.logical_not(self.integers.reshape(self.out_features, -1).any(axis=1))


def is_dequantize(node: ir.Node | None) -> bool:
    """Return whether a node is DequantizeLinear, ONNX's or that of ONNX Runtime's domain."""
    return node is not None and node.op_type == "DequantizeLinear" and _known(node)


def is_quantize(node: ir.Node | None) -> bool:
    """Return whether a node is QuantizeLinear, ONNX's or that of ONNX Runtime's domain."""
    return node is not None and node.op_type == "QuantizeLinear" and _known(node)


def _known(node: ir.Node) -> bool:
    return node.domain in ("", "com.microsoft")


def behind_dequantize(value: ir.Value) -> bool:
    """Return whether a value is that of a DequantizeLinear, moved or not."""
    return is_dequantize(_dequantizer(value)[0])


def read_dequantized(
    value: ir.Value, out_axis: int, opset: int
) -> QuantizedWeight | Refused | None:
    """Read a weight that a DequantizeLinear gives to a float operator.

    What it dequantizes may be stored in 8 bits, or be the QuantizeLinear of a float constant, as
    training with rounded weights leaves it.

    Args:
        value: the operator's input.
        out_axis: its axis of outputs.
        opset: version of the standard operators.

    Returns:
        The weight; why it cannot be one of ours; None where no constant is behind it.

    """
    node, moves = _dequantizer(value)
    found = None if node is None else _stored(input_of(node, 0), opset)
    if node is None or found is None:
        return None
    if isinstance(found, str):
        return Refused(found, value)
    if node.attributes.get_int("block_size", 0):
        return Refused("its weight is quantized in blocks", value)
    parameters = _constants(node, opset)
    scale, zero = (*(parameters or ()), None, None)[:2]
    if scale is None:
        return Refused(COMPUTED, value)
    through = (*found.through, "DequantizeLinear", *(move.op_type for move in moves))
    found = replace(found, mask=None, through=through)
    return _read(found, scale, zero, node.attributes.get_int("axis", 1), moves, out_axis, opset)


def read_integers(
    value: ir.Value,
    scale: np.ndarray,
    zero_point: np.ndarray | None,
    out_axis: int,
    opset: int,
) -> QuantizedWeight | Refused | None:
    """Read a weight that an operator takes in 8 bits.

    Args:
        value: the operator's input.
        scale: one for all outputs or one for each.
        zero_point: the same; None is 0.
        out_axis: the axis of outputs.
        opset: version of the standard operators.

    Returns:
        As :func:`read_dequantized`.

    """
    found = _stored(value, opset)
    if found is None:
        return None
    if isinstance(found, str):
        return Refused(found, value)
    if found.array.ndim < 2:
        return Refused(f"its weight has {found.array.ndim} dimensions", value)
    return _read(found, scale, zero_point, out_axis, [], out_axis, opset)


def _dequantizer(value: ir.Value) -> tuple[ir.Node | None, list[ir.Node]]:
    """Find the DequantizeLinear behind a value, and the moves after it in their order."""
    moves: list[ir.Node] = []
    node = value.producer()
    while node is not None and node.domain == "" and node.op_type in _MOVES:
        moves.insert(0, node)
        node = input_of(node, 0).producer()
    return (node if is_dequantize(node) else None), moves


def _stored(value: ir.Value, opset: int) -> ConstantWeight | str | None:
    """Read integers that are stored, or quantized from a stored float."""
    maker = value.producer()
    if not is_op(maker, "QuantizeLinear"):
        return resolve_constant(value, opset)
    source = resolve_constant(input_of(maker, 0), opset)
    if not isinstance(source, ConstantWeight):
        return source
    parameters = _constants(maker, opset)
    if parameters is None:
        return COMPUTED
    integers = run_node(maker, value, [source.array, *parameters], opset)
    through = (*source.through, "QuantizeLinear")
    return replace(source, array=integers, mask=None, through=through)


def _constants(node: ir.Node, opset: int) -> list[np.ndarray | None] | None:
    """Read all inputs but the first, None for one that is left out; None where one is computed."""
    arrays = [None if v is None else folded_constant(v, opset) for v in node.inputs[1:]]
    pairs = zip(arrays, node.inputs[1:], strict=True)
    return None if any(array is None and v is not None for array, v in pairs) else arrays


def _read(
    found: ConstantWeight,
    scale: np.ndarray,
    zero_point: np.ndarray | None,
    axis: int,
    moves: Sequence[ir.Node],
    out_axis: int,
    opset: int,
) -> QuantizedWeight | Refused:
    """Subtract zero points, follow the moves, and bring the axis of outputs to the front."""
    stored, root = found.array, found.root
    offset = {"int8": 0, "uint8": 128}.get(stored.dtype.name)
    if offset is None:
        return Refused(f"its weight is of type {stored.dtype}, not of 8 bits", root)
    if not stored.size:
        return Refused("its weight is empty", root)
    if scale.dtype != np.float32:
        return Refused(f"the scale of its weight is {scale.dtype}, not float32", root)
    zeros = np.zeros(1, np.int16) if zero_point is None else zero_point.astype(np.int16)
    for part, name in ((scale, "scales"), (zeros, "zero points")):
        if part.size != 1 and (
            not -stored.ndim <= axis < stored.ndim or part.size != stored.shape[axis]
        ):
            return Refused(f"its weight has {part.size} {name} along axis {axis}", root)
    arrays = [
        stored.astype(np.int16) - _along(zeros, axis, stored.ndim),
        np.broadcast_to(_along(scale, axis, stored.ndim), stored.shape),
    ]
    for move in moves:
        others = _constants(move, opset)
        if others is None:
            return Refused(f"{move.op_type} before it has an input that is no constant", root)
        arrays = [run_node(move, move.outputs[0], [a, *others], opset) for a in arrays]
    shifted, scales = (np.ascontiguousarray(np.moveaxis(a, out_axis, 0)) for a in arrays)
    wrong = zeros[zeros != offset]
    if wrong.size:
        reason = (
            f"its weight is {stored.dtype} with the zero point {wrong[0]}; the op needs "
            "symmetric weights (zero point 0 in int8, 128 in uint8)"
        )
        return Refused(reason, root, shifted != 0)
    bits = scales.reshape(len(scales), -1).view(np.uint32)  # a NaN is not equal to itself
    if (bits != bits[:, :1]).any():
        reason = "the scales of its weight differ among the inputs of an output"
        return Refused(reason, root, shifted != 0)
    rows = scales.reshape(len(scales), -1)[:, 0]
    same = bool((bits[:, 0] == bits[0, 0]).all())
    return QuantizedWeight(shifted.astype(np.int8), rows[:1] if same else rows.copy(), found)


def _along(array: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Reshape one number, or one for each place along an axis, so that it broadcasts."""
    shape = [1] * rank
    if array.size > 1:
        shape[axis] = array.size
    return array.reshape(shape)
