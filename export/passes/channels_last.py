"""Let quantized convolutions that follow each other pass their channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import onnx_ir as ir

from ...ort_ops.contract import DOMAIN, QLINEAR_CONDENSED_CONV
from .access import name_of
from .matching import remove_unused
from .nodes import Names, constant_of, dimensions_of, quantized_nodes, residual_place

PLANAR = "fanin.planar"
"""Key in a node's ``meta``: the names that its values have in the original, channels first, by the
names that they have in the node."""


class ChannelsLastPass(ir.passes.InPlacePass):
    """Set ``channels_last`` of convolutions that read each other, with Transposes around them.

    The kernels compute with channels last, and would turn the image into that order and back in
    each convolution. Only between two convolutions of ours nothing is turned: what else reads or
    writes their values, be it a DequantizeLinear, gets a Transpose, and outputs stay the same.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit the convolutions in graph order."""
        nodes = [node for node in quantized_nodes(model) if _is_conv(node) and _has_neighbor(node)]
        turner = _Turner(Names(model))
        for node in nodes:
            turner.turn(node)
        turner.remove_unread()
        return ir.passes.PassResult(model, modified=bool(nodes))


def _is_conv(node: ir.Node | None) -> TypeGuard[ir.Node]:
    return node is not None and (node.domain, node.op_type) == (DOMAIN, QLINEAR_CONDENSED_CONV)


def _images(node: ir.Node) -> list[tuple[int, ir.Value]]:
    """Return the images that a convolution reads, with their places: X, and a residual."""
    places = ((place, node.inputs[place]) for place in (0, residual_place(node)))
    return [(place, v) for place, v in places if v is not None and constant_of(v) is None]


def _has_neighbor(node: ir.Node) -> bool:
    """Return whether a convolution reads another one or is read by one, directly."""
    makers = [value.producer() for _, value in _images(node)]
    readers = [use.node for use in node.outputs[0].uses()]
    return any(_is_conv(other) and other.graph is node.graph for other in (*makers, *readers))


class _Turner:
    """Values in both orders, each turned at most once."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._last: dict[int, ir.Value] = {}
        self._turns: list[ir.Node] = []

    def turn(self, node: ir.Node) -> None:
        """Make one convolution read and write channels last."""
        planar = {}
        for place, value in _images(node):
            last = self._channels_last(value, node)
            planar[name_of(last)] = name_of(value)
            node.replace_input_with(place, last)
        node.attributes.add(ir.AttrInt64("channels_last", 1))
        output = node.outputs[0]
        back = ir.node("Transpose", [output], attributes={"perm": _first(_axes(node))})
        name, first = name_of(output), back.outputs[0]
        first.type, first.shape = output.type, output.shape
        for use in list(output.uses()):
            if use.node is not back:
                use.node.replace_input_with(use.idx, first)
        if output.is_graph_output():
            graph = node.graph
            assert graph is not None
            graph.outputs[graph.outputs.index(output)] = first
        output.name = self._names.free(f"{name}_channels_last")
        first.name = name
        output.shape = _permuted(first, _last(_axes(node)))
        planar[output.name] = name
        back.name = self._names.free(f"{node.name}_channels_first")
        node.append(back)
        node.meta[PLANAR] = planar
        self._last[id(first)] = output
        self._turns.append(back)

    def remove_unread(self) -> None:
        """Remove the Transposes that nothing but convolutions would have read."""
        remove_unused(self._turns)

    def _channels_last(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        if id(value) not in self._last:
            perm = _last(_axes(reader))
            turn = ir.node("Transpose", [value], attributes={"perm": perm})
            turn.name = self._names.free(f"{value.name}_turn")
            output = turn.outputs[0]
            output.name = self._names.free(f"{value.name}_channels_last")
            output.type, output.shape = value.type, _permuted(value, perm)
            reader.prepend(turn)
            self._last[id(value)] = output
        return self._last[id(value)]


def _axes(node: ir.Node) -> int:
    return len(node.attributes.get_ints("kernel_shape"))


def _last(axes: int) -> list[int]:
    return [0, *range(2, 2 + axes), 1]


def _first(axes: int) -> list[int]:
    return [0, 1 + axes, *range(1, 1 + axes)]


def _permuted(value: ir.Value, perm: Sequence[int]) -> ir.Shape | None:
    sizes = dimensions_of(value)
    return None if sizes is None else ir.Shape([sizes[axis] for axis in perm])
