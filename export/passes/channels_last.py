"""Let quantized convolutions that follow each other pass their channels last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import TypeGuard

import onnx_ir as ir

from ...ort_ops.contract import DOMAIN, QLINEAR_CONDENSED_CONV
from .access import graph_of, input_of, name_of
from .float_units import FloatUnit, find_float_units, image_inputs
from .matching import is_op, remove_unused
from .nodes import Names, constant_of, dimensions_of, quantized_nodes, residual_place
from .quantized_weight import is_dequantize, is_quantize

PLANAR = "fanin.planar"
"""Key in a node's ``meta``: the names that its values have in the original, channels first, by the
names that they have in the node."""


_TURNED = frozenset(
    {
        "AveragePool",
        "Conv",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "MaxPool",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
    }
)
"""Operators that the runtime computes with channels last where they are quantized, or in either
order: it takes the Transposes around them away."""


class ChannelsLastPass(ir.passes.InPlacePass):
    """Set ``channels_last`` of convolutions and of what stands between, with Transposes around.

    The kernels compute with channels last, and would turn the image into that order and back in
    each convolution. Between two convolutions of ours nothing is turned, nor between one and a
    quantized layer of the runtime, which has the same order. Element-wise nodes between
    DequantizeLinear and QuantizeLinear, such as sums, take part where that leaves fewer Transposes.
    Those that remain are at values of 8 bits, and outputs stay the same. Convolutions that have
    their channels last in the source stay, as do the Transposes around them.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit convolutions and units of floats in graph order."""
        order = {node: i for i, node in enumerate(model.graph.all_nodes())}
        units = _turned_units(list(find_float_units(model)))
        beside = {value for unit in units for value in (*unit.inputs, *unit.outputs)}
        convs = [
            node
            for node in quantized_nodes(model)
            if _is_conv(node) and _has_neighbor(node, beside)
        ]
        turner = _Turner(Names(model))
        # A unit's inputs are there before its last node, and nothing before reads its output.
        last = {unit: max(order[node] for node in unit.quantizers) for unit in units}
        items: list[ir.Node | FloatUnit] = [*convs, *units]
        for item in sorted(items, key=lambda x: last[x] if isinstance(x, FloatUnit) else order[x]):
            if isinstance(item, FloatUnit):
                turner.turn_unit(item)
            else:
                turner.turn(item)
        turner.remove_unread()
        return ir.passes.PassResult(model, modified=bool(items))


def _is_conv(node: ir.Node | None) -> TypeGuard[ir.Node]:
    """Return whether a node is a convolution of ours that has its channels first."""
    if node is None or (node.domain, node.op_type) != (DOMAIN, QLINEAR_CONDENSED_CONV):
        return False
    return node.attributes.get_int("channels_last", 0) == 0


def _images(node: ir.Node) -> list[tuple[int, ir.Value]]:
    """Return the images that a convolution reads, with their places: X, and a residual."""
    places = ((place, node.inputs[place]) for place in (0, residual_place(node)))
    return [(place, v) for place, v in places if v is not None and constant_of(v) is None]


def _has_neighbor(node: ir.Node, beside: Set[ir.Value]) -> bool:
    """Return whether what a convolution reads or writes has channels last elsewhere too.

    Args:
        node: the convolution.
        beside: what turned units read and write.

    """
    values = [value for _, value in _images(node)]
    makers = [_before_pool(value.producer()) for value in values]
    readers = list(_readers(node.outputs[0]))
    if any(_is_conv(other) and other.graph is node.graph for other in (*makers, *readers)):
        return True
    if any(value in beside for value in (*values, node.outputs[0])):
        return True
    return any(map(_is_written_turned, values)) or any(map(_reads_turned, readers))


def _before_pool(node: ir.Node | None) -> ir.Node | None:
    """Return what a pool of integers pools, which takes either order; else the node itself."""
    return input_of(node, 0).producer() if is_op(node, "MaxPool") else node


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """Yield what reads a value, and what reads its pool of integers."""
    for use in value.uses():
        yield use.node
        if is_op(use.node, "MaxPool"):
            yield from (one.node for one in use.node.outputs[0].uses())


def _is_written_turned(value: ir.Value) -> bool:
    """Return whether the runtime writes a value of 8 bits with channels last."""
    maker = value.producer()
    if maker is None or not is_quantize(maker):
        return is_op(maker, "QLinearConv")
    layer = input_of(maker, 0).producer()
    return layer is not None and layer.domain == "" and layer.op_type in _TURNED


def _reads_turned(node: ir.Node) -> bool:
    """Return whether a reader of a value of 8 bits takes it with channels last, in the runtime."""
    if not is_dequantize(node):
        return is_op(node, "QLinearConv")
    readers = [use.node for use in node.outputs[0].uses()]
    return any(reader.domain == "" and reader.op_type in _TURNED for reader in readers)


def _turned_units(units: Sequence[FloatUnit]) -> list[FloatUnit]:
    """Choose the units that work with channels last: connected ones together."""
    makers = {value: unit for unit in units for value in unit.outputs}
    dequantizers = {node for unit in units for node in unit.dequantizers}
    part = {unit: {unit} for unit in units}
    for unit in units:
        for value in unit.inputs:
            if value in makers and part[makers[value]] is not part[unit]:
                merged = part[makers[value]] | part[unit]
                part |= dict.fromkeys(merged, merged)

    def borders(unit: FloatUnit) -> Iterator[bool]:
        """Yield for each value that others know too whether it has its channels last there."""
        for value in unit.inputs:
            if value not in makers:
                yield _is_conv(value.producer()) or _is_written_turned(value)
        for value in unit.outputs:
            others = [use.node for use in value.uses() if use.node not in dequantizers]
            if others or value.is_graph_output():
                turned = any(_is_conv(node) or _reads_turned(node) for node in others)
                yield turned and not value.is_graph_output()

    def gains(connected: Set[FloatUnit]) -> bool:
        known = [one for unit in connected for one in borders(unit)]
        makers_of = [value.producer() for unit in connected for value in unit.inputs]
        readers = [use.node for unit in connected for y in unit.outputs for use in y.uses()]
        return any(map(_is_conv, [*makers_of, *readers])) and 2 * sum(known) > len(known)

    return [unit for unit in units if gains(part[unit])]


class _Turner:
    """Values in both orders, each turned at most once."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._last: dict[ir.Value, ir.Value] = {}
        self._turns: list[ir.Node] = []

    def turn(self, node: ir.Node) -> None:
        """Make one convolution read and write channels last."""
        planar = {}
        rank = 2 + len(node.attributes.get_ints("kernel_shape"))
        for place, value in _images(node):
            last = self._channels_last(value, node, rank)
            planar[name_of(last)] = name_of(value)
            node.replace_input_with(place, last)
        node.attributes.add(ir.AttrInt64("channels_last", 1))
        output = node.outputs[0]
        name = name_of(output)
        self._turn_output(node, rank)
        planar[name_of(output)] = name
        node.meta[PLANAR] = planar

    def turn_unit(self, unit: FloatUnit) -> None:
        """Make nodes of floats read and write channels last."""
        dequantized: dict[ir.Value, ir.Value] = {}
        for node in unit.nodes:
            for place, value in image_inputs(node):
                maker = value.producer()
                if maker not in unit.dequantizers:
                    continue
                if value not in dequantized:
                    dequantized[value] = self._dequantized(maker, node, unit.rank)
                node.replace_input_with(place, dequantized[value])
            self._name_turned(node.outputs[0], unit.rank)
        remove_unused(unit.dequantizers)
        for node in unit.quantizers:
            self._turn_output(node, unit.rank)

    def remove_unread(self) -> None:
        """Remove the Transposes that nothing but convolutions would have read."""
        remove_unused(self._turns)

    def _dequantized(self, planar: ir.Node, reader: ir.Node, rank: int) -> ir.Value:
        """Dequantize an image with channels last, as a node does with channels first."""
        last = self._channels_last(input_of(planar, 0), planar, rank)
        node = ir.node(
            planar.op_type,
            [last, *planar.inputs[1:]],
            attributes=dict(planar.attributes),
            domain=planar.domain,
            version=planar.version,
            name=self._names.free(f"{planar.name}_channels_last"),
        )
        reader.prepend(node)
        value, output = planar.outputs[0], node.outputs[0]
        output.type, output.shape = value.type, _permuted(value, _last(rank))
        output.name = self._names.free(f"{value.name}_channels_last")
        return output

    def _name_turned(self, value: ir.Value, rank: int) -> None:
        """Give a value the name and the shape that it has with channels last."""
        value.shape = _permuted(value, _last(rank))
        value.name = self._names.free(f"{value.name}_channels_last")

    def _turn_output(self, node: ir.Node, rank: int) -> None:
        """Turn what a node that now has channels last writes, for all that read it."""
        output = node.outputs[0]
        back = ir.node("Transpose", [output], attributes={"perm": _first(rank)})
        name, first = name_of(output), back.outputs[0]
        first.type, first.shape = output.type, output.shape
        for use in list(output.uses()):
            if use.node is not back:
                use.node.replace_input_with(use.idx, first)
        if output.is_graph_output():
            graph = graph_of(node)
            graph.outputs[graph.outputs.index(output)] = first
        self._name_turned(output, rank)
        first.name = name
        back.name = self._names.free(f"{node.name}_channels_first")
        node.append(back)
        self._last[first] = output
        self._turns.append(back)

    def _channels_last(self, value: ir.Value, reader: ir.Node, rank: int) -> ir.Value:
        if value not in self._last:
            perm = _last(rank)
            turn = ir.node("Transpose", [value], attributes={"perm": perm})
            turn.name = self._names.free(f"{value.name}_turn")
            output = turn.outputs[0]
            output.name = self._names.free(f"{value.name}_channels_last")
            output.type, output.shape = value.type, _permuted(value, perm)
            # At once behind its source, since others may read it before this reader.
            maker = value.producer()
            if maker is None:
                graph_of(reader)[0].prepend(turn)
            else:
                maker.append(turn)
            self._last[value] = output
        return self._last[value]


def _last(rank: int) -> list[int]:
    return [0, *range(2, rank), 1]


def _first(rank: int) -> list[int]:
    return [0, rank - 1, *range(1, rank - 1)]


def _permuted(value: ir.Value, perm: Sequence[int]) -> ir.Shape | None:
    sizes = dimensions_of(value)
    return None if sizes is None else ir.Shape([sizes[axis] for axis in perm])
