"""Fuse the Add of a residual connection into a condensed node."""

from __future__ import annotations

import onnx_ir as ir

from .access import input_of, producer_of, remove_node
from .nodes import (
    adds_floats,
    constant_of,
    has_no_epilogue,
    has_no_residual,
    is_condensed_conv,
    layer_name,
    residual_place,
    same_shape,
    take_output,
)
from .result_pass import FuseResult, ResultPass


class FuseResidualPass(ResultPass[FuseResult]):
    """Fuse Adds of two values of the same shape into the condensed node that gives one of them.

    ONNX Runtime fuses such an Add, and the activation after it, into its dense Conv. The node's
    output must have no other reader, so that what is added cannot depend on it; the node moves to
    the Add's place. Where two condensed nodes meet, the later one takes the other's output. It runs
    before activations are fused: what clips before the Add keeps them apart.

    An Add behind a linear layer whose sum only a LayerNormalization reads stays: ONNX Runtime makes
    one node of the two, in which the Add costs nothing.
    """

    def call(self, model: ir.Model) -> FuseResult:
        """Visit the Adds in graph order."""
        nodes = list(model.graph.all_nodes())
        place = {id(node): number for number, node in enumerate(nodes)}
        fused: list[str] = []
        for node in nodes:
            if node.domain != "" or node.op_type != "Add":
                continue
            found = [position for position in (0, 1) if _takes_over(node, position)]
            if not found:
                continue
            givers = {p: producer_of(input_of(node, p)) for p in found}
            position = max(found, key=lambda p: place[id(givers[p])])
            name = layer_name(givers[position])
            new = _fuse(node, position)
            place[id(new)] = place[id(node)]
            fused.append(f"Add into {name}")
        return FuseResult(model, modified=bool(fused), fused=fused)


def _takes_over(add: ir.Node, position: int) -> bool:
    """Return whether the producer of one side of an Add can add the other."""
    value, other = input_of(add, position), input_of(add, 1 - position)
    producer = value.producer()
    return (
        producer is not None
        and (is_condensed_conv(producer) or (adds_floats(producer) and not _feeds_norm(add)))
        and producer.graph is add.graph
        and len(value.uses()) == 1
        and not value.is_graph_output()
        and has_no_residual(producer)
        and has_no_epilogue(producer)
        and value.dtype == other.dtype
        and same_shape(value, other)
        # Something of one entry would be taken for "none".
        and constant_of(other) is None
    )


def _feeds_norm(add: ir.Node) -> bool:
    (total,) = add.outputs
    readers = [use.node for use in total.uses()]
    return (
        not total.is_graph_output()
        and len(readers) == 1
        and (readers[0].domain, readers[0].op_type) == ("", "LayerNormalization")
    )


def _fuse(add: ir.Node, position: int) -> ir.Node:
    """Move the condensed node to the Add's position, where the addend is already computed."""
    old = producer_of(input_of(add, position))
    inputs = list(old.inputs)
    inputs[residual_place(old)] = add.inputs[1 - position]
    new = ir.node(
        old.op_type,
        inputs,
        attributes=dict(old.attributes),
        domain=old.domain,
        name=old.name,
    )
    new.meta.update(old.meta)
    add.append(new)
    take_output(add.outputs[0], new.outputs[0])
    for gone in (add, old):
        remove_node(gone)
    return new
