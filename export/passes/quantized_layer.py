"""What a quantized layer is, whichever operators say it in a graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.conv_geometry import ConvGeometry
from .access import graph_of, input_of
from .constants import folded_constant
from .matching import is_op
from .nodes import dimensions_of
from .quantized_weight import QuantizedWeight

OPEN = (-math.inf, math.inf)

_EIGHT_BITS = (ir.DataType.UINT8, ir.DataType.INT8)


@dataclass(frozen=True)
class Grid:
    """Scale and zero point of a quantized tensor.

    Attributes:
        scale: one number, constant or not; None is 1.
        zero_point: the same; None is 0.
        dtype: UINT8 or INT8, of the zero point and the tensor.

    """

    scale: ir.Value | None
    zero_point: ir.Value | None
    dtype: ir.DataType

    def constant_scale(self, opset: int) -> np.float32 | None:
        """Read the scale; None where it is computed at run time."""
        if self.scale is None:
            return np.float32(1)
        array = folded_constant(self.scale, opset)
        return None if array is None else np.float32(array.reshape(-1)[0])


@dataclass(frozen=True)
class QuantizedLayer:
    """A product of 8-bit numbers with what stands around it.

    Attributes:
        node: the one that reads the weight.
        weight: in 8 bits.
        x: 8-bit, or float32 where ``x_grid`` is None and the layer quantizes it.
        x_grid: of x.
        trans_x: whether x is transposed before.
        bias: float32, in real units, or int32, in units of x's scale times the weight's;
            ``[out_features]``. None is 0.
        output: the value that the layer gives.
        y_grid: of the output; None where it is float32.
        geometry: of a convolution.
        clip: bounds of the output in real units.
        residual: 8-bit values that are added before the output is quantized.
        residual_grid: of the residual.

    """

    node: ir.Node
    weight: QuantizedWeight
    x: ir.Value
    x_grid: Grid | None
    output: ir.Value
    y_grid: Grid | None
    bias: np.ndarray | None = None
    trans_x: bool = False
    geometry: ConvGeometry | None = None
    clip: tuple[float, float] = OPEN
    residual: ir.Value | None = None
    residual_grid: Grid | None = None


def read_grid(
    value: ir.Value, scale: ir.Value | None, zero_point: ir.Value | None, what: str, opset: int
) -> Grid | str:
    """Read the grid of 8-bit values, or say why it is none of ours.

    Args:
        value: the values.
        scale: their scale, None for 1.
        zero_point: theirs, None for 0.
        what: they are, for the reason: "its input".
        opset: version of the standard operators.

    """
    dtype = value.dtype or (zero_point.dtype if zero_point is not None else None)
    if dtype is None:
        return f"the type of {what} is not known"
    if dtype not in _EIGHT_BITS:
        return f"{what} is {dtype.name.lower()}, not of 8 bits"
    for part in (scale, zero_point):
        if part is not None and not _is_single(part, opset):
            return f"{what} has more than one scale or zero point"
    if scale is not None and scale.dtype not in (None, ir.DataType.FLOAT):
        return f"the scale of {what} is {scale.dtype.name.lower()}, not float32"
    return Grid(scale, zero_point, dtype)


def _is_single(value: ir.Value, opset: int) -> bool:
    array = folded_constant(value, opset)
    if array is not None:
        return array.size == 1 and array.ndim < 2
    return dimensions_of(value) in ([], [1])


def third_input(node: ir.Node) -> ir.Value | None:
    """Return the zero point of a QuantizeLinear or DequantizeLinear, the bias of a Conv."""
    return node.inputs[2] if len(node.inputs) > 2 else None


def other_side(node: ir.Node, value: ir.Value) -> ir.Value:
    """Return the input of a binary operator that is not this value."""
    return input_of(node, 1 if node.inputs[0] is value else 0)


def only_use(value: ir.Value, *op_types: str) -> ir.Node | None:
    """Return the node of one of these types that alone reads a value, in its own graph."""
    uses, maker = value.uses(), value.producer()
    if len(uses) != 1 or value.is_graph_output() or maker is None:
        return None
    ((node, _),) = uses
    beside = graph_of(node) is graph_of(maker)
    return node if beside and any(is_op(node, op_type) for op_type in op_types) else None
