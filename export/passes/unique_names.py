"""Rename values of branches and loop bodies that shadow values of outer graphs."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from .nodes import Names


class UniqueNamesPass(ir.passes.InPlacePass):
    """Let no value of a subgraph shadow one of a graph around it, which onnx forbids.

    New values get names ("val_3") that are free in their own graph only, and torch's exporter names
    its values alike.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rename values of subgraphs only, and only where it is necessary."""
        names = Names(model)
        return ir.passes.PassResult(model, modified=_rename(model.graph, set(), names))


def _rename(graph: ir.Graph, outer: set[str | None], names: Names) -> bool:
    modified = False
    for value in _values_of(graph) if outer else ():
        if value.name and value.name in outer:
            value.name = names.free(value.name)
            modified = True
    inner = list(_subgraphs_of(graph))
    taken = outer | {value.name for value in _values_of(graph)} if inner else outer
    for subgraph in inner:
        modified |= _rename(subgraph, taken, names)
    return modified


def _values_of(graph: ir.Graph) -> list[ir.Value]:
    outputs = [value for node in graph for value in node.outputs]
    return [*graph.inputs, *graph.initializers.values(), *outputs]


def _subgraphs_of(graph: ir.Graph) -> Iterator[ir.Graph]:
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield attribute.as_graph()
            elif attribute.type == ir.AttributeType.GRAPHS:
                yield from attribute.as_graphs()
