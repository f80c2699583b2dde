"""Store the weights of dense layers that a graph computes from constants."""

from __future__ import annotations

import onnx_ir as ir

from .access import graph_of, input_of, name_of, remove_unread_constant
from .constants import (
    ConstantWeight,
    forget_what_varies,
    is_constant,
    live_readers,
    resolve_constant,
)
from .conv_layer import is_conv, is_conv_transpose
from .linear_layer import is_linear
from .matching import remove_unused
from .nodes import Names, add_constant


class FoldWeightsPass(ir.passes.InPlacePass):
    """Replace what a weight is computed from by the weight.

    Runtimes do so when they load a file. In half precision the file would hold the parts in
    float32 as well, for operators that stay in it, and the weight would be rounded twice.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Fold in all graphs; weights that are dequantized stay as they are."""
        forget_what_varies(model)
        names, opset = Names(model), model.opset_imports.get("", 1)
        folded: dict[ir.Value, ir.Value] = {}
        for node in list(model.graph.all_nodes()):
            if not (is_linear(node) or is_conv(node) or is_conv_transpose(node)):
                continue
            for position in (0, 1):
                value = input_of(node, position)
                if value.producer() is None or not is_constant(value):
                    continue
                if value in folded and folded[value].graph is graph_of(node):
                    node.replace_input_with(position, folded[value])
                    continue
                found = resolve_constant(value, opset)
                if not isinstance(found, ConstantWeight) or not found.computed:
                    continue
                if "DequantizeLinear" in found.through:
                    continue
                self._fold(node, position, found, names, folded)
        return ir.passes.PassResult(model, modified=bool(folded))

    def _fold(
        self,
        node: ir.Node,
        position: int,
        found: ConstantWeight,
        names: Names,
        folded: dict[ir.Value, ir.Value],
    ) -> None:
        value, root = input_of(node, position), found.root
        graph, maker = graph_of(node), value.producer()
        # The name of the weight, where nothing else needs it.
        alone = root.graph is graph and all(reader is node for reader in live_readers(root))
        name = name_of(root)
        if alone and root.is_initializer() and not root.is_graph_output():
            root.name = names.free(f"{name}_before")
            names.release(name)
        stored = add_constant(graph, names.free(name), found.array)
        folded[value] = stored
        node.replace_input_with(position, stored)
        remove_unused([maker])
        for constant in (root, *found.others):
            remove_unread_constant(constant)
