"""Remove reordering and flattening around linear layers."""

from __future__ import annotations

import math

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
from .nodes import (
    Names,
    constant_of,
    dimensions_of,
    has_no_residual,
    is_condensed_gemm,
    take_output,
)


class UnflattenPass(ir.passes.InPlacePass):
    """Remove the reordering and flattening of rows around linear layers.

    What attention gives, [samples, heads, tokens, depth], torch.nn.MultiheadAttention brings into
    the order tokens, samples before its last layer, and with ``batch_first`` back behind it. A
    linear layer does not care about the order of its rows, so it can be the right one from the
    beginning. Condensed layers take any number of dimensions: what is left of flattening and its
    reverse goes as well, so that a residual sum behind them can become part of the layer.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit the layers in graph order."""
        names, integers, modified = Names(model), Integers(model), False
        for node in list(model.graph.all_nodes()):
            if _works_on_rows(node):
                modified |= _reorder(node, integers) or _unflatten(node, integers, names)
        return ir.passes.PassResult(model, modified=modified)


def _works_on_rows(node: ir.Node) -> bool:
    """Return whether a linear layer treats each row of its input alike."""
    if is_condensed_gemm(node):
        return has_no_residual(node)
    if is_op(node, "MatMul"):
        weight = constant_of(node.inputs[1])
        return weight is not None and weight.ndim == 2
    if not is_op(node, "Gemm") or bool(node.attributes.get_int("transA", 0)):
        return False
    bias = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    return bias is None if len(node.inputs) < 3 else bias is not None and bias.ndim <= 1


def _again(node: ir.Node, x: ir.Value, sizes: list[int | str | None]) -> ir.Node:
    """Build the same layer on another input; its rows have these sizes, if known."""
    new = ir.node(
        node.op_type,
        [x, *node.inputs[1:]],
        dict(node.attributes),
        domain=node.domain,
        name=node.name,
    )
    describe(new.outputs[0], node.outputs[0], sizes)
    return new


def _unflatten(layer: ir.Node, integers: Integers, names: Names) -> bool:
    """Let a condensed layer read the unflattened value, if a later Reshape undoes the flatten."""
    flatten, back = input_of(layer, 0).producer(), only_reader(layer.outputs[0], "Reshape")
    if back is None or not is_condensed_gemm(layer) or not is_op(flatten, "Reshape"):
        return False
    x, result = input_of(flatten, 0), back.outputs[0]
    sizes, wanted = dimensions_of(x), dimensions_of(result)
    if sizes is None or wanted is None:
        return False
    rows, width = wanted[:-1], layer.attributes.get_int("in_features")
    if not _are_rows_of(sizes, rows, width) or not _gives(layer, wanted[-1]):
        return False
    nodes: list[ir.Node] = []
    if len(sizes) != len(wanted):
        shape = integers.get(graph_of(layer), [*[0] * len(rows), width], "rows")
        # Other layers may read the flattened value, so the old node may stay.
        name = names.free(flatten.name) if flatten.name else None
        view = ir.node("Reshape", [x, shape], name=name)
        describe(view.outputs[0], x, [*rows, width])
        nodes.append(view)
        x = view.outputs[0]
    new = _again(layer, x, wanted)
    layer.append([*nodes, new])
    take_output(result, new.outputs[0])
    remove_unused([back])
    return True


def _are_rows_of(sizes: list[int | str | None], rows: list[int | str | None], width: int) -> bool:
    """Whether a value is made of rows of that width, in dimensions of these sizes."""
    inner = [size for size in sizes[len(rows) :] if isinstance(size, int)]
    return (
        len(sizes) > len(rows) > 0
        and same_sizes(sizes[: len(rows)], rows)
        and len(inner) == len(sizes) - len(rows)
        and math.prod(inner) == width
    )


def _gives(layer: ir.Node, features: int | str | None) -> bool:
    sizes = layer.outputs[0].shape
    return isinstance(features, int) and sizes is not None and sizes[-1] == features


def _reorder(layer: ir.Node, integers: Integers) -> bool:
    """Exchange the two dimensions of rows before a layer instead of behind it.

    The pattern is Transpose, Reshape to a matrix, layer, Reshape, Transpose [1, 0, 2]; the first
    Transpose then does the work of both.
    """
    flatten = producer_read_once(input_of(layer, 0), "Reshape")
    back = only_reader(layer.outputs[0], "Reshape")
    if flatten is None or back is None:
        return False
    first = producer_read_once(input_of(flatten, 0), "Transpose")
    last = only_reader(back.outputs[0], "Transpose")
    if first is None or last is None or permutation(last) != [1, 0, 2]:
        return False
    perm, sizes = permutation(first), dimensions_of(first.outputs[0])
    matrix, divided = map(dimensions_of, (flatten.outputs[0], back.outputs[0]))
    if not perm or sizes is None or matrix is None or divided is None or len(matrix) != 2:
        return False
    rows, width = divided[:2], matrix[1]
    if not isinstance(width, int):
        return False
    if not _are_rows_of(sizes, rows, width) or not _gives(layer, divided[2]):
        return False
    swapped = [rows[1], rows[0]]
    condensed = is_condensed_gemm(layer)
    # A zero keeps a size as it is, so that symbols do not have to be computed.
    flat_sizes = [*swapped, width] if condensed else matrix
    flat_shape = [0, 0, width] if condensed else [-1, width]
    result = [*swapped, divided[2]]
    shape = None if condensed else as_reshape(result)
    if shape is None and not condensed:
        return False
    swap = [perm[1], perm[0], *perm[2:]]
    moved = ir.node("Transpose", first.inputs[:1], {"perm": swap}, name=first.name)
    describe(moved.outputs[0], first.outputs[0], [*swapped, *sizes[2:]])
    wanted = integers.get(graph_of(layer), flat_shape, "rows")
    flat = ir.node("Reshape", [moved.outputs[0], wanted], name=flatten.name)
    describe(flat.outputs[0], first.outputs[0], flat_sizes)
    new = _again(layer, flat.outputs[0], [*flat_sizes[:-1], divided[2]])
    nodes = [moved, flat, new]
    if shape is not None:
        wanted = integers.get(graph_of(layer), shape, "rows")
        nodes.append(ir.node("Reshape", [new.outputs[0], wanted], name=back.name))
    last.append(nodes)
    take_output(last.outputs[0], nodes[-1].outputs[0])
    remove_unused([last])
    return True
