"""A condensed convolution in standard operators: dense, or active filters put in their places."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ...ort_ops.contract import OPEN_GATE
from ...ort_ops.format.condensed import CondensedWeight
from .access import graph_of, input_of, name_of, type_of
from .nodes import (
    Names,
    add_constant,
    clip_of,
    gate_of,
    has_no_residual,
    read_geometry,
    take_output,
)


def spread_conv(node: ir.Node, weight: CondensedWeight, form: str, names: Names) -> tuple[int, int]:
    """Let standard operators take a condensed convolution's place; the node itself stays, unread.

    The structured form computes the active filters and one of zeros, which a Gather puts where the
    ablated ones are, and adds the bias; without ablated filters it is the dense form.

    Returns:
        Stored entries of the weight, and bytes of the constants.

    """
    geometry, graph, output = read_geometry(node), graph_of(node), node.outputs[0]
    prefix = name_of(input_of(node, 1)).removesuffix(".values")
    residual = input_of(node, 5)
    dtype = type_of(residual).numpy()
    sizes: list[int] = []

    def constant(name: str, array: np.ndarray) -> ir.Value:
        sizes.append(array.nbytes)
        return add_constant(graph, names.free(f"{prefix}.{name}"), array)

    dense = weight.to_dense().reshape(geometry.weight_shape)
    structured = form == "structured" and 0 < weight.active < weight.out_features
    structured &= geometry.group == 1
    bias = weight.bias.astype(dtype)
    if structured:
        dense = np.concatenate([dense[weight.rows], np.zeros_like(dense[:1])])
    kernel = constant("weight", dense.astype(dtype))
    inputs = [node.inputs[0], kernel]
    if not structured and bias.any():
        inputs.append(constant("bias", bias))
    attributes = geometry.attributes()
    del attributes["in_channels"], attributes["out_channels"]
    chain = [ir.node("Conv", inputs, attributes=attributes, name=node.name)]

    def follow(op_type: str, *others: ir.Value, **attributes: float) -> None:
        last = chain[-1].outputs[0]
        last.name = names.free(f"{output.name}_before_{op_type.lower()}")
        label = names.free(f"{prefix}_{op_type.lower()}")
        chain.append(ir.node(op_type, [last, *others], attributes=attributes, name=label))

    if structured:
        place = np.full(weight.out_features, weight.active, np.int64)
        place[weight.rows] = np.arange(weight.active)
        follow("Gather", constant("place", place), axis=1)
        follow("Add", constant("bias", bias.reshape(-1, *[1] * geometry.axes)))
    if not has_no_residual(node):
        follow("Add", residual)
    low, high = clip_of(node)
    if (low, high) != (-math.inf, math.inf):
        follow(
            "Clip",
            constant("clip_min", np.array(low, dtype)),
            constant("clip_max", np.array(high, dtype)),
        )
    gate = gate_of(node)
    if gate != OPEN_GATE:
        clipped = chain[-1].outputs[0]
        follow("HardSigmoid", alpha=gate[0], beta=gate[1])
        follow("Mul", clipped)
    at = node
    for new in chain:
        at.append(new)
        at = new
    take_output(output, at.outputs[0])
    return dense.size, sum(sizes)
