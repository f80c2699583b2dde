"""Rename values that ONNX Runtime has named while it inlined functions."""

from __future__ import annotations

import onnx_ir as ir

from .nodes import Names, all_values

_PREFIX = "_inlfunc_"


class RenameInlinedPass(ir.passes.InPlacePass):
    """Take "_inlfunc_CondensedGemm_y" and the like from values inside a graph.

    A file of ours that ONNX Runtime has optimized and saved without our library has such names.
    Condensed again, its functions are inlined again, and ONNX Runtime would use the names twice.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rename all but the inputs and outputs of graphs."""
        names, modified = Names(model), False
        for value in list(all_values(model)):
            inside = not (value.is_graph_input() or value.is_graph_output())
            if inside and value.name and value.name.startswith(_PREFIX):
                value.name = names.free(value.name.removeprefix("_"))
                modified = True
        return ir.passes.PassResult(model, modified=modified)
