"""Remove the metadata that exporters leave on values."""

from __future__ import annotations

import onnx_ir as ir


class ClearValueMetadataPass(ir.passes.InPlacePass):
    """Drop metadata and documentation of every value.

    onnx-ir's own pass clears nodes and graphs only. What torch notes on values names its internals,
    and would make the bytes of a file depend on the version of torch.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Clear inputs, constants and the outputs of nodes, in subgraphs too."""
        modified = False
        for graph in model.graphs():
            outputs = (value for node in graph for value in node.outputs)
            for value in (*graph.inputs, *graph.initializers.values(), *outputs):
                modified |= bool(value.metadata_props or value.doc_string)
                value.metadata_props.clear()
                value.doc_string = None
        return ir.passes.PassResult(model, modified=modified)
