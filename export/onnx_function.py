"""The model-local functions that our files carry: our ops, said in standard operators.

A runtime without the library takes them instead of a kernel. They are written so that ONNX Runtime
folds the scatter of constant weights away when it loads the file and is left with one dense Gemm or
Conv.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from ..ort_ops.contract import (
    ATTRIBUTES,
    CONDENSED_CONV,
    CONDENSED_GEMM,
    DOMAIN,
    INPUTS,
    INTEGER_LISTS,
    OUTPUT,
)

OPSETS = range(17, 24)
"""Versions of the standard operators that a file can be written for."""

FUNCTION_OPSETS = range(16, 24)
"""Versions that the functions can be written for; ScatterElements adds from 16 on."""


def condensed_gemm_function(opset: int, *, rounds: bool = True) -> onnx.FunctionProto:
    """Write ``CondensedGemm`` as a function over operators of one opset version.

    Without ``rounds`` it is for files whose nodes all compute in float32, which then costs nothing.
    The model that it is attached to has to import the same version. It computes in float32 whatever
    the type of X is, since neither MatMul in bfloat16 nor ScatterElements in float16 exists on CPU.

    Raises:
        ValueError: the opset is not one of :data:`FUNCTION_OPSETS`.

    """
    nodes = [
        *scattered_matrix(),
        helper.make_node("Transpose", ["weight"], ["weight_t"], perm=[1, 0]),
        *([_rounded("X", "rounded")] if rounds else []),
        helper.make_node("Cast", ["rounded" if rounds else "X"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "weight_t"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["biased"]),
        *_epilogue("biased"),
    ]
    return function_of(CONDENSED_GEMM, nodes, opset)


def condensed_conv_function(opset: int, *, gated: bool = True) -> onnx.FunctionProto:
    """Write ``CondensedConv`` as a function over operators of one opset version.

    Without ``gated`` it is for files whose nodes all have an open gate, which then costs nothing.
    As :func:`condensed_gemm_function`: float32 inside, the model has to import the same version. It
    serves one and two spatial axes.

    Raises:
        ValueError: the opset is not one of :data:`FUNCTION_OPSETS`.

    """
    nodes = [
        *scattered_kernel(),
        helper.make_node("Cast", ["X"], ["x"], to=TensorProto.FLOAT),
        convolution("Conv", ["x", "kernel", "bias"], "biased"),
        *_epilogue("biased", gated),
    ]
    return function_of(CONDENSED_CONV, nodes, opset)


def function_of(name: str, nodes: list[NodeProto], opset: int) -> onnx.FunctionProto:
    """Build the function of an op, whose inputs and attributes are those of the contract.

    Raises:
        ValueError: the opset is not one of :data:`FUNCTION_OPSETS`.

    """
    attributes = ATTRIBUTES[name]
    if opset not in FUNCTION_OPSETS:
        raise ValueError(
            f"opset is {opset}, it must be {FUNCTION_OPSETS.start} to {FUNCTION_OPSETS.stop - 1}"
        )
    return helper.make_function(
        DOMAIN,
        name,
        list(INPUTS[name]),
        [OUTPUT],
        nodes,
        [helper.make_opsetid("", opset)],
        [attribute for attribute, default in attributes.items() if default is None],
        [
            helper.make_attribute(attribute, default)
            for attribute, default in attributes.items()
            if default is not None
        ],
    )


def convolution(op_type: str, inputs: list[str], output: str) -> NodeProto:
    """Build a Conv or ConvInteger with the attributes of the calling node."""
    node = helper.make_node(op_type, inputs, [output])
    for name in INTEGER_LISTS:
        refer(node, name, name, AttributeProto.INTS)
    refer(node, "group", "group", AttributeProto.INT)
    return node


def scattered_matrix() -> list[NodeProto]:
    """Build the nodes that give ``weight``, float32 ``[out_features, in_features]``."""
    return [
        attribute_value("in_scalar", "in_features", AttributeProto.INT),
        attribute_value("out_scalar", "out_features", AttributeProto.INT),
        constant("one_dim", np.array([-1], np.int64)),
        helper.make_node("Reshape", ["in_scalar", "one_dim"], ["in_dim"]),
        helper.make_node("Reshape", ["out_scalar", "one_dim"], ["out_dim"]),
        *_scattered_weight(),
    ]


def scattered_kernel() -> list[NodeProto]:
    """Build the nodes that give ``kernel``, float32, of a dense convolution's shape."""
    return [
        attribute_value("in_scalar", "in_channels", AttributeProto.INT),
        attribute_value("out_scalar", "out_channels", AttributeProto.INT),
        attribute_value("groups", "group", AttributeProto.INT),
        attribute_value("kernel_dims", "kernel_shape", AttributeProto.INTS),
        constant("one_dim", np.array([-1], np.int64)),
        helper.make_node("Div", ["in_scalar", "groups"], ["group_channels"]),
        helper.make_node("Reshape", ["group_channels", "one_dim"], ["channels_dim"]),
        helper.make_node("Reshape", ["out_scalar", "one_dim"], ["out_dim"]),
        helper.make_node("Concat", ["channels_dim", "kernel_dims"], ["window_dims"], axis=0),
        helper.make_node("ReduceProd", ["window_dims"], ["in_dim"], keepdims=1),
        *_scattered_weight(),
        helper.make_node("Concat", ["out_dim", "window_dims"], ["kernel_full"], axis=0),
        helper.make_node("Reshape", ["weight", "kernel_full"], ["kernel"]),
    ]


def _scattered_weight() -> list[NodeProto]:
    """Build the nodes that give ``weight``, float32 ``[out_dim, in_dim]``.

    Both dimensions are there as tensors ``[1]``. Two scatters: entries into the stored rows, then
    the rows into the matrix. Adding in the first one lets padding (+0 at the row's last column)
    leave the weight at that column alone.
    """
    return [
        constant("zero", np.array(0, np.float32)),
        constant("column", np.array([-1, 1], np.int64)),
        helper.make_node("Shape", ["values"], ["active_dim"], start=0, end=1),
        helper.make_node("Concat", ["active_dim", "in_dim"], ["stored_shape"], axis=0),
        helper.make_node("Concat", ["out_dim", "in_dim"], ["weight_shape"], axis=0),
        helper.make_node("Expand", ["zero", "stored_shape"], ["stored_zeros"]),
        helper.make_node("Expand", ["zero", "weight_shape"], ["weight_zeros"]),
        helper.make_node("Cast", ["indices"], ["columns"], to=TensorProto.INT64),
        helper.make_node("Cast", ["values"], ["entries"], to=TensorProto.FLOAT),
        helper.make_node(
            "ScatterElements",
            ["stored_zeros", "columns", "entries"],
            ["stored"],
            axis=1,
            reduction="add",
        ),
        helper.make_node("Cast", ["rows"], ["row_numbers"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["row_numbers", "column"], ["row_column"]),
        helper.make_node("ScatterND", ["weight_zeros", "row_column", "stored"], ["weight"]),
    ]


def _rounded(x: str, output: str) -> NodeProto:
    """Build the cast to the type that the calling node computes in."""
    node = helper.make_node("Cast", [x], [output])
    refer(node, "to", "compute", AttributeProto.INT)
    return node


def _epilogue(value: str, gated: bool = False) -> list[NodeProto]:
    """Build the nodes that add the residual, clip, gate, and give Y the type of X."""
    gate = []
    if gated:
        # Not as HardSigmoid: onnx's reference evaluator loses an alpha of 0, the open gate's.
        gate = [
            attribute_value("scale", "gate_scale", AttributeProto.FLOAT),
            attribute_value("shift", "gate_shift", AttributeProto.FLOAT),
            constant("none", np.array(0, np.float32)),
            constant("all", np.array(1, np.float32)),
            helper.make_node("Mul", ["clipped", "scale"], ["scaled"]),
            helper.make_node("Add", ["scaled", "shift"], ["shifted"]),
            helper.make_node("Clip", ["shifted", "none", "all"], ["share"]),
            helper.make_node("Mul", ["clipped", "share"], ["gated"]),
        ]
    return [
        attribute_value("low", "clip_min", AttributeProto.FLOAT),
        attribute_value("high", "clip_max", AttributeProto.FLOAT),
        helper.make_node("Cast", ["residual"], ["to_add"], to=TensorProto.FLOAT),
        helper.make_node("Add", [value, "to_add"], ["sum"]),
        helper.make_node("Clip", ["sum", "low", "high"], ["clipped"]),
        *gate,
        helper.make_node("CastLike", ["gated" if gated else "clipped", "X"], [OUTPUT]),
    ]


def attribute_value(output: str, attribute: str, kind: AttributeProto.AttributeType) -> NodeProto:
    """Build a constant that takes its value from an attribute of the calling node."""
    names = {AttributeProto.INT: "value_int", AttributeProto.INTS: "value_ints"}
    node = helper.make_node("Constant", [], [output])
    refer(node, names.get(kind, "value_float"), attribute, kind)
    return node


def refer(node: NodeProto, name: str, attribute: str, kind: AttributeProto.AttributeType) -> None:
    """Make an attribute of a node refer to the calling node's attribute."""
    reference = node.attribute.add()
    reference.name = name
    reference.type = kind
    reference.ref_attr_name = attribute


def constant(output: str, array: np.ndarray) -> NodeProto:
    """Build a constant."""
    return helper.make_node("Constant", [], [output], value=numpy_helper.from_array(array))


def clip_is_open(clip_min: float, clip_max: float) -> bool:
    """Return whether the two bounds clip no number."""
    return clip_min == -math.inf and clip_max == math.inf
