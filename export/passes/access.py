"""Accessors for what every valid graph has, although onnx-ir's types allow None."""

from __future__ import annotations

import onnx_ir as ir

from ..errors import ExportError


def input_of(node: ir.Node, position: int) -> ir.Value:
    """Return an input that the operator needs."""
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None:
        raise ExportError(f"node {node.name!r} ({node.op_type}): input {position} is missing")
    return value


def optional_input(node: ir.Node, position: int) -> ir.Value | None:
    """Return an input of a node; None where it is left out."""
    return node.inputs[position] if position < len(node.inputs) else None


def graph_of(node: ir.Node) -> ir.Graph:
    """Return the graph that holds a node."""
    if node.graph is None:
        raise ExportError(f"node {node.name!r} ({node.op_type}) is in no graph")
    return node.graph


def producer_of(value: ir.Value) -> ir.Node:
    """Return the node that computes a value that is neither a graph input nor an initializer."""
    node = value.producer()
    if node is None:
        raise ExportError(f"no node computes {value.name!r}")
    return node


def name_of(value: ir.Value) -> str:
    """Return the name of a value that a file holds."""
    if value.name is None:
        raise ExportError("a value of the graph has no name")
    return value.name


def label_of(node: ir.Node) -> str:
    """Return the name of a node, which may be empty in a file."""
    return node.name or ""


def shape_of(value: ir.Value) -> ir.Shape:
    """Return the shape of a value of known rank."""
    if value.shape is None:
        raise ExportError(f"the shape of {value.name!r} is not known")
    return value.shape


def size_of(value: ir.Value, axis: int) -> int:
    """Return a size, which must be static."""
    size = shape_of(value)[axis]
    if not isinstance(size, int):
        raise ExportError(f"dimension {axis} of {value.name!r} is not known")
    return size


def type_of(value: ir.Value) -> ir.DataType:
    """Return the type of the elements of a value for which it is known."""
    if value.dtype is None:
        raise ExportError(f"the type of {value.name!r} is not known")
    return value.dtype


def remove_unread_constant(value: ir.Value) -> bool:
    """Remove an initializer that nothing needs from its graph; return whether it was removed."""
    graph = value.graph
    if graph is None or not value.is_initializer():
        return False
    if value.uses() or value.is_graph_input() or value.is_graph_output():
        return False
    del graph.initializers[name_of(value)]
    # Removed nodes refer to the value, and onnxscript's rewriter to the nodes it saw last.
    value.const_value = None
    return True


def drop_weights(model: ir.Model) -> None:
    """Free the weights of a graph that is written, whoever may still refer to it."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            value.const_value = None


def remove_node(node: ir.Node) -> None:
    """Remove a node that nothing reads from its graph."""
    graph_of(node).remove(node, safe=True)
