"""Replace quantized layers of sparse weights by condensed nodes that compute in 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...ort_ops.contract import (
    CONDENSED_GEMM_INTEGER_TO_FLOAT,
    DOMAIN,
    DYNAMIC_QUANTIZE_CONDENSED_GEMM,
    MAX_MULTIPLIER,
    MAX_QUANTIZED_FAN_IN,
    QLINEAR_CONDENSED_CONV,
    QLINEAR_CONDENSED_GEMM,
)
from ...ort_ops.format.condensed import CondensedWeight
from ...ort_ops.format.conv_geometry import ConvGeometry
from ..forms import Choice
from ..quantized_costs import Form
from .access import graph_of, name_of, producer_of
from .integer_layer import is_integer_layer, read_integer_layer
from .matching import remove_unused
from .nodes import Names, add_constant, dimensions_of, take_output
from .qdq_layer import is_qdq, read_qdq
from .quantized_layer import Grid, QuantizedLayer
from .quantized_output import without_quantizer
from .quantized_weight import QuantizedWeight, Refused

MAX_BIAS_ERROR = 1 / 8
"""How much of a unit of the output may be lost where a float bias becomes an integer."""

_DEAD_MULTIPLIER = 2.0**-10
"""Units of the output that one of a sum is worth in a row without weights, whose scale is free."""

_TINY = float(np.finfo(np.float32).tiny)

_any_numbers = np.errstate(all="ignore")
"""A source may hold any numbers, and what comes of them is checked: NumPy need not warn."""

ChooseQuantized = Callable[
    [CondensedWeight, Sequence[int | str | None] | None, ConvGeometry | None, Form], Choice
]
"""From a weight, whose values are its integers, the shape of X, the geometry of a convolution and
how X is quantized to the form of a layer."""


@dataclass(frozen=True)
class CondensedLayer:
    """A quantized layer that became one of our nodes.

    Attributes:
        node: the new one.
        weight: as it is stored; the values are whole numbers.
        choice: why.
        nbytes: bytes of the node's constants.

    """

    node: ir.Node
    weight: CondensedWeight
    choice: Choice
    nbytes: int


@dataclass(frozen=True)
class _Arithmetic:
    """The constants of a node beside its integers: scales of the rows, and bias."""

    scale: np.ndarray
    bias: np.ndarray


def is_quantized_layer(node: ir.Node) -> bool:
    """Return whether a node multiplies 8-bit weights, stored or dequantized, with 8-bit inputs."""
    return is_qdq(node) or is_integer_layer(node)


@_any_numbers
def read_quantized_layer(node: ir.Node, opset: int) -> QuantizedLayer | Refused | None:
    """Read a node for which :func:`is_quantized_layer` holds; None where its weight is computed."""
    return read_qdq(node, opset) if is_qdq(node) else read_integer_layer(node, opset)


class QuantizedCondenser:
    """Makes the nodes, and keeps what several of them share."""

    def __init__(self, names: Names, opset: int, choose: ChooseQuantized) -> None:
        self._names, self._opset, self._choose = names, opset, choose
        self._constants: dict[tuple[int, str, bytes], ir.Value] = {}

    def condense(self, layer: QuantizedLayer, name: str) -> CondensedLayer | str:
        """Replace a layer, or say why it stays."""
        weight, geometry = layer.weight, layer.geometry
        if geometry is not None and geometry.depthwise:
            return "depthwise"
        if geometry is not None and layer.y_grid is None:
            return without_quantizer(layer)
        arithmetic = _arithmetic(layer, self._opset)
        if isinstance(arithmetic, str):
            return arithmetic
        condensed = CondensedWeight.from_dense(weight.integers.astype(np.float32))
        if condensed.fan_in > MAX_QUANTIZED_FAN_IN:
            return f"{condensed.fan_in} weights in a row, whose products may leave int32"
        form: Form = "dynamic" if layer.x_grid is None else "static"
        choice = self._choose(condensed, dimensions_of(layer.x), geometry, form)
        if choice.form != "condensed":
            return choice.reason
        node = self._make(layer, condensed, arithmetic, name)
        _replace(layer, node)
        # The values take a byte each in the file.
        nbytes = condensed.nbytes - 3 * condensed.values.size - condensed.bias.nbytes
        nbytes += arithmetic.scale.nbytes + arithmetic.bias.nbytes
        return CondensedLayer(node, condensed, choice, nbytes)

    def _make(
        self,
        layer: QuantizedLayer,
        weight: CondensedWeight,
        arithmetic: _Arithmetic,
        name: str,
    ) -> ir.Node:
        graph, prefix = graph_of(layer.node), _prefix(layer)
        x = self._transposed(layer) if layer.trans_x else layer.x

        def constant(part: str, array: np.ndarray) -> ir.Value:
            return self._constant(graph, f"{prefix}.{part}", array)

        values = constant("values", weight.values.astype(np.int8))
        scale = constant("values_scale", arithmetic.scale)
        rest = [
            constant("indices", weight.indices),
            constant("bias", arithmetic.bias),
            constant("rows", weight.rows),
        ]
        inputs: list[ir.Value | None]
        if layer.x_grid is None:
            op_type = DYNAMIC_QUANTIZE_CONDENSED_GEMM
            inputs = [x, values, scale, *rest, self._none(layer, np.dtype(np.float32))]
        else:
            on_x = [x, *self._grid(layer, layer.x_grid)]
            if layer.y_grid is None:
                op_type = CONDENSED_GEMM_INTEGER_TO_FLOAT
                inputs = [*on_x, values, scale, *rest, self._none(layer, np.dtype(np.float32))]
            else:
                op_type = QLINEAR_CONDENSED_CONV if layer.geometry else QLINEAR_CONDENSED_GEMM
                y = layer.y_grid
                inputs = [*on_x, values, scale, *rest, *self._grid(layer, y)]
                inputs += self._residual(layer, y)
        attributes: dict[str, int | list[int]] = {
            "in_features": weight.in_features,
            "out_features": weight.out_features,
        }
        # Neither onnx's inliner nor its reference evaluator knows a function's defaults.
        if layer.geometry is not None:
            attributes = {**layer.geometry.attributes(), "channels_last": 0}
        elif op_type == DYNAMIC_QUANTIZE_CONDENSED_GEMM:
            attributes["per_row"] = 0
        return ir.node(
            op_type,
            inputs,
            attributes={
                **attributes,
                "clip_min": ir.AttrFloat32("clip_min", layer.clip[0]),
                "clip_max": ir.AttrFloat32("clip_max", layer.clip[1]),
            },
            domain=DOMAIN,
            name=name or self._names.free(prefix),
        )

    def _residual(self, layer: QuantizedLayer, y: Grid) -> list[ir.Value]:
        grid = layer.residual_grid
        if layer.residual is not None and grid is not None:
            return [layer.residual, *self._grid(layer, grid)]
        return [
            self._none(layer, y.dtype.numpy()),
            self._shared(layer, "no_residual_scale", np.ones(1, np.float32)),
            self._shared(layer, "no_residual_zero_point", np.zeros(1, y.dtype.numpy())),
        ]

    def _none(self, layer: QuantizedLayer, dtype: np.dtype) -> ir.Value:
        return self._shared(layer, "no_residual", np.zeros(1, dtype))

    def _grid(self, layer: QuantizedLayer, grid: Grid) -> tuple[ir.Value, ir.Value]:
        """Return scale and zero point, also where the source leaves one out."""
        scale, zero_point = grid.scale, grid.zero_point
        if scale is None:
            scale = self._shared(layer, "scale_one", np.ones((), np.float32))
        if zero_point is None:
            zero_point = self._shared(layer, "zero_point", np.zeros((), grid.dtype.numpy()))
        return scale, zero_point

    def _transposed(self, layer: QuantizedLayer) -> ir.Value:
        turn = ir.node("Transpose", [layer.x], attributes={"perm": [1, 0]})
        turn.name = self._names.free(f"{layer.node.name}_transpose")
        output = turn.outputs[0]
        output.name = self._names.free(f"{layer.x.name}_transposed")
        sizes = dimensions_of(layer.x)
        output.type = layer.x.type
        output.shape = None if sizes is None else ir.Shape(sizes[::-1])
        layer.node.prepend(turn)
        return output

    def _shared(self, layer: QuantizedLayer, purpose: str, array: np.ndarray) -> ir.Value:
        """Register what layers share, named after the first of them: files can be merged so."""
        name = f"{_prefix(layer)}.{purpose}"
        return self._constant(graph_of(layer.node), name, array, purpose)

    def _constant(
        self, graph: ir.Graph, name: str, array: np.ndarray, purpose: str | None = None
    ) -> ir.Value:
        """Register an initializer, once for each content and purpose in a graph."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        key = (id(graph), f"{purpose or name} {array.dtype} {array.shape}", array.tobytes())
        if key not in self._constants:
            self._constants[key] = add_constant(graph, self._names.free(name), array)
        return self._constants[key]


def _prefix(layer: QuantizedLayer) -> str:
    name = name_of(layer.weight.found.root)
    for suffix in ("_quantized", ".weight", "_weight"):
        name = name.removesuffix(suffix)
    return name


def _replace(layer: QuantizedLayer, new: ir.Node) -> None:
    """Put a node where the output was computed, and remove what it stands for."""
    old = producer_of(layer.output)
    old.append(new)
    take_output(layer.output, new.outputs[0])
    remove_unused([old])


@_any_numbers
def _arithmetic(layer: QuantizedLayer, opset: int) -> _Arithmetic | str:
    """Find scales and bias of the node, or why it cannot have them."""
    x_scale, y_scale, residual_scale = (
        None if grid is None else grid.constant_scale(opset)
        for grid in (layer.x_grid, layer.y_grid, layer.residual_grid)
    )
    for what, scale in (
        ("its input", x_scale),
        ("its output", y_scale),
        ("what it adds", residual_scale),
    ):
        if scale is not None and not _is_usable(scale):
            return f"the scale of {what} is {scale:g}"
    scales = _scales(layer.weight)
    if isinstance(scales, str):
        return scales
    if layer.y_grid is None:
        return _float_arithmetic(layer, scales, x_scale)
    found = _integer_arithmetic(layer, scales, x_scale, y_scale)
    if isinstance(found, str) or y_scale is None:
        return found
    factors = [] if x_scale is None else [float((x_scale * found.scale / y_scale).max())]
    if residual_scale is not None:
        factors.append(float(residual_scale / y_scale))
    if any(not factor < MAX_MULTIPLIER for factor in factors):
        return f"what it sums is scaled by {max(factors):g}, beyond what float32 holds"
    return found


def _float_arithmetic(
    layer: QuantizedLayer, scales: np.ndarray, x_scale: np.float32 | None
) -> _Arithmetic | str:
    if layer.bias is None:
        return _Arithmetic(scales, np.zeros(layer.weight.out_features, np.float32))
    if layer.bias.dtype != np.int32:
        return _Arithmetic(scales, layer.bias.astype(np.float32))
    if x_scale is None:
        return "its bias is int32 and the scale of its input is computed at run time"
    unknown = _bias_without_unit(layer.weight, layer.bias)
    if unknown:
        return unknown
    given = layer.weight.row_scales
    units = x_scale * np.where(_is_usable(given), given, np.float32(0))
    return _Arithmetic(scales, layer.bias.astype(np.float32) * units)


def _is_usable(scale: np.ndarray | np.float32) -> np.ndarray:
    """Return whether scales are finite, positive and normal."""
    return np.asarray(np.isfinite(scale) & (scale >= _TINY))


def _scales(weight: QuantizedWeight) -> np.ndarray | str:
    """Return the scales of the rows; a row without weights may have any that is finite."""
    bad = ~_is_usable(weight.row_scales)
    wrong = np.flatnonzero(bad & ~(weight.dead & np.isfinite(weight.row_scales)))
    if wrong.size:
        row = int(wrong[0])
        return f"the scale of its weight in row {row} is {weight.row_scales[row]:g}"
    if not bad.any():
        return weight.scale
    return np.where(bad, np.float32(1), weight.row_scales)


def _bias_without_unit(weight: QuantizedWeight, bias: np.ndarray) -> str:
    """Say which row has an int32 bias in units of a scale that no op takes; empty for none.

    In units of 0 a bias is 0.
    """
    given = weight.row_scales
    wrong = np.flatnonzero(~_is_usable(given) & (given != 0) & (bias != 0))
    if not wrong.size:
        return ""
    row = int(wrong[0])
    return f"its bias in row {row} is in units of the weight's scale, which is {given[row]:g}"


def _beside_products(weight: QuantizedWeight, bias: np.ndarray, integers: np.ndarray) -> str:
    """Say which bias int32 does not hold with the largest sum of products; empty for none."""
    rows = np.abs(weight.integers.reshape(weight.out_features, -1).astype(np.int64)).sum(axis=1)
    largest = np.abs(integers.astype(np.float64)) + 255.0 * rows
    if largest.max() < 2**31:
        return ""
    row = int(largest.argmax())
    return (
        f"its bias of {bias[row]:g} in row {row} is {integers[row]:.4g} units of "
        "x_scale * w_scale, which int32 does not hold beside the products"
    )


def _integer_arithmetic(
    layer: QuantizedLayer,
    scales: np.ndarray,
    x_scale: np.float32 | None,
    y_scale: np.float32 | None,
) -> _Arithmetic | str:
    weight, bias = layer.weight, layer.bias
    if bias is None or not bias.any():
        return _Arithmetic(scales, np.zeros(weight.out_features, np.int32))
    if bias.dtype == np.int32:
        problem = _bias_without_unit(weight, bias) or _beside_products(weight, bias, bias)
        integers = np.where(_is_usable(weight.row_scales), bias, 0).astype(np.int32)
        return problem or _Arithmetic(scales, integers)
    if x_scale is None or y_scale is None:
        return "its bias is float32 and the scale of its input or output is computed at run time"
    if not np.isfinite(bias).all():
        return "its bias holds values that are not finite"
    if weight.dead.any():
        free = np.float32(y_scale / x_scale * np.float32(_DEAD_MULTIPLIER))
        scales = np.where(weight.dead, free, np.broadcast_to(scales, weight.dead.shape))
        if not _is_usable(free):
            return f"no scale holds the bias of its rows without weights ({free:g})"
    units = np.float64(x_scale) * np.broadcast_to(scales, weight.dead.shape).astype(np.float64)
    exact = bias.astype(np.float64) / units
    # Beyond, a row without weights is at the end of the output's range in any case.
    exact = np.where(weight.dead, np.clip(exact, -(2.0**30), 2.0**30), exact)
    integers = np.rint(exact)
    problem = _beside_products(weight, bias, integers)
    if problem:
        return problem
    lost = np.abs(integers - exact) * units / np.float64(y_scale)
    if lost.max() > MAX_BIAS_ERROR:
        return (
            f"its bias in row {int(lost.argmax())} would be off by {lost.max():.2g} units of "
            "the output, since x_scale * w_scale is so large"
        )
    return _Arithmetic(scales.astype(np.float32), integers.astype(np.int32))
