"""Attach the functions that let a file run without our library."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from ...ort_ops.contract import (
    CONDENSED_CONV,
    CONDENSED_GEMM,
    CONDENSED_GEMM_INTEGER_TO_FLOAT,
    DOMAIN,
    DOMAIN_VERSION,
    DYNAMIC_QUANTIZE_CONDENSED_GEMM,
    OPEN_GATE,
    QLINEAR_CONDENSED_GEMM,
)
from ..onnx_function import condensed_conv_function, condensed_gemm_function
from ..onnx_quantized_function import (
    condensed_gemm_integer_to_float_function,
    dynamic_quantize_condensed_gemm_function,
    qlinear_condensed_conv_function,
    qlinear_condensed_gemm_function,
)
from .access import input_of
from .nodes import condensed_nodes, gate_of, is_condensed_conv, quantized_nodes


class AttachFunctionsPass(ir.passes.InPlacePass):
    """Add the function of each of our ops that the graph uses, and the import of our domain.

    It is the last pass: optimizers inline functions, after which the condensed node is gone.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Attach; a model without our ops loses the import of our domain."""
        nodes, quantized = condensed_nodes(model), quantized_nodes(model)
        used = {node.op_type for node in (*nodes, *quantized)}
        if not used:
            changed = model.opset_imports.pop(DOMAIN, None) is not None
            return ir.passes.PassResult(model, modified=changed)
        model.opset_imports[DOMAIN] = DOMAIN_VERSION
        opset = model.opset_imports[""]
        convolutions = list(filter(is_condensed_conv, nodes))
        gated = any(gate_of(node) != OPEN_GATE for node in convolutions)
        if gated:
            # Neither onnx's inliner nor its reference evaluator knows a function's defaults.
            for node in convolutions:
                for name, number in zip(("gate_scale", "gate_shift"), gate_of(node), strict=True):
                    node.attributes.add(ir.AttrFloat32(name, number))
        for op_type in sorted(used):
            if op_type == CONDENSED_CONV:
                proto = condensed_conv_function(opset, gated=gated)
            elif op_type == CONDENSED_GEMM:
                proto = condensed_gemm_function(opset)
            else:
                same = [node for node in quantized if node.op_type == op_type]
                proto = _quantized_function(op_type, same, opset)
            function = ir.serde.deserialize_function(proto)
            model.functions[function.identifier()] = function
        return ir.passes.PassResult(model, modified=True)


def _quantized_function(op_type: str, nodes: Sequence[ir.Node], opset: int) -> onnx.FunctionProto:
    """Write the function of an op on 8-bit integers, with no more than these nodes of it need."""
    if op_type == QLINEAR_CONDENSED_GEMM:
        return qlinear_condensed_gemm_function(opset)
    if op_type == CONDENSED_GEMM_INTEGER_TO_FLOAT:
        return condensed_gemm_integer_to_float_function(opset)
    if op_type == DYNAMIC_QUANTIZE_CONDENSED_GEMM:
        per_row = any(node.attributes.get_int("per_row", 0) for node in nodes)
        return dynamic_quantize_condensed_gemm_function(opset, per_row=per_row)
    zero_points = [input_of(node, 2) for node in nodes]
    return qlinear_condensed_conv_function(
        opset,
        signed_x=any(zero.dtype != ir.DataType.UINT8 for zero in zero_points),
        channels_last=any(node.attributes.get_int("channels_last", 0) for node in nodes),
    )
