"""Predicates and helpers for matching patterns of several nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from .nodes import Names, add_constant, constant_of


def is_op(node: ir.Node | None, op_type: str) -> TypeGuard[ir.Node]:
    """Return whether a node is the standard operator of that name."""
    return node is not None and (node.domain, node.op_type) == ("", op_type)


def read_once(value: ir.Value) -> bool:
    """Return whether exactly one input of one node reads a value."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def only_reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """Return the node of that type that alone reads the value, in its graph, as first input."""
    if not read_once(value):
        return None
    ((node, position),) = value.uses()
    producer = value.producer()
    beside = producer is not None and producer.graph is node.graph
    return node if beside and position == 0 and is_op(node, op_type) else None


def producer_read_once(value: ir.Value, op_type: str) -> ir.Node | None:
    """Return the node of that type that gives a value which nothing else reads."""
    node = value.producer()
    return node if is_op(node, op_type) and read_once(value) else None


def same_sizes(one: Sequence[int | str | None], other: Sequence[int | str | None]) -> bool:
    """Return whether two values of as many entries, reshaped into each other, have the same shape.

    One size of each may be a symbol of any name, or unknown: the others determine it.
    """
    pairs = list(zip(one, other, strict=True)) if len(one) == len(other) else [(0, 1)]
    different = [pair for pair in pairs if pair[0] != pair[1] or pair[0] is None]
    free = [pair for pair in pairs if not all(isinstance(size, int) for size in pair)]
    return not different or (different == free and len(free) == 1)


def constant_integers(value: ir.Value | None) -> list[int] | None:
    """Read a constant vector of integers, such as axes; None for anything else."""
    array = constant_of(value)
    return array.tolist() if array is not None and array.ndim == 1 else None


def permutation(node: ir.Node) -> list[int] | None:
    """Read where a Transpose takes each dimension from; None where it does not say."""
    perm = node.attributes.get_ints("perm", None)
    return None if perm is None else list(perm)


def as_reshape(sizes: Sequence[int | str | None]) -> list[int] | None:
    """Write sizes as the shape that a Reshape takes; None where two are unknown."""
    shape = [size if isinstance(size, int) else -1 for size in sizes]
    return shape if shape.count(-1) <= 1 else None


class Integers:
    """Constant vectors of integers, such as shapes: one for each content in a graph."""

    def __init__(self, model: ir.Model) -> None:
        self._names = Names(model)
        self._known: dict[tuple[int, tuple[int, ...]], ir.Value] = {}

    def get(self, graph: ir.Graph, numbers: Sequence[int], name: str) -> ir.Value:
        """Return the constant, which gets about this name where it is new."""
        key = (id(graph), tuple(numbers))
        if key not in self._known:
            array = np.array(numbers, np.int64)
            self._known[key] = add_constant(graph, self._names.free(name), array)
        return self._known[key]


def describe(value: ir.Value, like: ir.Value, sizes: Sequence[int | str | None]) -> None:
    """Set the shape of a new value, and copy its type from another one."""
    value.type, value.shape = like.type, ir.Shape(sizes)


def remove_unused(nodes: Iterable[ir.Node | None]) -> None:
    """Remove those of the nodes that nothing needs, and what only they needed."""
    for node in nodes:
        if node is None or node.graph is None:
            continue
        if any(value.uses() or value.is_graph_output() for value in node.outputs):
            continue
        before = [value.producer() for value in node.inputs if value is not None]
        node.graph.remove(node, safe=True)
        remove_unused(dict.fromkeys(before))
