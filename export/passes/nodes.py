"""Finding our nodes in a graph, its subgraphs included."""

from __future__ import annotations

import onnx_ir as ir

from ..onnx_schema import CONDENSED_GEMM, DOMAIN


def is_condensed(node: ir.Node) -> bool:
    """Tell whether a node is an op of ours."""
    return (node.domain, node.op_type) == (DOMAIN, CONDENSED_GEMM)


def condensed_nodes(model: ir.Model) -> list[ir.Node]:
    """List the condensed nodes in graph order."""
    return [node for node in model.graph.all_nodes() if is_condensed(node)]
