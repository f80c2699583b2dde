"""Nodes in an order in which each comes after those that it reads, as onnx wants them.

Converters append what they add (onnxconverter-common its Casts), and ONNX Runtime does not mind.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence
from heapq import heapify, heappop, heappush

import onnx

from .errors import ExportError
from .onnx_reading import graphs_inside, graphs_of

_SHOWN = 5


def sort_nodes(model: onnx.ModelProto) -> int:
    """Sort the nodes of all graphs and functions, and leave those that are sorted as they are.

    Returns:
        How many graphs and functions were not sorted.

    Raises:
        ExportError: nodes form a cycle, two of them compute a value of one name, or one reads a
            value that is not there.

    """
    bodies = [graph.node for graph in graphs_of(model.graph)]
    for function in model.functions:
        bodies.append(function.node)
        bodies += [graph.node for graph in graphs_inside(function.node)]
    unsorted = sum(map(_sort, bodies))
    _require_values(model.graph, frozenset())
    return unsorted


def _require_values(graph: onnx.GraphProto, outer: frozenset[str]) -> None:
    """Require that all that is read is computed, given or stored, here or in a graph around."""
    there = outer | {value.name for value in graph.input}
    there |= {tensor.name for tensor in graph.initializer}
    there |= {sparse.values.name for sparse in graph.sparse_initializer}
    there |= {name for node in graph.node for name in node.output}
    for node in graph.node:
        lost = next((name for name in node.input if name and name not in there), None)
        if lost is not None:
            raise ExportError(f"the node {_label(node)} reads {lost!r}, which is not in the graph")
        for attribute in node.attribute:
            for inner in (*([attribute.g] * attribute.HasField("g")), *attribute.graphs):
                _require_values(inner, there)
    lost = next((value.name for value in graph.output if value.name not in there), None)
    if lost is not None:
        raise ExportError(f"the output {lost!r} is not computed by any node")


def _sort(nodes: MutableSequence[onnx.NodeProto]) -> bool:
    makers: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in makers:
                raise ExportError(
                    f"the nodes {_label(nodes[makers[name]])} and {_label(node)} both compute "
                    f"{name!r}"
                )
            makers[name] = position
    before = [{makers[name] for name in reads(node) if name in makers} for node in nodes]
    if all(max(sources, default=-1) < place for place, sources in enumerate(before)):
        return False
    order = _order(before)
    if len(order) < len(nodes):
        raise ExportError(f"{_cycle(nodes, before, set(order))}, so that none can be first")
    held = [_copy(nodes[position]) for position in order]
    del nodes[:]
    nodes.extend(held)
    return True


def _order(before: list[set[int]]) -> list[int]:
    """Order positions, keeping the given order where it may; those of a cycle are left out."""
    missing = [len(sources) for sources in before]
    readers: list[list[int]] = [[] for _ in before]
    for position, sources in enumerate(before):
        for source in sources:
            readers[source].append(position)
    ready = [position for position, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        position = heappop(ready)
        order.append(position)
        for reader in readers[position]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return order


def _cycle(nodes: MutableSequence[onnx.NodeProto], before: list[set[int]], done: set[int]) -> str:
    """Name the nodes of a cycle, in the order in which they read each other."""
    at = next(position for position in range(len(nodes)) if position not in done)
    path: list[int] = []
    while at not in path:
        path.append(at)
        at = next(source for source in sorted(before[at]) if source not in done)
    found = path[path.index(at) :][::-1]
    if len(found) == 1:
        return f"the node {_label(nodes[at])} reads its own output"
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    names = ", ".join(_label(nodes[position]) for position in found[:_SHOWN])
    return f"the nodes {names}{more} form a cycle"


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, also inside of its branches and loop bodies."""
    yield from node.input
    for graph in graphs_inside([node]):
        for inner in graph.node:
            yield from inner.input
        yield from (value.name for value in graph.output)


def _label(node: onnx.NodeProto) -> str:
    return f"{node.name or next(iter(node.output), '')!r} ({node.op_type})"


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    return copied
