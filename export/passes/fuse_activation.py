"""Clipping activations become the clip of the condensed node before them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from .nodes import is_condensed


@dataclass
class FuseResult(ir.passes.PassResult):
    """A pass result that also lists what was fused.

    Attributes:
        fused: one line for every activation that is gone.

    """

    fused: list[str] = field(default_factory=list)


class FuseActivationPass(ir.passes.InPlacePass):
    """Fuse activations that saturate into the condensed node that feeds them.

    These are Relu, and Clip, Max and Min with constant scalars (torch writes clamp with one bound
    as Max). ONNX Runtime fuses nothing into a custom op, so every activation left behind costs a
    pass over memory. Fused are those whose input has no other reader and is no output of the graph.
    A NaN stays a NaN, as in torch. Saturations compose: a bound that the node has already is itself
    clipped by the new one.
    """

    def call(self, model: ir.Model) -> FuseResult:
        """Go through the graph once; a chain fuses from its start, so that it goes whole."""
        fused = []
        for node in list(model.graph.all_nodes()):
            activation = _saturation(node)
            producer = activation.input.producer() if activation else None
            if producer is None or not _takes_over(producer, activation.input):
                continue
            _clip(producer, activation.low, activation.high)
            _bypass(node, activation.input)
            fused.append(f"{node.op_type} into {producer.name}")
        return FuseResult(model, modified=bool(fused), fused=fused)


@dataclass(frozen=True)
class _Saturation:
    """``min(max(input, low), high)``."""

    input: ir.Value
    low: float
    high: float


def _saturation(node: ir.Node) -> _Saturation | None:
    """Read a node as a saturation; None for other nodes and for bounds that are not known."""
    if node.domain != "" or not node.inputs or node.inputs[0] is None:
        return None
    first = node.inputs[0]
    low, high = -math.inf, math.inf
    match node.op_type, len(node.inputs):
        case "Relu", _:
            low = 0.0
        case "Clip", count:
            low = _scalar(node.inputs[1], low) if count > 1 else low
            high = _scalar(node.inputs[2], high) if count > 2 else high
        case (("Max" | "Min"), 2):
            if _scalar(first) is not None:
                first, bound = node.inputs[1], _scalar(first)
            else:
                bound = _scalar(node.inputs[1])
            low, high = (bound, high) if node.op_type == "Max" else (low, bound)
        case _:
            return None
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return None
    return _Saturation(first, low, high)


def _scalar(value: ir.Value | None, absent: float | None = None) -> float | None:
    """Read a constant of one element, which cannot change the shape; None if it is not one."""
    if value is None:
        return absent
    if value.is_graph_input():
        return None
    constant = ir.convenience.get_const_tensor(value)
    if constant is None or constant.size != 1 or len(constant.shape) > 1:
        return None
    return float(constant.numpy().item())


def _takes_over(producer: ir.Node, value: ir.Value) -> bool:
    return is_condensed(producer) and not value.is_graph_output() and len(value.uses()) == 1


def _clip(producer: ir.Node, low: float, high: float) -> None:
    for name in ("clip_min", "clip_max"):
        bound = min(max(producer.attributes.get_float(name), low), high)
        producer.attributes.add(ir.AttrFloat32(name, bound))


def _bypass(activation: ir.Node, before: ir.Value) -> None:
    """Let the producer's output stand for the activation's, under the activation's name."""
    after = activation.outputs[0]
    ir.convenience.replace_all_uses_with(after, before, replace_graph_outputs=True)
    before.type = before.type or after.type
    before.shape = before.shape or after.shape
    name = after.name
    activation.graph.remove(activation, safe=True)
    before.name = name
