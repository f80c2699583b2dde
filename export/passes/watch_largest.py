"""The largest number that each value of a graph takes, as outputs of the graph in its place."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from .nodes import Names, add_constant
from .result_pass import ResultPass

INFINITE = 1e7
"""Numbers from here on stand for infinity: masks of attention add -1e9, or the lowest number."""


@dataclass
class WatchedResult(ir.passes.PassResult):
    """A pass result with what each output of the graph is the largest number of, in order.

    Attributes:
        watched: names of values, and the nodes that compute them.

    """

    watched: list[tuple[str, str]] = field(default_factory=list)


class WatchLargestPass(ResultPass[WatchedResult]):
    """Replace the outputs of a float32 graph by one number for each of its values.

    It is the largest magnitude of those under :data:`INFINITE`. Values inside branches and loops
    are not watched.
    """

    def call(self, model: ir.Model) -> WatchedResult:
        """Add nodes behind every node."""
        names, graph = Names(model), model.graph
        limit = add_constant(graph, names.free("infinite"), np.array(INFINITE, np.float32))
        zero = add_constant(graph, names.free("zero"), np.array(0, np.float32))
        watched: list[tuple[str, str]] = []
        outputs: list[ir.Value] = []
        for node in list(graph):
            for value in node.outputs:
                if value.dtype != ir.DataType.FLOAT or not value.name:
                    continue
                made = _largest_of(value, limit, zero, names)
                graph.extend(made)
                made[-1].outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
                outputs.append(made[-1].outputs[0])
                watched.append((value.name, f"{node.op_type} {(node.name or value.name)!r}"))
        graph.outputs.clear()
        graph.outputs.extend(outputs)
        return WatchedResult(model, modified=True, watched=watched)


def _largest_of(value: ir.Value, limit: ir.Value, zero: ir.Value, names: Names) -> list[ir.Node]:
    made: list[ir.Node] = []

    def add(op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        name = names.free(f"{value.name}_{op_type.lower()}")
        node = ir.node(op_type, inputs, attributes=attributes, name=name)
        node.outputs[0].name = name
        made.append(node)
        return node.outputs[0]

    size = add("Abs", value)
    add("ReduceMax", add("Where", add("Less", size, limit), size, zero), keepdims=0)
    return made
