"""The precision in which a file computes each of its outputs, whatever type the output has."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx

from .node_order import reads
from .onnx_reading import graphs_inside, graphs_of

_HALVES = {onnx.TensorProto.FLOAT16: "float16", onnx.TensorProto.BFLOAT16: "bfloat16"}
_COARSEST = ("bfloat16", "float16")


def output_precisions(model: onnx.ModelProto) -> tuple[str, ...]:
    """Say for each output whether something on its way is rounded to half precision.

    A graph in float16 between two Casts, as converters write it, gives float32 that is as exact as
    float16. Constants that are stored so are exact.

    Args:
        model: with sorted nodes.

    Returns:
        "float32", "float16" or "bfloat16" for each; the coarsest that there is.

    """
    rounded = {
        value.name: kind
        for value in model.graph.input
        if (kind := _HALVES.get(value.type.tensor_type.elem_type))
    }
    bodies = {(body.domain, body.name): body for body in model.functions}
    constants = _constants(model)
    halves = {
        tensor.name: _HALVES[tensor.data_type]
        for graph in graphs_of(model.graph)
        for tensor in graph.initializer
        if tensor.data_type in _HALVES
    }
    for node in model.graph.node:
        if all(name in constants for name in node.output):
            continue
        body = bodies.get((node.domain, node.op_type))
        inner = [*graphs_inside([node]), *(graphs_inside(body.node) if body else ())]
        nodes = [node, *(body.node if body else ()), *(n for g in inner for n in g.node)]
        kinds = [rounded.get(name) or halves.get(name) for name in reads(node)]
        kinds += [_cast(one) for one in nodes]
        coarsest = _coarsest(kinds)
        if coarsest is not None:
            rounded |= dict.fromkeys(filter(None, node.output), coarsest)
    return tuple(rounded.get(value.name, "float32") for value in model.graph.output)


def _cast(node: onnx.NodeProto) -> str | None:
    if node.op_type != "Cast" or node.domain != "":
        return None
    return next((_HALVES.get(a.i) for a in node.attribute if a.name == "to"), None)


def _coarsest(kinds: Iterable[str | None]) -> str | None:
    there = set(kinds)
    return next((kind for kind in _COARSEST if kind in there), None)


def _constants(model: onnx.ModelProto) -> Collection[str]:
    """Collect what is stored or computed from what is stored; a caller may replace no input."""
    given = {value.name for value in model.graph.input}
    known = {tensor.name for tensor in model.graph.initializer} - given
    for node in model.graph.node:
        names = list(reads(node))
        if (names or node.op_type == "Constant") and all(n in known for n in names if n):
            known.update(node.output)
    return known
