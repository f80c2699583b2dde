"""Outputs of which a small number is as inexact as a large one."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

SIGMOID_SCALE = 0.1
"""Least scale of an output that Sigmoid makes. Runtimes compute it around 1/2, so that an output of
1e-4 is off by as much as one of 0.5, which is 2e-7 in ONNX Runtime."""

_KEEPING = {
    "Concat",
    "Flatten",
    "Identity",
    "ReduceMean",
    "Reshape",
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
}
"""Operators whose results are entries of their first input, or means of some."""


def least_scales(model: onnx.ModelProto) -> tuple[float, ...]:
    """Return, for each output of a model, what its differences are a share of at least."""
    makers = _makers(model.graph)
    return tuple(
        SIGMOID_SCALE if _is_of_sigmoid(output.name, makers) else 0.0
        for output in model.graph.output
    )


def _makers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in graph.node for name in node.output if name}


def _is_of_sigmoid(name: str, makers: Mapping[str, onnx.NodeProto]) -> bool:
    seen = set()
    waiting = [(name, makers)]
    while waiting:
        name, makers = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        node = makers.get(name)
        if node is None:
            return False
        if node.op_type == "If":
            at = list(node.output).index(name)
            branches = [one.g for one in node.attribute if one.HasField("g")]
            waiting += [(one.output[at].name, {**makers, **_makers(one)}) for one in branches]
        elif node.op_type in _KEEPING:
            inputs = node.input if node.op_type == "Concat" else node.input[:1]
            waiting += [(one, makers) for one in inputs]
        elif node.op_type != "Sigmoid":
            return False
    return True
