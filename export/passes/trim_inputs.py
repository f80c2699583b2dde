"""Drop inputs at the end of nodes that are listed without being there."""

from __future__ import annotations

import onnx_ir as ir


class TrimInputsPass(ir.passes.InPlacePass):
    """Write optional inputs that a node does not have as absent rather than as empty names.

    The two mean the same, but an optimizer of onnxruntime 1.32 reads the bias of a
    LayerNormalization that lists it, whether it is there or not, and takes the process along.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Trim standard operators, in subgraphs too."""
        modified = False
        for node in model.graph.all_nodes():
            last = len(node.inputs)
            while last and node.inputs[last - 1] is None:
                last -= 1
            if node.domain == "" and last < len(node.inputs):
                node.resize_inputs(last)
                modified = True
        return ir.passes.PassResult(model, modified=modified)
