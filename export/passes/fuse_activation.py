"""Clipping activations become the clip of the condensed node before them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from ..onnx_schema import CONDENSED_GEMM, DOMAIN


@dataclass
class FuseResult(ir.passes.PassResult):
    """A pass result that also lists what was fused.

    Attributes:
        fused: one line for every activation that is gone.

    """

    fused: list[str] = field(default_factory=list)


class FuseActivationPass(ir.passes.InPlacePass):
    """Fuse Relu, and Clip with constant bounds, into the condensed node that feeds it.

    ONNX Runtime fuses nothing into a custom op, so every activation left behind costs a pass over
    memory. Fused are those whose input has no other reader and is not an output of the graph.
    A NaN stays a NaN, as in torch. Saturations compose: a bound that the node has already is itself
    clipped by the new one.
    """

    def call(self, model: ir.Model) -> FuseResult:
        """Fuse until nothing more can be fused."""
        fused = []
        for node in list(model.graph):
            bounds = _bounds(node)
            producer = node.inputs[0].producer() if bounds and node.inputs[0] else None
            if producer is None or not _takes_over(producer, node):
                continue
            _clip(producer, *bounds)
            _bypass(node)
            fused.append(f"{node.op_type} into {producer.name}")
        return FuseResult(model, modified=bool(fused), fused=fused)


def _bounds(node: ir.Node) -> tuple[float, float] | None:
    """Read the bounds of a clipping activation; None for other nodes and unknown bounds."""
    if node.domain != "":
        return None
    if node.op_type == "Relu":
        return 0.0, math.inf
    if node.op_type != "Clip":
        return None
    low = _scalar(node, 1, -math.inf)
    high = _scalar(node, 2, math.inf)
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return None
    return low, high


def _scalar(node: ir.Node, position: int, default: float) -> float | None:
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None:
        return default
    if value.is_graph_input():
        return None
    constant = ir.convenience.get_const_tensor(value)
    return None if constant is None else float(constant.numpy())


def _takes_over(producer: ir.Node, activation: ir.Node) -> bool:
    output = activation.inputs[0]
    return (
        (producer.domain, producer.op_type) == (DOMAIN, CONDENSED_GEMM)
        and not output.is_graph_output()
        and len(output.uses()) == 1
    )


def _clip(producer: ir.Node, low: float, high: float) -> None:
    old = {name: producer.attributes.get_float(name) for name in ("clip_min", "clip_max")}
    for name, bound in old.items():
        producer.attributes.add(ir.AttrFloat32(name, min(max(bound, low), high)))


def _bypass(activation: ir.Node) -> None:
    """Let the producer's output stand for the activation's, under the activation's name."""
    before, after = activation.inputs[0], activation.outputs[0]
    ir.convenience.replace_all_uses_with(after, before, replace_graph_outputs=True)
    name = after.name
    activation.graph.remove(activation, safe=True)
    before.name = name
