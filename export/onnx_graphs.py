"""Graphs inside graphs, in protobuf's form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import GraphProto, NodeProto


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and those inside its nodes: branches and loop bodies."""
    yield graph
    yield from graphs_inside(graph.node)


def graphs_inside(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    """Yield the graphs inside nodes."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_of(attribute.g)
            for graph in attribute.graphs:
                yield from graphs_of(graph)
