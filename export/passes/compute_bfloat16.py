"""Linear layers that compute in bfloat16: the op rounds what it reads, sums stay float32."""

from __future__ import annotations

import onnx_ir as ir

from ...ort_ops.contract import COMPUTE_BFLOAT16
from .access import input_of, label_of
from .nodes import compute_of, condensed_nodes, is_condensed_gemm


class ComputeBfloat16Pass(ir.passes.InPlacePass):
    """Let CondensedGemm nodes whose values are bfloat16 round X to that type.

    The functions have to be attached again after it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Set the attribute of all such nodes."""
        modified = False
        for node in filter(is_condensed_gemm, condensed_nodes(model)):
            if input_of(node, 1).dtype == ir.DataType.BFLOAT16:
                node.attributes.add(ir.AttrInt64("compute", COMPUTE_BFLOAT16))
                modified = True
        return ir.passes.PassResult(model, modified=modified)


def nodes_in_bfloat16(model: ir.Model) -> frozenset[str]:
    """Name the nodes that compute in bfloat16."""
    nodes = condensed_nodes(model)
    return frozenset(label_of(node) for node in nodes if compute_of(node) == COMPUTE_BFLOAT16)
