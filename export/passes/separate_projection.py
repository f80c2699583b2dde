"""Replace a dense packed projection of attention by one layer for each of its parts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from .access import graph_of, input_of, name_of, size_of
from .linear_layer import LinearLayer, is_linear, read_linear
from .matching import (
    Integers,
    as_reshape,
    constant_integers,
    describe,
    only_reader,
    read_once,
    remove_unused,
)
from .nodes import Names, add_constant, array_of, constant_of, dimensions_of, take_output


class SeparateProjectionPass(ir.passes.InPlacePass):
    """Compute query, key and value by one product each, instead of one product and a Split.

    A product takes as long in three parts, and the Split, which copies all of it, is saved. As a
    Gemm, which ONNX Runtime makes of a MatMul and an Add only where it knows all sizes, each adds
    its bias on the way. Together this is 8 of 200 ms of a sparse ViT-B/16. The outputs are the same
    to rounding (Gemm begins a sum with the bias).

    A condensed projection stays whole: it reads its input once for all parts, which saves half of
    what the Split costs.

    Args:
        splits: Splits of projections along the last dimension. No others are touched, because ONNX
            Runtime knows some of them as parts of attention.

    """

    def __init__(self, splits: Iterable[ir.Node]) -> None:
        super().__init__()
        self.splits = tuple(splits)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit the Splits."""
        names, integers = Names(model), Integers(model)
        opset = model.opset_imports[""]
        changed = [_separate(split, opset, names, integers) for split in self.splits]
        return ir.passes.PassResult(model, modified=any(changed))


def _separate(split: ir.Node, opset: int, names: Names, integers: Integers) -> bool:
    layer = _dense_layer(split, opset)
    lengths, sizes = constant_integers(split.inputs[1]), dimensions_of(input_of(split, 0))
    shape = None if sizes is None else as_reshape(sizes[:-1])
    if layer is None or lengths is None or shape is None:
        return False
    node, x, stored = layer.node, input_of(layer.node, 0), input_of(layer.node, 1)
    total, graph, weight = size_of(input_of(split, 0), -1), graph_of(split), array_of(stored)
    bias = layer.bias(total)
    width, label = weight.shape[1 if layer.trans_b else 0], node.name or stored.name
    matrix = ir.node("Reshape", [x, integers.get(graph, [-1, width], "matrix")])
    describe(matrix.outputs[0], x, [None, width])
    nodes = [matrix]
    features = np.split(np.arange(total), np.cumsum(lengths)[:-1])
    for place, (part, rows) in enumerate(zip(split.outputs, features, strict=True)):
        if not part.uses() and not part.is_graph_output():
            continue
        part_weight = weight[rows] if layer.trans_b else weight[:, rows]
        inputs = [
            matrix.outputs[0],
            add_constant(graph, names.free(f"{stored.name}.{place}"), part_weight),
        ]
        if bias is not None:
            name = names.free(f"{label}.bias.{place}")
            inputs.append(add_constant(graph, name, bias[rows]))
        attributes = {"transB": int(layer.trans_b), "alpha": float(layer.alpha)}
        product = ir.node("Gemm", inputs, attributes, name=names.free(f"{label}.{place}"))
        describe(product.outputs[0], part, [None, len(rows)])
        nodes.append(product)
        nodes += _use(part, product, integers.get(graph, [*shape, len(rows)], "part"), names)
    split.append(nodes)
    remove_unused([split])
    del graph.initializers[name_of(stored)]
    return True


def _dense_layer(split: ir.Node, opset: int) -> LinearLayer | None:
    """Read the dense layer before a Split, if only the Split reads it and it shares no constant."""
    packed = input_of(split, 0)
    node = packed.producer()
    if node is not None and (node.domain, node.op_type) == ("", "Add"):
        products = [input_of(node, position).producer() for position in (0, 1)]
        node = next((found for found in products if found and is_linear(found)), None)
    if (
        node is None
        or not is_linear(node)
        or node.graph is not split.graph
        or not read_once(packed)
    ):
        return None
    stored = input_of(node, 1)
    weight = constant_of(stored)
    if weight is None or weight.ndim != 2 or weight.dtype != np.float32:
        return None
    if not stored.is_initializer() or stored.graph is not node.graph or not read_once(stored):
        return None
    sizes = dimensions_of(packed)
    if sizes is None or not isinstance(sizes[-1], int):
        return None
    layer = read_linear(node, sizes[-1], opset)
    plain = layer.output is packed and layer.addend is None and not layer.trans_a
    return layer if plain else None


def _use(part: ir.Value, product: ir.Node, shape: ir.Value, names: Names) -> list[ir.Node]:
    """Replace a part of the Split by its own product, reshaped to the part's shape.

    Returns:
        The new Reshape; empty if the part's only reader is a Reshape that can read the product.

    """
    reader = only_reader(part, "Reshape")
    wanted = None if reader is None else constant_integers(reader.inputs[1])
    if reader is not None and wanted and 0 not in wanted:
        reader.replace_input_with(0, product.outputs[0])
        return []
    name = names.free(f"{product.name}.shape")
    view = ir.node("Reshape", [product.outputs[0], shape], name=name)
    take_output(part, view.outputs[0])
    return [view]
