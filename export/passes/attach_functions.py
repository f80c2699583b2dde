"""Attach the functions that let a file run without our library."""

from __future__ import annotations

import onnx_ir as ir

from ...ort_ops.contract import CONDENSED_CONV, DOMAIN, DOMAIN_VERSION, OPEN_GATE
from ..onnx_function import condensed_conv_function, condensed_gemm_function
from .nodes import condensed_nodes, gate_of, is_condensed_conv


class AttachFunctionsPass(ir.passes.InPlacePass):
    """Add the function of each of our ops that the graph uses, and the import of our domain.

    It is the last pass: optimizers inline functions, after which the condensed node is gone.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Attach; a model without our ops loses the import of our domain."""
        nodes = condensed_nodes(model)
        used = {node.op_type for node in nodes}
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
            else:
                proto = condensed_gemm_function(opset)
            function = ir.serde.deserialize_function(proto)
            model.functions[function.identifier()] = function
        return ir.passes.PassResult(model, modified=True)
