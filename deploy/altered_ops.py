"""Files in which another tool has renamed fanin's ops or replaced them by dense layers.

Such a file opens and computes the same, at dense speed, and ONNX Runtime has no reason to say so.
"""

from __future__ import annotations

from ..onnx_file import ModelFile, Node
from ..ort_ops.contract import DOMAIN, OPS, renamed_op

RENAMED_REMEDY = (
    "Give them their names back: fanin export MODEL.onnx -o OUT.onnx --policy condensed. "
    "docs/foreign-files.md says how to merge files so that the names stay."
)

LOST = (
    f"the file imports the domain '{DOMAIN}' but has none of its ops: another tool has put dense "
    "layers in their place"
)

LOST_REMEDY = (
    "Export from the source again, and run that tool so that it keeps them: "
    "quant_pre_process(..., skip_optimization=True), optimize_model(..., opt_level=0), or with "
    "fanin's library registered (docs/tools.md)."
)


def renamed_nodes(content: ModelFile) -> list[Node]:
    """List the nodes that call what was an op of fanin's before it was renamed."""
    nodes = [*content.nodes, *content.function_nodes]
    return [
        node
        for node in nodes
        if (node.domain, node.op_type) in content.functions
        and renamed_op(node.domain, node.op_type) is not None
    ]


def describe_renamed(nodes: list[Node]) -> str:
    """Say which nodes run dense, and as what."""
    first = nodes[0]
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return (
        f"node '{first.name}'{more} runs dense: {first.op_type} of domain '{first.domain}' is "
        f"fanin's {renamed_op(first.domain, first.op_type)} under a name that another tool gave it"
    )


def has_lost_ops(content: ModelFile) -> bool:
    """Return whether ops of fanin's were here once: the import of their domain is left."""
    imports = any(entry.domain == DOMAIN for entry in content.opset_imports)
    nodes = [*content.nodes, *content.function_nodes]
    return imports and not any(node.domain == DOMAIN and node.op_type in OPS for node in nodes)
