"""Predicted times of all products with a constant weight in a graph, in their form and dense."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ...ort_ops.contract import DYNAMIC_QUANTIZE_CONDENSED_GEMM
from ..cost_model import CostModel
from ..dimensions import with_inferred
from ..forms import Chooser
from ..onnx_schema import register_schemas
from ..passes.access import input_of, label_of
from ..passes.condense_quantized import is_quantized_layer, read_quantized_layer
from ..passes.constants import ConstantWeight, resolve_constant
from ..passes.conv_layer import is_conv, read_conv
from ..passes.linear_layer import is_linear
from ..passes.nodes import (
    dimensions_of,
    is_condensed,
    is_convolution,
    is_ours,
    is_quantized,
    read_geometry,
    read_weight,
    residual_place,
)
from ..passes.quantized_layer import QuantizedLayer
from ..quantized_costs import Form
from .facts import Measured


@dataclass(frozen=True)
class ProductNode:
    """A node that multiplies its input with a constant weight.

    Attributes:
        label: name of the node.
        constants: names of the initializers behind the weight; empty for one of ours.
        op_type: operator.
        seconds: predicted, as it stands in the graph; None where nothing is known.
        dense_seconds: of a dense node of its size; 0 for a further group of rows of a layer, whose
            dense form is counted with the first one.
        stored: entries of the weight in the graph, padding included.
        profiled: names that ONNX Runtime's profiler may give the node, the likeliest first.

    """

    label: str
    constants: tuple[str, ...]
    op_type: str
    seconds: float | None
    dense_seconds: float | None
    stored: int
    profiled: tuple[str, ...] = ()


def find_products(model: ir.Model, chooser: Chooser) -> list[ProductNode]:
    """Predict the products of a model in graph order; shapes of values are inferred first."""
    register_schemas()
    common.ShapeInferencePass(strict_mode=False)(model)
    chooser = replace(chooser, dims=with_inferred(model, chooser.dims, chooser.batch))
    opset = model.opset_imports.get("", 1)
    found = []
    for node in model.graph.all_nodes():
        if is_ours(node):
            product = _ours(node, chooser)
        elif is_quantized_layer(node):
            product = _quantized(node, chooser, opset)
        elif is_linear(node) or is_conv(node):
            product = _dense(node, chooser, opset)
        else:
            continue
        if product is not None:
            found.append(replace(product, profiled=_profiled(node)))
    return found


_FUSED = ("Add", "BatchNormalization", "Clip", "HardSigmoid", "LeakyRelu", "Mul", "Relu", "Sigmoid")
"""Operators that ONNX Runtime takes into the product before them."""


def _profiled(node: ir.Node) -> tuple[str, ...]:
    """List the names of a node after ONNX Runtime's fusions.

    A convolution with its channels in blocks is named after its output, which may be that of a
    node that it took over.
    """
    names, last = [label_of(node), f"fused {label_of(node)}"], node.outputs[0]
    while True:
        names.append(f"{last.name}_nchwc")
        readers = [reader for reader, _ in last.uses()]
        if len(readers) != 1 or readers[0].op_type not in _FUSED:
            return tuple(names)
        last = readers[0].outputs[0]


def measured_seconds(product: ProductNode, measured: Measured) -> float | None:
    """Look up a product in a profile; None where the runtime has made another node of it."""
    for name in product.profiled:
        if name in measured.seconds:
            return measured.seconds[name]
    inside = f"{product.label}/"
    return next((s for name, s in measured.seconds.items() if name.startswith(inside)), None)


def _ours(node: ir.Node, chooser: Chooser) -> ProductNode | None:
    weight = read_weight(node)
    if weight is None:
        return None
    shape, costs = dimensions_of(input_of(node, 0)), chooser.costs
    stored, size = weight.values.size, (weight.out_features, weight.in_features)
    seconds: float | None
    dense: float | None
    seconds = dense = None
    if is_convolution(node):
        geometry = read_geometry(node)
        if _channels_last(node) and shape:
            shape = [shape[0], shape[-1], *shape[1:-1]]
        images = chooser.images(geometry, shape)
        if is_condensed(node):
            dense = costs.convolutions.dense(geometry, *images)
            seconds = costs.convolutions.condensed(geometry, *images, stored)
        elif isinstance(costs, CostModel):
            dense = costs.quantized.dense_conv(geometry, *images)
            seconds = costs.quantized.condensed_conv(geometry, *images, stored)
    else:
        rows = chooser.rows_of(shape)
        if is_condensed(node):
            dense = costs.dense(rows, *size)
            seconds = costs.condensed(rows, *size, stored)
        elif isinstance(costs, CostModel):
            dynamic = node.op_type == DYNAMIC_QUANTIZE_CONDENSED_GEMM
            form: Form = "dynamic" if dynamic else "static"
            dense = costs.quantized.dense(form, rows, *size)
            seconds = costs.quantized.condensed(form, rows, *size, stored)
        if _adds_to_group(node):
            dense = 0.0
    return ProductNode(label_of(node), (), node.op_type, seconds, dense, stored)


def _channels_last(node: ir.Node) -> bool:
    return is_quantized(node) and node.attributes.get_int("channels_last", 0) != 0


def _adds_to_group(node: ir.Node) -> bool:
    """Return whether a node adds further rows of a layer to what a node before it made."""
    residual = node.inputs[residual_place(node)]
    before = None if residual is None else residual.producer()
    if before is None or before.op_type != node.op_type or before.inputs[0] is not node.inputs[0]:
        return False
    sizes = ("in_features", "out_features")
    if any(before.attributes.get_int(s, 0) != node.attributes.get_int(s, 0) for s in sizes):
        return False
    first, second = read_weight(before), read_weight(node)
    if first is None or second is None:
        return False
    return not np.intersect1d(first.rows, second.rows).size


def _quantized(node: ir.Node, chooser: Chooser, opset: int) -> ProductNode | None:
    layer = read_quantized_layer(node, opset)
    if layer is None:
        return None
    if not isinstance(layer, QuantizedLayer):
        name, size = layer.value.name or "", 0 if layer.kept is None else layer.kept.size
        return ProductNode(label_of(node), (name,), node.op_type, None, None, size)
    integers, root = layer.weight.integers, layer.weight.found.root
    seconds = None
    if isinstance(chooser.costs, CostModel):
        costs, shape = chooser.costs.quantized, dimensions_of(layer.x)
        if layer.geometry is None:
            form: Form = "dynamic" if layer.x_grid is None else "static"
            seconds = costs.dense(form, chooser.rows_of(shape), *integers.shape)
        elif not layer.geometry.depthwise:
            seconds = costs.dense_conv(layer.geometry, *chooser.images(layer.geometry, shape))
    names = (root.name or "",)
    return ProductNode(label_of(node), names, node.op_type, seconds, seconds, integers.size)


def _dense(node: ir.Node, chooser: Chooser, opset: int) -> ProductNode | None:
    found = resolve_constant(input_of(node, 1), opset)
    if not isinstance(found, ConstantWeight) or found.array.ndim < 2 or not found.array.size:
        return None
    sizes, seconds = found.array.shape, None
    if is_conv(node):
        geometry, shape = read_conv(node, sizes), dimensions_of(input_of(node, 0))
        if not isinstance(geometry, str):
            seconds = chooser.costs.convolutions.dense(geometry, *chooser.images(geometry, shape))
    elif len(sizes) == 2:
        seconds = chooser.costs.dense(_rows(node, chooser), *sizes)
    names = tuple(value.name or "" for value in (found.root, *found.others))
    return ProductNode(label_of(node), names, node.op_type, seconds, seconds, found.array.size)


def _rows(node: ir.Node, chooser: Chooser) -> int:
    x = input_of(node, 0)
    shape, maker = dimensions_of(x), x.producer()
    turned = node.attributes.get_int("transA", 0) != 0
    if shape and turned:
        shape = shape[::-1]
    elif shape and maker is not None and maker.op_type == "Reshape" and maker.inputs[0]:
        # Flattened to rows, of which shape inference does not know how many.
        before = dimensions_of(maker.inputs[0])
        if before and before[-1] == shape[-1] and len(shape) == 2:
            shape = before
    return chooser.rows_of(shape)
