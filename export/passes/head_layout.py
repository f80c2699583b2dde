"""Merge the Transposes and Reshapes that bring attention heads to the front."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from .access import graph_of, input_of
from .matching import (
    Integers,
    as_reshape,
    describe,
    is_op,
    only_reader,
    permutation,
    producer_read_once,
    remove_unused,
    same_sizes,
)
from .nodes import dimensions_of, take_output


class OrderHeadsPass(ir.passes.InPlacePass):
    """Replace several Transposes, with Reshapes between them, by a single Transpose.

    torch.nn.MultiheadAttention merges heads and samples into one dimension, changes the order, and
    splits them again; the exporter transposes keys in three dimensions, whose sizes the graph
    computes. ONNX Runtime turns the single Transpose that remains into a flag ("transBatchA" and
    similar) of the product that reads it, so nothing is copied.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Look for the patterns, in the order in which one makes room for the next."""
        integers, modified = Integers(model), False
        rewrites: tuple[tuple[str, Callable[[ir.Node, Integers], bool]], ...] = (
            ("Reshape", _divide_last),
            ("Reshape", _swap_last),
            ("Transpose", _compose),
        )
        for op_type, rewrite in rewrites:
            for node in list(model.graph.all_nodes()):
                if is_op(node, op_type):
                    modified |= rewrite(node, integers)
        return ir.passes.PassResult(model, modified=modified)


def _sandwich(merge: ir.Node, perm: list[int]) -> tuple[ir.Node, ir.Node] | None:
    """Find the Transpose and the Reshape that alone follow a Reshape."""
    transpose = only_reader(merge.outputs[0], "Transpose")
    if transpose is None or permutation(transpose) != perm:
        return None
    part = only_reader(transpose.outputs[0], "Reshape")
    return None if part is None else (transpose, part)


def _divide_last(merge: ir.Node, integers: Integers) -> bool:
    """Turn [L, N, E] -> [L, N*H, D] -> [N*H, L, D] -> [N, H, L, D] into Reshape and Transpose."""
    found = _sandwich(merge, [1, 0, 2])
    if found is None:
        return False
    transpose, part = found
    x, result = input_of(merge, 0), part.outputs[0]
    sizes, merged, order = map(dimensions_of, (x, merge.outputs[0], result))
    if sizes is None or merged is None or order is None or len(sizes) != 3 or len(order) != 4:
        return False
    length, samples, width = sizes
    heads, depth = order[1], order[3]
    if not isinstance(heads, int) or not isinstance(depth, int) or heads * depth != width:
        return False
    if length is None or [merged[0], merged[2]] != [length, depth]:
        return False
    if not same_sizes(order, [samples, heads, length, depth]):
        return False
    divided = [length, samples, heads, depth]
    # A zero keeps a size as it is, however many of them are symbols.
    shape = as_reshape(divided) or [0, 0, heads, depth]
    wanted = integers.get(graph_of(merge), shape, "heads")
    view = ir.node("Reshape", [x, wanted], name=merge.name)
    describe(view.outputs[0], x, divided)
    moved = ir.node("Transpose", view.outputs, {"perm": [1, 2, 0, 3]}, name=transpose.name)
    part.append([view, moved])
    take_output(result, moved.outputs[0])
    remove_unused([part])
    return True


def _swap_last(merge: ir.Node, integers: Integers) -> bool:  # noqa: ARG001
    """Turn [..., L, D] -> [?, L, D] -> [?, D, L] -> [..., D, L] into a Transpose."""
    found = _sandwich(merge, [0, 2, 1])
    if found is None:
        return False
    transpose, part = found
    x, result = input_of(merge, 0), part.outputs[0]
    sizes, merged, order = map(dimensions_of, (x, merge.outputs[0], result))
    if sizes is None or order is None or merged is None or len(sizes) < 3 or len(merged) != 3:
        return False
    *outer, rows, columns = sizes
    if rows is None or columns is None or merged[1:] != [rows, columns]:
        return False
    if not same_sizes(order, [*outer, columns, rows]):
        return False
    rank = len(sizes)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    moved = ir.node("Transpose", [x], {"perm": perm}, name=transpose.name)
    part.append(moved)
    take_output(result, moved.outputs[0])
    remove_unused([part])
    return True


def _compose(second: ir.Node, integers: Integers) -> bool:  # noqa: ARG001
    """Turn a Transpose of a Transpose into one."""
    first = producer_read_once(input_of(second, 0), "Transpose")
    if first is None:
        return False
    inner, outer = permutation(first), permutation(second)
    if not inner or not outer:
        return False
    second.attributes.add(ir.AttrInt64s("perm", [inner[place] for place in outer]))
    second.replace_input_with(0, first.inputs[0])
    remove_unused([first])
    return True
