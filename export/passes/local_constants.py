"""Constants of our nodes in branches and loops, which their kernels need in the same graph."""

from __future__ import annotations

import onnx_ir as ir

from .access import graph_of, remove_unread_constant
from .nodes import Names, add_constant, constant_of, our_nodes


class LocalConstantsPass(ir.passes.InPlacePass):
    """Give nodes of ours in subgraphs the constants that an optimizer has lifted out of them.

    A kernel takes a constant of an outer graph for a value that changes from run to run.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Copy them, once for each subgraph; what nobody else reads moves."""
        copies: dict[tuple[int, int], ir.Value] = {}
        names = Names(model)
        for node in our_nodes(model):
            graph = graph_of(node)
            for position, value in enumerate(node.inputs):
                if value is None or value.graph is graph or not _is_stored(value):
                    continue
                key = (id(graph), id(value))
                if key not in copies:
                    copies[key] = _copy(value, graph, names)
                node.replace_input_with(position, copies[key])
                remove_unread_constant(value)
        return ir.passes.PassResult(model, modified=bool(copies))


def _is_stored(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input()


def _copy(value: ir.Value, graph: ir.Graph, names: Names) -> ir.Value:
    array, name = constant_of(value), value.name or "constant"
    assert array is not None
    if len(value.uses()) == 1 and value.graph is not None:
        # The name moves with it.
        del value.graph.initializers[name]
        return add_constant(graph, name, array)
    return add_constant(graph, names.free(name), array)
