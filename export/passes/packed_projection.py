"""Split a packed projection into query, key and value without copying it around."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from .access import graph_of, input_of, remove_node
from .matching import (
    Integers,
    constant_integers,
    describe,
    is_op,
    only_reader,
    permutation,
    same_sizes,
)
from .nodes import Names, constant_of, dimensions_of, take_output
from .result_pass import ResultPass

_PARTS_FIRST = [3, 1, 2, 0, 4]
"""perm of the Transpose that brings the parts, unpacked to dimension 3 of 5, to the front."""


@dataclass
class SplitProjectionResult(ir.passes.PassResult):
    """A pass result that also lists the Splits that are new."""

    splits: list[ir.Node] = field(default_factory=list)


class SplitProjectionPass(ResultPass[SplitProjectionResult]):
    """Turn Reshape, Unsqueeze, Transpose, Squeeze and Gathers into one Split.

    So torch.nn.MultiheadAttention takes query, key and value (key and value alone where the query
    is another tensor) apart: it gives each a place along a new first dimension, which copies all of
    them, and takes one after the other from there, which copies them again.
    """

    def call(self, model: ir.Model) -> SplitProjectionResult:
        """Look for the pattern behind every Reshape."""
        names, integers = Names(model), Integers(model)
        found = [
            _split(node, integers, names)
            for node in list(model.graph.all_nodes())
            if is_op(node, "Reshape")
        ]
        splits = [split for split in found if split is not None]
        return SplitProjectionResult(model, modified=bool(splits), splits=splits)


def _split(view: ir.Node, integers: Integers, names: Names) -> ir.Node | None:
    packed = input_of(view, 0)
    sizes, unpacked = dimensions_of(packed), dimensions_of(view.outputs[0])
    if sizes is None or unpacked is None or len(sizes) != 3 or len(unpacked) != 4:
        return None
    count, width = unpacked[2:]
    if not isinstance(count, int) or not isinstance(width, int):
        return None
    if not same_sizes([*unpacked[:2], count * width], sizes):
        return None
    unsqueeze = only_reader(view.outputs[0], "Unsqueeze")
    if unsqueeze is None or constant_integers(unsqueeze.inputs[1]) != [0]:
        return None
    transpose = only_reader(unsqueeze.outputs[0], "Transpose")
    if transpose is None or permutation(transpose) != _PARTS_FIRST:
        return None
    squeeze = only_reader(transpose.outputs[0], "Squeeze")
    if squeeze is None or len(squeeze.inputs) < 2:
        return None
    if constant_integers(squeeze.inputs[1]) not in ([-2], [3]):
        return None
    gathers = _gathers(squeeze, count)
    if gathers is None:
        return None
    lengths = integers.get(graph_of(view), [width] * count, "split")
    name = names.free(f"{view.name or packed.name}.split")
    split = ir.node("Split", [packed, lengths], {"axis": -1}, num_outputs=count, name=name)
    view.append(split)
    for place, part in enumerate(split.outputs):
        describe(part, packed, [*sizes[:2], width])
        if place in gathers:
            take_output(gathers[place].outputs[0], part)
    for node in (*gathers.values(), squeeze, transpose, unsqueeze, view):
        remove_node(node)
    return split


def _gathers(squeeze: ir.Node, count: int) -> dict[int, ir.Node] | None:
    """Find the Gather of each part; None where anything else reads the parts."""
    found: dict[int, ir.Node] = {}
    parts = squeeze.outputs[0]
    for node, position in parts.uses():
        beside = node.graph is squeeze.graph and position == 0
        if not beside or not is_op(node, "Gather") or node.attributes.get_int("axis", 0) != 0:
            return None
        index = constant_of(node.inputs[1])
        if (
            index is None
            or index.ndim
            or not -count <= index < count
            or int(index) % count in found
        ):
            return None
        found[int(index) % count] = node
    return None if parts.is_graph_output() else found
