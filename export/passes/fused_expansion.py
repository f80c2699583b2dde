"""Layers that ONNX Runtime has fused when it saved an optimized file: as what they were before.

ONNX Runtime fuses what stays dense again when it loads the file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .access import input_of, optional_input
from .builder import Size
from .expansion import Expansion
from .nodes import dimensions_of, replace_node
from .origins import leave

_FACTORS = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
"""Activations with attributes, in the order in which fused operators list their values."""

_PLAIN = ("Relu", "Sigmoid", "Tanh")

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

_GEMM = ("alpha", "beta", "transA", "transB")


def unfuse_conv(work: Expansion, node: ir.Node) -> bool:
    """Write a FusedConv as Conv, Add of its fourth input, and activation."""
    factors = list(node.attributes.get_floats("activation_params", ()))
    return _unfuse(work, node, "Conv", _CONV, factors, optional_input(node, 3))


def unfuse_gemm(work: Expansion, node: ir.Node) -> bool:
    """Write a FusedGemm as Gemm and activation."""
    names = ("activation_alpha", "activation_beta")
    factors = [node.attributes.get_float(name, 0.0) for name in names if name in node.attributes]
    return _unfuse(work, node, "Gemm", _GEMM, factors, None)


def _unfuse(
    work: Expansion,
    node: ir.Node,
    op_type: str,
    kept: Sequence[str],
    factors: Sequence[float],
    residual: ir.Value | None,
) -> bool:
    activation = node.attributes.get_string("activation", "")
    named = _FACTORS.get(activation, ())
    if activation not in (*_PLAIN, *_FACTORS, "Clip", "") or len(factors) < len(named):
        leave(node, input_of(node, 1), f"its activation {activation} is not read")
        return False
    builder, old = work.builder(node), node.outputs[0]
    shape, kind = dimensions_of(old), old.dtype
    inputs = [input_of(node, 0), input_of(node, 1), optional_input(node, 2)]
    if inputs[2] is None:
        del inputs[2]
    attributes = [node.attributes[name] for name in kept if name in node.attributes]
    layer = builder.node(op_type, *inputs, shapes=[shape], kind=kind)
    for attribute in attributes:
        layer.attributes.add(attribute)
    y = layer.outputs[0]
    if residual is not None:
        y = builder.add("Add", y, residual, shape=shape, kind=kind)
    if activation == "Clip":
        bounds = [
            builder.constant(name, np.array(bound, np.float32))
            for name, bound in zip(("least", "most"), factors, strict=False)
        ]
        y = builder.add("Clip", y, *bounds, shape=shape, kind=kind)
    elif activation:
        last = builder.node(activation, y, shapes=[shape], kind=kind)
        for name, factor in zip(named, factors, strict=False):
            last.attributes.add(ir.AttrFloat32(name, factor))
        y = last.outputs[0]
    replace_node(node, y)
    return True


def unfuse_matmul(work: Expansion, node: ir.Node) -> bool:
    """Write a FusedMatMul as MatMul; the weight takes its factor, each side its transposition."""
    at = next((at for at in (1, 0) if work.is_sparse(input_of(node, at), (2,))), 1)
    weight = input_of(node, at)
    found = work.weight(weight)
    builder, old = work.builder(node), node.outputs[0]
    shapes: list[list[Size] | None] = [dimensions_of(input_of(node, side)) for side in (0, 1)]
    if found is None or _is_set(node, "transBatchA") or _is_set(node, "transBatchB"):
        leave(node, weight, "it transposes a batch")
        return False
    shapes[at] = list(found.array.shape)
    sides = []
    for side, name in enumerate(("transA", "transB")):
        value, sizes = input_of(node, side), shapes[side]
        if _is_set(node, name):
            if sizes is None or len(sizes) < 2:
                leave(node, weight, "the rank of what it multiplies is not known")
                return False
            rank = len(sizes)
            perm = [*range(rank - 2), rank - 1, rank - 2]
            turned = [sizes[axis] for axis in perm]
            value = builder.add("Transpose", value, shape=turned, kind=value.dtype, perm=perm)
        sides.append(value)
    alpha = node.attributes.get_float("alpha", 1.0)
    if alpha != 1:
        factor = builder.constant("alpha", np.array(alpha, found.array.dtype))
        sides[at] = builder.add("Mul", sides[at], factor, kind=weight.dtype)
    y = builder.add("MatMul", *sides, shape=dimensions_of(old), kind=old.dtype)
    replace_node(node, y)
    return True


def _is_set(node: ir.Node, flag: str) -> bool:
    return node.attributes.get_int(flag, 0) != 0
