"""Read operators that multiply 8-bit numbers: QLinearConv, MatMulInteger and their relatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from onnx import TensorProto

from .access import input_of
from .constants import folded_constant
from .conv_layer import read_conv
from .linear_layer import bias_add, is_per_output
from .matching import is_op
from .nodes import dimensions_of
from .quantized_layer import Grid, QuantizedLayer, only_use, other_side, read_grid
from .quantized_output import until_quantized
from .quantized_weight import COMPUTED, QuantizedWeight, Refused, read_integers

Found = QuantizedLayer | Refused | None


def is_integer_layer(node: ir.Node) -> bool:
    """Return whether :func:`read_integer_layer` reads a node."""
    return (node.domain, node.op_type) in _READERS


def read_integer_layer(node: ir.Node, opset: int) -> Found:
    """Read a node for which :func:`is_integer_layer` holds; None where its weight is computed."""
    return _READERS[node.domain, node.op_type](node, opset)


def _qlinear_conv(node: ir.Node, opset: int) -> Found:
    read = _weight(node, (3, 4, 5), 0, opset)
    if not isinstance(read, QuantizedWeight):
        return read
    geometry = read_conv(node, read.integers.shape)
    if isinstance(geometry, str):
        return read.refuse(geometry)
    layer = _static(node, read, y=(6, 7), bias=8, opset=opset)
    return replace(layer, geometry=geometry) if isinstance(layer, QuantizedLayer) else layer


def _qlinear_matmul(node: ir.Node, opset: int) -> Found:
    read = _weight(node, (3, 4, 5), 1, opset)
    if not isinstance(read, QuantizedWeight):
        return read
    return _static(node, read, y=(6, 7), bias=None, opset=opset)


def _q_gemm(node: ir.Node, opset: int) -> Found:
    trans_b = node.attributes.get_int("transB", 0) != 0
    read = _weight(node, (3, 4, 5), 0 if trans_b else 1, opset)
    if not isinstance(read, QuantizedWeight):
        return read
    alpha = node.attributes.get_float("alpha", 1.0)
    if not alpha > 0:
        return read.refuse(f"alpha is {alpha:g}")
    if alpha != 1:
        read = replace(read, scale=read.scale * np.float32(alpha))
    layer = _static(node, read, y=(7, 8), bias=6, opset=opset)
    if not isinstance(layer, QuantizedLayer):
        return layer
    return replace(layer, trans_x=node.attributes.get_int("transA", 0) != 0)


def _static(
    node: ir.Node, weight: QuantizedWeight, y: tuple[int, int], bias: int | None, opset: int
) -> QuantizedLayer | Refused:
    """Build a layer that reads X, its scale and its zero point first.

    ``y`` are the places of the output's scale, without which it is float32, and zero point;
    ``bias`` is that of an int32 bias.
    """
    if weight.integers.ndim != 2 and node.op_type != "QLinearConv":
        return weight.refuse(f"the weight has {weight.integers.ndim} dimensions")
    x = input_of(node, 0)
    x_grid = read_grid(x, input_of(node, 1), _input(node, 2), "its input", opset)
    if isinstance(x_grid, str):
        return weight.refuse(x_grid)
    y_grid: Grid | str | None = None
    y_scale = _input(node, y[0])
    if y_scale is not None:
        output = node.outputs[0]
        y_grid = read_grid(output, y_scale, _input(node, y[1]), "its output", opset)
    if isinstance(y_grid, str):
        return weight.refuse(y_grid)
    integers = None
    given = None if bias is None else _input(node, bias)
    if given is not None:
        integers = folded_constant(given, opset)
        if integers is None or not is_per_output(integers, weight.out_features, rank=2):
            return weight.refuse("its bias is no constant vector")
        integers = np.broadcast_to(integers.reshape(-1), (weight.out_features,))
    return QuantizedLayer(node, weight, x, x_grid, node.outputs[0], y_grid, bias=integers)


def _matmul_integer(node: ir.Node, opset: int) -> Found:
    """Read MatMulInteger, Cast, Mul by the scales, perhaps with an Add before or after.

    quantize_dynamic writes them, with scales that a Mul makes of X's and a constant one, and
    SparseML, which multiplies by constants.
    """
    x, x_zero = input_of(node, 0), _input(node, 2)
    total = node.outputs[0]
    add = only_use(total, "Add")
    integers = None
    if add is not None:
        integers = folded_constant(other_side(add, total), opset)
        total = add.outputs[0] if integers is not None and integers.ndim < 2 else total
    cast = only_use(total, "Cast")
    scaled = only_use(cast.outputs[0], "Mul") if cast is not None else None
    scales = _scales(cast, scaled, opset)
    if scaled is None or scales is None:
        unscaled = _unscaled(node, 3, 1, opset)
        if not isinstance(unscaled, QuantizedWeight):
            return unscaled
        return unscaled.refuse("its integer sums are not scaled to floats by constants of its own")
    x_scale, w_scale = scales
    sizes = dimensions_of(x)
    rank = 1 if sizes is None else len(sizes)
    weight = _scaled(input_of(node, 1), w_scale, _input(node, 3), 1, opset, rank)
    if not isinstance(weight, QuantizedWeight):
        return weight
    layer = _to_float(node, weight, (x, x_scale, x_zero), scaled.outputs[0], opset)
    if not isinstance(layer, QuantizedLayer):
        return layer
    if total is not node.outputs[0] and integers is not None:
        if integers.size not in (1, weight.out_features) or integers.dtype != np.int32:
            return weight.refuse("what it adds is no constant vector")
        bias = np.broadcast_to(integers.reshape(-1), (weight.out_features,))
        return _requantized(replace(layer, bias=bias), opset)
    layer = _requantized(_with_added_bias(layer, opset), opset)
    maker = x.producer()
    made = maker.outputs if is_op(maker, "DynamicQuantizeLinear") else ()
    if maker is not None and (x, x_scale, x_zero) == tuple(made) and _private(made, scaled):
        # Nothing else reads what is quantized: the layer can do it.
        return replace(layer, x=input_of(maker, 0), x_grid=None)
    return layer


def _scales(
    cast: ir.Node | None, scaled: ir.Node | None, opset: int
) -> tuple[ir.Value | None, ir.Value] | None:
    """Return X's scale, None if it is in the weight's, and the weight's; None if there are none."""
    if cast is None or scaled is None or cast.attributes.get_int("to", 0) != TensorProto.FLOAT:
        return None
    factor = other_side(scaled, cast.outputs[0])
    if folded_constant(factor, opset) is not None:
        return None, factor
    product = factor.producer()
    if not is_op(product, "Mul"):
        return None
    constant = [folded_constant(value, opset) is not None for value in product.inputs if value]
    if sum(constant) != 1:
        return None
    place = constant.index(True)
    return input_of(product, 1 - place), input_of(product, place)


def _private(made: Sequence[ir.Value], scaled: ir.Node) -> bool:
    """Return whether one layer alone reads what a DynamicQuantizeLinear makes."""
    if any(len(value.uses()) != 1 or value.is_graph_output() for value in made):
        return False
    ((product, _),) = made[1].uses()
    return [use.node for use in product.outputs[0].uses()] == [scaled]


def _requantized(layer: QuantizedLayer, opset: int) -> QuantizedLayer:
    """Follow the output to a QuantizeLinear, where the bias is one of integers."""
    exact = layer.bias is None or layer.bias.dtype == np.int32
    if not exact or layer.x_grid is None or layer.x_grid.constant_scale(opset) is None:
        return layer
    return until_quantized(layer, opset)


def _matmul_integer_to_float(node: ir.Node, opset: int) -> Found:
    weight = _weight(node, (1, 3, 5), 1, opset)
    if not isinstance(weight, QuantizedWeight):
        return weight
    x = (input_of(node, 0), input_of(node, 2), _input(node, 4))
    layer = _to_float(node, weight, x, node.outputs[0], opset)
    layer = _with_bias_input(layer, _input(node, 6), opset)
    return _requantized(layer, opset) if isinstance(layer, QuantizedLayer) else layer


def _dynamic_quantize_matmul(node: ir.Node, opset: int) -> Found:
    weight = _weight(node, (1, 2, 3), 1, opset)
    if not isinstance(weight, QuantizedWeight):
        return weight
    layer = QuantizedLayer(node, weight, input_of(node, 0), None, node.outputs[0], None)
    return _with_bias_input(_linear_only(layer), _input(node, 4), opset)


def _conv_integer(node: ir.Node, opset: int) -> Found:
    weight = _unscaled(node, 3, 0, opset)
    if not isinstance(weight, QuantizedWeight):
        return weight
    return weight.refuse("no op for convolutions of dynamically quantized inputs")


def _q_attention(node: ir.Node, opset: int) -> Found:
    weight = _unscaled(node, 7, 1, opset)
    if not isinstance(weight, QuantizedWeight):
        return weight
    return weight.refuse("QAttention holds more than a linear layer")


def _to_float(
    node: ir.Node,
    weight: QuantizedWeight,
    x: tuple[ir.Value, ir.Value | None, ir.Value | None],
    output: ir.Value,
    opset: int,
) -> QuantizedLayer | Refused:
    grid = read_grid(*x, "its input", opset)
    if isinstance(grid, str):
        return weight.refuse(grid)
    return _linear_only(QuantizedLayer(node, weight, x[0], grid, output, None))


def _linear_only(layer: QuantizedLayer) -> QuantizedLayer | Refused:
    rank = layer.weight.integers.ndim
    if rank == 2:
        return layer
    return layer.weight.refuse(f"the weight has {rank} dimensions")


def _with_added_bias(layer: QuantizedLayer, opset: int) -> QuantizedLayer:
    """Take over the Add of a constant vector that alone reads the output."""
    sizes = dimensions_of(layer.x)
    rank = 1 if sizes is None else len(sizes)
    add = bias_add(layer.output, layer.weight.out_features, rank, opset)
    if add is None:
        return layer
    array = folded_constant(other_side(add, layer.output), opset)
    if array is None:
        return layer
    return replace(layer, output=add.outputs[0], bias=_vector(array, layer.weight))


def _with_bias_input(
    layer: QuantizedLayer | Refused, bias: ir.Value | None, opset: int
) -> QuantizedLayer | Refused:
    if bias is None or isinstance(layer, Refused):
        return layer
    array = folded_constant(bias, opset)
    if array is None or not is_per_output(array, layer.weight.out_features, rank=1):
        return layer.weight.refuse("its bias is no constant vector")
    return replace(layer, bias=_vector(array, layer.weight))


def _vector(array: np.ndarray, weight: QuantizedWeight) -> np.ndarray:
    return np.broadcast_to(array.astype(np.float32).reshape(-1), (weight.out_features,))


def _weight(
    node: ir.Node, places: tuple[int, int, int], out_axis: int, opset: int
) -> QuantizedWeight | Refused | None:
    """Read a weight from the places of its integers, scale and zero point."""
    integers, scale, zero_point = places
    value, scales = input_of(node, integers), input_of(node, scale)
    return _scaled(value, scales, _input(node, zero_point), out_axis, opset)


def _scaled(
    value: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value | None,
    out_axis: int,
    opset: int,
    rank: int = 2,
) -> QuantizedWeight | Refused | None:
    """Read a weight with its scales, which have at most ``rank`` dimensions."""
    scales = folded_constant(scale, opset)
    zeros = None if zero_point is None else folded_constant(zero_point, opset)
    if scales is None or (zero_point is not None and zeros is None):
        return Refused(COMPUTED, value)
    if is_per_output(scales, scales.size, rank):
        return read_integers(value, scales.reshape(-1), zeros, out_axis, opset)
    unscaled = read_integers(value, np.ones(1, np.float32), zeros, out_axis, opset)
    if not isinstance(unscaled, QuantizedWeight):
        return unscaled
    return unscaled.refuse(
        f"its scales have the shape {list(scales.shape)}, which is not one for each output"
    )


def _unscaled(
    node: ir.Node, zero: int, out_axis: int, opset: int
) -> QuantizedWeight | Refused | None:
    """Read the weight of a layer that stays; ``zero`` is the place of its zero point."""
    zero_point = _input(node, zero)
    zeros = None if zero_point is None else folded_constant(zero_point, opset)
    one = np.ones(1, np.float32)
    return read_integers(input_of(node, 1), one, zeros, out_axis, opset)


def _input(node: ir.Node, place: int) -> ir.Value | None:
    """Return an input that may be left out."""
    return node.inputs[place] if place < len(node.inputs) else None


_READERS: dict[tuple[str, str], Callable[[ir.Node, int], Found]] = {
    ("", "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    ("com.microsoft", "QGemm"): _q_gemm,
    ("", "MatMulInteger"): _matmul_integer,
    ("com.microsoft", "MatMulIntegerToFloat"): _matmul_integer_to_float,
    ("com.microsoft", "DynamicQuantizeMatMul"): _dynamic_quantize_matmul,
    ("", "ConvInteger"): _conv_integer,
    ("com.microsoft", "QAttention"): _q_attention,
}
