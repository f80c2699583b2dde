"""Fuse activations that clip or gate into the condensed node before them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ...ort_ops.contract import HARD_SWISH, OPEN_GATE
from .access import input_of, remove_node
from .nodes import adds_floats, clip_of, gate_of, is_condensed_conv, layer_name
from .result_pass import FuseResult, ResultPass


class FuseActivationPass(ResultPass[FuseResult]):
    """Fuse activations that saturate or gate into the condensed node that feeds them.

    These are Relu, and Clip, Max and Min with constant scalars (torch writes clamp with one bound
    as Max); into a convolution also HardSwish, written as one node or as x * HardSigmoid(x). ONNX
    Runtime fuses nothing into a custom op, so every activation left behind costs a pass over
    memory. Fused are those whose input has no other reader and is no output of the graph. A NaN
    stays a NaN, as in torch. Saturations compose: a bound that the node has already is itself
    clipped by the new one.
    """

    def call(self, model: ir.Model) -> FuseResult:
        """Visit the graph once, in order, so that a chain of activations is fused whole."""
        fused: list[str] = []
        for node in list(model.graph.all_nodes()):
            if _fuse_gate(node, fused):
                continue
            activation = saturation(node)
            if activation is None:
                continue
            producer = activation.input.producer()
            if producer is None or not _takes_over(producer, activation.input):
                continue
            _clip(producer, activation.low, activation.high)
            _bypass(node, activation.input)
            fused.append(f"{node.op_type} into {layer_name(producer)}")
        return FuseResult(model, modified=bool(fused), fused=fused)


@dataclass(frozen=True)
class Saturation:
    """``min(max(input, low), high)``."""

    input: ir.Value
    low: float
    high: float


def saturation(node: ir.Node) -> Saturation | None:
    """Read a node as a saturation; None for other nodes and for bounds that are not known."""
    if node.domain != "" or not node.inputs or node.inputs[0] is None:
        return None
    first = node.inputs[0]
    low: float | None = -math.inf
    high: float | None = math.inf
    match node.op_type, len(node.inputs):
        case "Relu", _:
            low = 0.0
        case "Clip", count:
            low = _scalar(node.inputs[1], low) if count > 1 else low
            high = _scalar(node.inputs[2], high) if count > 2 else high
        case (("Max" | "Min"), 2):
            if _scalar(first) is not None:
                first, bound = input_of(node, 1), _scalar(first)
            else:
                bound = _scalar(node.inputs[1])
            low, high = (bound, high) if node.op_type == "Max" else (low, bound)
        case _:
            return None
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return None
    return Saturation(first, low, high)


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
    return (
        adds_floats(producer)
        and gate_of(producer) == OPEN_GATE
        and not value.is_graph_output()
        and len(value.uses()) == 1
    )


def _fuse_gate(node: ir.Node, fused: list[str]) -> bool:
    """Fuse HardSwish, or the Mul of x and HardSigmoid(x), into the convolution that gives x."""
    found = _gate(node)
    if found is None:
        return False
    value, gate, beside = found
    producer = value.producer()
    if producer is None or not is_condensed_conv(producer) or gate_of(producer) != OPEN_GATE:
        return False
    readers = {id(use.node) for use in value.uses()}
    if value.is_graph_output() or readers != {id(node), *map(id, beside)}:
        return False
    for name, number in zip(("gate_scale", "gate_shift"), gate, strict=True):
        producer.attributes.add(ir.AttrFloat32(name, number))
    _bypass(node, value, beside)
    fused.append(f"HardSwish into {layer_name(producer)}")
    return True


def _gate(node: ir.Node) -> tuple[ir.Value, tuple[float, float], list[ir.Node]] | None:
    """Read x, gate_scale and gate_shift, and what else is gone when the gate is."""
    if node.domain != "":
        return None
    if node.op_type == "HardSwish":
        return input_of(node, 0), HARD_SWISH, []
    if node.op_type != "Mul":
        return None
    for position in (0, 1):
        x, share = input_of(node, 1 - position), input_of(node, position).producer()
        if share is None or (share.domain, share.op_type) != ("", "HardSigmoid"):
            continue
        output = share.outputs[0]
        if share.inputs[0] is not x or output.is_graph_output():
            continue
        if len(output.uses()) == 1:
            scale = share.attributes.get_float("alpha", 0.2)
            return x, (scale, share.attributes.get_float("beta", 0.5)), [share]
    return None


def _clip(producer: ir.Node, low: float, high: float) -> None:
    for name, before in zip(("clip_min", "clip_max"), clip_of(producer), strict=True):
        bound = min(max(before, low), high)
        producer.attributes.add(ir.AttrFloat32(name, bound))


def _bypass(activation: ir.Node, before: ir.Value, beside: Sequence[ir.Node] = ()) -> None:
    """Replace the activation's output by the producer's, under the activation's name.

    ``beside`` are nodes that only the activation reads.
    """
    after = activation.outputs[0]
    ir.convenience.replace_all_uses_with(after, before, replace_graph_outputs=True)
    before.type = before.type or after.type
    before.shape = before.shape or after.shape
    name = after.name
    remove_node(activation)
    for node in beside:
        remove_node(node)
    before.name = name
