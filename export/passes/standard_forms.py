"""Condensed layers in standard operators: dense, or active rows put in their places."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir

from ...ort_ops.contract import DOMAIN, OPEN_GATE
from ...ort_ops.format.condensed import CondensedWeight
from ..onnx_op import condensed_layer_model
from .access import graph_of, input_of, name_of, remove_node, remove_unread_constant, type_of
from .nodes import (
    Names,
    add_constant,
    clip_of,
    condensed_nodes,
    gate_of,
    has_no_residual,
    is_condensed_conv,
    read_geometry,
    take_output,
)


def spread(node: ir.Node, weight: CondensedWeight, form: str, names: Names) -> tuple[int, int]:
    """Replace a condensed node by standard operators.

    The dense form is a MatMul, Gemm or Conv with the bias. The structured form computes the active
    rows and one row of zeros. A Gather then moves each result to its output (ablated rows get the
    zero), and the bias is added. A layer without ablated rows, or a convolution with groups, gets
    the dense form instead.

    Args:
        node: CondensedGemm or CondensedConv.
        weight: weight of the node.
        form: "dense" or "structured".
        names: names in use in the model.

    Returns:
        Stored entries of the weight, and bytes of the constants.

    """
    graph, output, residual = graph_of(node), node.outputs[0], input_of(node, 5)
    prefix = name_of(input_of(node, 1)).removesuffix(".values")
    geometry = read_geometry(node) if is_condensed_conv(node) else None
    dtype = type_of(residual).numpy()
    sizes: list[int] = []

    def constant(name: str, array: np.ndarray) -> ir.Value:
        sizes.append(array.nbytes)
        return add_constant(graph, names.free(f"{prefix}.{name}"), array)

    dense, bias = weight.to_dense().astype(dtype), weight.bias.astype(dtype)
    structured = form == "structured" and 0 < weight.active < weight.out_features
    structured &= geometry is None or geometry.group == 1
    if structured:
        dense = np.concatenate([dense[weight.rows], np.zeros_like(dense[:1])])
    biased = bool(bias.any())
    inputs, attributes = [node.inputs[0]], {}
    if geometry is not None:
        op_type, attributes = "Conv", geometry.attributes()
        del attributes["in_channels"], attributes["out_channels"]
        inputs.append(constant("weight", dense.reshape(-1, *geometry.weight_shape[1:])))
    elif biased and not structured and _is_matrix(node.inputs[0]):
        # What torch exports, so that the layer is exactly as fast as in a dense export.
        op_type, attributes = "Gemm", {"transB": 1}
        inputs.append(constant("weight", dense))
    else:
        op_type = "MatMul"
        inputs.append(constant("weight", np.ascontiguousarray(dense.T)))
    if op_type != "MatMul" and biased and not structured:
        inputs.append(constant("bias", bias))
        biased = False
    chain = [ir.node(op_type, inputs, attributes=attributes, name=node.name)]

    def follow(op_type: str, *others: ir.Value, **attributes: float) -> None:
        last = chain[-1].outputs[0]
        last.name = names.free(f"{output.name}_before_{op_type.lower()}")
        label = names.free(f"{prefix}_{op_type.lower()}")
        chain.append(ir.node(op_type, [last, *others], attributes=attributes, name=label))

    if structured:
        place = np.full(weight.out_features, weight.active, np.int64)
        place[weight.rows] = np.arange(weight.active)
        follow("Gather", constant("place", place), axis=-1 if geometry is None else 1)
    if biased:
        trailing = (1,) * (0 if geometry is None else geometry.axes)
        follow("Add", constant("bias", bias.reshape(-1, *trailing)))
    if not has_no_residual(node):
        follow("Add", residual)
    low, high = clip_of(node)
    if (low, high) != (-math.inf, math.inf):
        bounds = {"clip_min": low, "clip_max": high}
        follow("Clip", *(constant(name, np.array(bound, dtype)) for name, bound in bounds.items()))
    gate = gate_of(node)
    if gate != OPEN_GATE:
        clipped = chain[-1].outputs[0]
        follow("HardSigmoid", alpha=gate[0], beta=gate[1])
        follow("Mul", clipped)
    node.append(chain)
    take_output(output, chain[-1].outputs[0])
    remove_with_constants(node)
    return dense.size, sum(sizes)


def _is_matrix(x: ir.Value | None) -> bool:
    return x is not None and x.shape is not None and len(x.shape) == 2


def remove_with_constants(node: ir.Node) -> None:
    """Remove a node and the constants that only it read: a large model has no room for both."""
    values = set(filter(None, node.inputs))
    remove_node(node)
    for value in values:
        remove_unread_constant(value)


def structured_layer_model(weight: CondensedWeight, batch: int | None) -> onnx.ModelProto:
    """Build a model of one structured layer, from ``x`` to ``y``, for benchmarks.

    Args:
        weight: weight of the layer.
        batch: rows of X; None for the symbolic dimension "batch".

    """
    model = ir.serde.deserialize_model(condensed_layer_model(weight, batch))
    (node,) = condensed_nodes(model)
    spread(node, weight, "structured", Names(model))
    model.functions.clear()
    del model.opset_imports[DOMAIN]
    return ir.serde.serialize_model(model)
