"""Read layers between DequantizeLinear and QuantizeLinear, as most quantizers write them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .access import input_of
from .constants import folded_constant
from .conv_layer import is_conv, read_conv
from .linear_layer import is_linear, read_linear
from .nodes import constant_of
from .quantized_layer import Grid, QuantizedLayer, read_grid, third_input
from .quantized_output import until_quantized
from .quantized_weight import (
    QuantizedWeight,
    Refused,
    behind_dequantize,
    is_dequantize,
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
    grid = read_grid(x, input_of(source, 1), third_input(source), "its input", opset)
    if isinstance(grid, str):
        return weight.refuse(grid)
    read = _conv if is_conv(node) else _linear
    layer = read(node, weight, x, grid, opset)
    if isinstance(layer, str):
        return weight.refuse(layer)
    return until_quantized(layer, opset)


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
    value = third_input(node)
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
    zero = third_input(node)
    if integers is None or scale is None or integers.dtype != np.int32 or integers.ndim != 1:
        return None
    if zero is not None and ((zeros := folded_constant(zero, opset)) is None or zeros.any()):
        return None
    if integers.size != weight.out_features:
        return None
    units = weight.row_scales.astype(np.float64) * np.float64(x_scale)
    same = np.abs(scale.reshape(-1) - units) <= _SAME_SCALE * np.abs(units)
    return integers if same.all() else None
