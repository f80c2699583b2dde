"""Read layers between DequantizeLinear and QuantizeLinear, as most quantizers write them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .access import input_of
from .constants import folded_constant
from .conv_layer import is_conv, read_conv
from .fuse_activation import saturation
from .linear_layer import is_linear, read_linear
from .nodes import constant_of, same_shape
from .quantized_layer import OPEN, Grid, QuantizedLayer, only_use, other_side, read_grid
from .quantized_weight import (
    QuantizedWeight,
    Refused,
    behind_dequantize,
    is_dequantize,
    is_quantize,
    read_dequantized,
)

_SAME_SCALE = 1e-6
"""Share by which a bias's scale may differ from the product of the two others: float32 rounding."""


def is_qdq(node: ir.Node) -> bool:
    """Return whether a MatMul, Gemm or Conv has a quantized input and a quantized weight."""
    if not (is_linear(node) or is_conv(node)):
        return False
    x = input_of(node, 0).producer()
    if x is None or not is_dequantize(x) or constant_of(input_of(x, 0)) is not None:
        return False
    return behind_dequantize(input_of(node, 1))


def read_qdq(node: ir.Node, opset: int) -> QuantizedLayer | Refused | None:
    """Read a node for which :func:`is_qdq` holds; None where its weight is computed."""
    value = input_of(node, 1)
    trans_b = node.attributes.get_int("transB", 0) != 0
    rank = 2 if value.shape is None else len(value.shape)
    if is_linear(node) and rank != 2:
        return Refused(f"the weight has {rank} dimensions", value)
    weight = read_dequantized(value, 0 if is_conv(node) or trans_b else 1, opset)
    if weight is None:
        return None
    if isinstance(weight, Refused):
        return weight
    source = input_of(node, 0).producer()
    assert source is not None
    x = input_of(source, 0)
    grid = read_grid(x, input_of(source, 1), _third(source), "its input", opset)
    if isinstance(grid, str):
        return weight.refuse(grid)
    read = _conv if is_conv(node) else _linear
    layer = read(node, weight, x, grid, opset)
    if isinstance(layer, str):
        return weight.refuse(layer)
    return _until_quantized(layer, opset)


def _third(node: ir.Node) -> ir.Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _linear(
    node: ir.Node, weight: QuantizedWeight, x: ir.Value, grid: Grid, opset: int
) -> QuantizedLayer | str:
    linear = read_linear(node, weight.out_features, opset)
    if linear.addend is not None:
        return "what it adds is no constant vector"
    if not linear.alpha > 0:
        return f"alpha is {linear.alpha:g}"
    if linear.alpha != 1:
        weight = replace(weight, scale=weight.scale * np.float32(linear.alpha))
    bias = linear.bias(weight.out_features)
    if bias is not None and linear.bias_place is not None:
        where, position = linear.bias_place
        exact = _integer_bias(input_of(where, position), weight, grid, opset)
        factor = 1.0 if linear.add is not None else linear.beta
        bias = exact if exact is not None and factor == 1 else bias
    return QuantizedLayer(
        node, weight, x, grid, linear.output, None, bias=bias, trans_x=linear.trans_a
    )


def _conv(
    node: ir.Node, weight: QuantizedWeight, x: ir.Value, grid: Grid, opset: int
) -> QuantizedLayer | str:
    geometry = read_conv(node, weight.integers.shape)
    if isinstance(geometry, str):
        return geometry
    bias = None
    value = _third(node)
    if value is not None:
        bias = _integer_bias(value, weight, grid, opset)
        if bias is None:
            bias = folded_constant(value, opset)
        if bias is None:
            return "its bias is no constant"
        if bias.dtype != np.int32:
            bias = bias.astype(np.float32)
    return QuantizedLayer(
        node, weight, x, grid, node.outputs[0], None, bias=bias, geometry=geometry
    )


def _integer_bias(
    value: ir.Value, weight: QuantizedWeight, grid: Grid, opset: int
) -> np.ndarray | None:
    """Read an int32 bias that is in the units of the sums already; None for any other."""
    node, x_scale = value.producer(), grid.constant_scale(opset)
    if node is None or not is_dequantize(node) or x_scale is None:
        return None
    integers = folded_constant(input_of(node, 0), opset)
    scale = folded_constant(input_of(node, 1), opset)
    zero = _third(node)
    if integers is None or scale is None or integers.dtype != np.int32 or integers.ndim != 1:
        return None
    if zero is not None and ((zeros := folded_constant(zero, opset)) is None or zeros.any()):
        return None
    if integers.size != weight.out_features:
        return None
    units = weight.row_scales.astype(np.float64) * np.float64(x_scale)
    same = np.abs(scale.reshape(-1) - units) <= _SAME_SCALE * np.abs(units)
    return integers if same.all() else None


def _until_quantized(layer: QuantizedLayer, opset: int) -> QuantizedLayer:
    """Follow the output through a residual sum and a clip to the QuantizeLinear that reads it.

    Where there is none, the layer's output is the float that it was.
    """
    value, clip = layer.output, OPEN
    residual = residual_grid = None
    add = only_use(value, "Add")
    if add is not None:
        other = other_side(add, value)
        giver = other.producer()
        if (
            giver is not None
            and is_dequantize(giver)
            and same_shape(value, other)
            and constant_of(input_of(giver, 0)) is None
        ):
            given = input_of(giver, 0)
            grid = read_grid(given, input_of(giver, 1), _third(giver), "what is added", opset)
            if not isinstance(grid, str):
                residual, residual_grid, value = given, grid, add.outputs[0]
    while activation := only_use(value, "Relu", "Clip", "Max", "Min"):
        bounds = saturation(activation)
        if bounds is None or bounds.input is not value:
            break
        low, high = (min(max(bound, bounds.low), bounds.high) for bound in clip)
        clip, value = (low, high), activation.outputs[0]
    if value.is_graph_output() or len(value.uses()) != 1:
        return layer
    ((quantize, position),) = value.uses()
    if not is_quantize(quantize) or position != 0 or quantize.graph is not layer.node.graph:
        return layer
    y = quantize.outputs[0]
    y_grid = read_grid(y, input_of(quantize, 1), _third(quantize), "its output", opset)
    if isinstance(y_grid, str) or (residual_grid and residual_grid.dtype != y_grid.dtype):
        return layer
    return replace(
        layer,
        output=y,
        y_grid=y_grid,
        clip=clip,
        residual=residual,
        residual_grid=residual_grid,
    )
