"""What tells whether passes have changed a graph."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

_BY_IDENTITY = (
    ir.AttributeType.GRAPH,
    ir.AttributeType.GRAPHS,
    ir.AttributeType.TENSOR,
    ir.AttributeType.TENSORS,
)


@dataclass(frozen=True)
class Fingerprint:
    """Nodes, names and constants of a model in memory, subgraphs included.

    Two of one model are equal where nothing that it computes has changed in between.
    """

    parts: tuple[object, ...]
    held: tuple[object, ...] = field(compare=False)
    """What ``parts`` has the identity of, so that nothing else can get it."""

    @classmethod
    def of(cls, model: ir.Model) -> Fingerprint:
        """Take that of a model as it is now."""
        held: list[object] = []

        def identity(thing: object) -> int:
            held.append(thing)
            return id(thing)

        def node_parts(node: ir.Node) -> tuple[object, ...]:
            attributes = [
                (name, identity(one) if one.type in _BY_IDENTITY else str(one.value))
                for name, one in sorted(node.attributes.items())
            ]
            inputs = [value and value.name for value in node.inputs]
            outputs = [value.name for value in node.outputs]
            return node.op_identifier(), node.name, inputs, outputs, attributes

        constants = [
            (value.name, identity(value.const_value))
            for graph in model.graphs()
            for value in graph.initializers.values()
        ]
        ports = (model.graph.inputs, model.graph.outputs)
        names = [[value.name for value in side] for side in ports]
        return cls((*map(node_parts, model.graph.all_nodes()), constants, names), tuple(held))
