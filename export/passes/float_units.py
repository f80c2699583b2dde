"""Find floats between DequantizeLinear and QuantizeLinear that any order of axes suits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from .access import input_of, shape_of
from .nodes import constant_of, dimensions_of
from .quantized_weight import is_dequantize, is_quantize
from .region import BINARY, UNARY


@dataclass(frozen=True, eq=False)
class FloatUnit:
    """Element-wise nodes that read each other, dequantized values and constant scalars.

    Attributes:
        nodes: in graph order.
        dequantizers: the nodes that give their inputs, perhaps to others too.
        quantizers: the nodes that read their outputs, as nothing else does.

    """

    nodes: tuple[ir.Node, ...]
    dequantizers: tuple[ir.Node, ...]
    quantizers: tuple[ir.Node, ...]

    @property
    def rank(self) -> int:
        """Dimensions of each of its values."""
        return len(shape_of(self.nodes[0].outputs[0]))

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """The images of 8 bits that are dequantized."""
        return tuple(input_of(node, 0) for node in self.dequantizers)

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        """The images of 8 bits that come out."""
        return tuple(node.outputs[0] for node in self.quantizers)


def image_inputs(node: ir.Node) -> list[tuple[int, ir.Value]]:
    """Return the inputs of an element-wise node that are no constants, with their places."""
    given = enumerate(node.inputs)
    return [(place, v) for place, v in given if v is not None and constant_of(v) is None]


def find_float_units(model: ir.Model) -> Iterator[FloatUnit]:
    """Yield the units of all graphs."""
    for graph in model.graphs():
        # Each node of a group leads to the same set of nodes.
        groups: dict[ir.Node, dict[ir.Node, None]] = {}
        for node in graph:
            if not _is_elementwise(node):
                continue
            groups[node] = {node: None}
            for _, value in image_inputs(node):
                maker = value.producer()
                if maker in groups and groups[maker] is not groups[node]:
                    merged = groups[maker] | groups[node]
                    groups |= dict.fromkeys(merged, merged)
        seen = set()
        for group in groups.values():
            if id(group) not in seen:
                seen.add(id(group))
                unit = _unit(group)
                if unit is not None:
                    yield unit


def _unit(group: dict[ir.Node, None]) -> FloatUnit | None:
    dequantizers: dict[ir.Node, None] = {}
    quantizers: dict[ir.Node, None] = {}
    for node in group:
        for _, value in image_inputs(node):
            maker = value.producer()
            if maker in group:
                continue
            if not (maker is not None and is_dequantize(maker) and _has_one_grid(maker)):
                return None
            if maker.graph is not node.graph or constant_of(input_of(maker, 0)) is not None:
                return None
            dequantizers[maker] = None
        if node.outputs[0].is_graph_output():
            return None
        for use in node.outputs[0].uses():
            if use.node in group:
                continue
            if not (is_quantize(use.node) and use.idx == 0 and _has_one_grid(use.node)):
                return None
            if use.node.graph is not node.graph:
                return None
            quantizers[use.node] = None
    if not dequantizers or not quantizers:
        return None
    return FloatUnit(tuple(group), tuple(dequantizers), tuple(quantizers))


def _is_elementwise(node: ir.Node) -> bool:
    """Return whether it combines images, which broadcast along no missing axis, and scalars."""
    if node.domain != "" or node.op_type not in UNARY | BINARY or len(node.outputs) != 1:
        return False
    rank = _rank(node.outputs[0])
    if rank is None or rank < 3:
        return False
    arrays = (constant_of(value) for value in node.inputs if value is not None)
    if any(array is not None and array.size != 1 for array in arrays):
        return False
    return all(_rank(value) == rank for _, value in image_inputs(node))


def _rank(value: ir.Value) -> int | None:
    sizes = dimensions_of(value)
    return None if sizes is None else len(sizes)


def _has_one_grid(node: ir.Node) -> bool:
    """Return whether a node has one scale and zero point for all entries."""
    parts = (value for value in node.inputs[1:] if value is not None)
    return all(dimensions_of(part) in ([], [1]) for part in parts)
