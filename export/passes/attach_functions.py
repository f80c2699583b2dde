"""Attach the functions that let a file run without our library."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from ...ort_ops.contract import (
    ATTRIBUTES,
    COMPUTE_FLOAT32,
    CONDENSED_CONV,
    CONDENSED_GEMM,
    CONDENSED_GEMM_INTEGER_TO_FLOAT,
    DOMAIN,
    DOMAIN_VERSION,
    OPEN_GATE,
    QLINEAR_CONDENSED_CONV,
    QLINEAR_CONDENSED_GEMM,
    QUANTIZED_OPS,
)
from ..onnx_function import condensed_conv_function, condensed_gemm_function
from ..onnx_quantized_function import (
    condensed_gemm_integer_to_float_function,
    dynamic_quantize_condensed_gemm_function,
    qlinear_condensed_conv_function,
    qlinear_condensed_gemm_function,
)
from .nodes import compute_of, gate_of, is_condensed_conv, is_condensed_gemm, our_nodes


class AttachFunctionsPass(ir.passes.InPlacePass):
    """Add the function of each of our ops that the graph uses, and the import of our domain.

    It is the last pass: optimizers inline functions, after which the condensed node is gone.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Attach; a model without our ops loses the import of our domain."""
        nodes = our_nodes(model)
        used = {node.op_type for node in nodes}
        if not used:
            changed = model.opset_imports.pop(DOMAIN, None) is not None
            return ir.passes.PassResult(model, modified=changed)
        model.opset_imports[DOMAIN] = DOMAIN_VERSION
        # Neither onnx's inliner nor its reference evaluator knows a function's defaults.
        if any(gate_of(node) != OPEN_GATE for node in nodes):
            for node in filter(is_condensed_conv, nodes):
                for name, number in zip(("gate_scale", "gate_shift"), gate_of(node), strict=True):
                    node.attributes.add(ir.AttrFloat32(name, number))
        if any(compute_of(node) != COMPUTE_FLOAT32 for node in nodes):
            for node in filter(is_condensed_gemm, nodes):
                node.attributes.add(ir.AttrInt64("compute", compute_of(node)))
        for node in nodes:
            if node.op_type in QUANTIZED_OPS:
                _write_defaults(node)
        for op_type in sorted(used):
            named = [node for node in nodes if node.op_type == op_type]
            proto = _function(op_type, named, model.opset_imports[""])
            function = ir.serde.deserialize_function(proto)
            model.functions[function.identifier()] = function
        return ir.passes.PassResult(model, modified=True)


def _function(op_type: str, nodes: Sequence[ir.Node], opset: int) -> onnx.FunctionProto:
    """Build the smallest function that serves all of an op's nodes."""
    if op_type == CONDENSED_GEMM:
        rounds = any(compute_of(node) != COMPUTE_FLOAT32 for node in nodes)
        return condensed_gemm_function(opset, rounds=rounds)
    if op_type == CONDENSED_CONV:
        gated = any(gate_of(node) != OPEN_GATE for node in nodes)
        return condensed_conv_function(opset, gated=gated)
    if op_type == QLINEAR_CONDENSED_GEMM:
        return qlinear_condensed_gemm_function(opset)
    if op_type == QLINEAR_CONDENSED_CONV:
        # x_zero_point has the type of X, and is rarely without one.
        kinds = {node.inputs[2].dtype if node.inputs[2] else None for node in nodes}
        return qlinear_condensed_conv_function(
            opset,
            signed_x=kinds != {ir.DataType.UINT8},
            channels_last=any(_flag(node, "channels_last") for node in nodes),
        )
    if op_type == CONDENSED_GEMM_INTEGER_TO_FLOAT:
        return condensed_gemm_integer_to_float_function(opset)
    per_row = any(_flag(node, "per_row") for node in nodes)
    return dynamic_quantize_condensed_gemm_function(opset, per_row=per_row)


def _write_defaults(node: ir.Node) -> None:
    for name, default in ATTRIBUTES[node.op_type].items():
        if default is not None and name not in node.attributes:
            is_integer = isinstance(default, int)
            node.attributes.add(
                ir.AttrInt64(name, int(default)) if is_integer else ir.AttrFloat32(name, default)
            )


def _flag(node: ir.Node, name: str) -> bool:
    return node.attributes.get_int(name, 0) != 0
