"""The functions that let a file run where our library is absent."""

from __future__ import annotations

import onnx_ir as ir

from ..onnx_function import condensed_conv_function, condensed_gemm_function
from ..onnx_schema import CONDENSED_CONV, CONDENSED_GEMM, DOMAIN, DOMAIN_VERSION
from .nodes import condensed_nodes

_FUNCTIONS = {CONDENSED_GEMM: condensed_gemm_function, CONDENSED_CONV: condensed_conv_function}


class AttachFunctionsPass(ir.passes.InPlacePass):
    """Add the function of each of our ops that the graph uses, and the import of our domain.

    It is the last pass: optimizers inline functions, after which the condensed node is gone.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Attach; a model without our ops loses the import of our domain."""
        used = {node.op_type for node in condensed_nodes(model)}
        if not used:
            changed = model.opset_imports.pop(DOMAIN, None) is not None
            return ir.passes.PassResult(model, modified=changed)
        model.opset_imports[DOMAIN] = DOMAIN_VERSION
        for op_type in sorted(used):
            proto = _FUNCTIONS[op_type](model.opset_imports[""])
            function = ir.serde.deserialize_function(proto)
            model.functions[function.identifier()] = function
        return ir.passes.PassResult(model, modified=True)
