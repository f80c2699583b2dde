"""Ablated neurons leave the graph: their constant goes into the bias of the layers that read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.condensed import CondensedWeight
from .access import graph_of, input_of, name_of
from .elementwise import Region, find_region, take_features
from .linear_layer import read_linear
from .nodes import (
    Names,
    add_constant,
    adds_nothing,
    array_of,
    clip_of,
    condensed_nodes,
    constant_of,
    is_condensed,
    is_condensed_gemm,
    layer_name,
    read_constant_weight,
    read_weight,
    set_weight,
)
from .result_pass import ResultPass


@dataclass
class FoldResult(ir.passes.PassResult):
    """A pass result that also says what was folded.

    Attributes:
        folded: one line for each layer that lost its ablated neurons.
        kept: one line for each layer that keeps them, with the reason.

    """

    folded: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


class FoldAblatedPass(ResultPass[FoldResult]):
    """Drop the ablated neurons of a condensed node where only element-wise nodes follow.

    An ablated neuron is its bias b, clipped, whatever the input is. If nothing but element-wise
    nodes f stand between it and the next MatMul, Gemm or condensed nodes, then these see f(b):
    their weight on it times f(b) goes into their bias, in float64, and the columns go.
    Several layers may read the value. It stays whole where anything else reads it: a residual add,
    a norm over features, concat, reshape, an output of the model, a branch.

    Outputs stay the same to rounding for finite inputs. A neuron whose f(b) is not finite is not
    folded. Without the library a NaN of X no longer passes through a folded neuron.
    """

    def call(self, model: ir.Model) -> FoldResult:
        """Go through the condensed nodes in graph order, so that folds add up along a chain."""
        names = Names(model)
        folded, kept = [], []
        for node in filter(is_condensed_gemm, condensed_nodes(model)):
            weight = read_weight(node)
            if weight is None or weight.active == weight.out_features:
                continue
            count = weight.out_features - weight.active
            reason = _fold(node, weight, names)
            if reason is None:
                folded.append(f"{count} ablated neurons of {layer_name(node)}")
            else:
                kept.append(f"{count} ablated neurons of {layer_name(node)}: {reason}")
        return FoldResult(model, modified=bool(folded), folded=folded, kept=kept)


def _fold(node: ir.Node, weight: CondensedWeight, names: Names) -> str | None:
    """Fold one node; returns the reason why not."""
    if not adds_nothing(node):
        return "a residual is added to it"
    if weight.active == 0:
        return "it has no other neuron"
    if input_of(node, 5).dtype != ir.DataType.FLOAT:
        return "it computes in half precision"
    region = find_region(node.outputs[0])
    if region.obstacle is not None:
        return region.obstacle
    ablated = np.ones(weight.out_features, bool)
    ablated[weight.rows] = False
    gone = np.flatnonzero(ablated)
    constants = np.clip(weight.bias[gone].astype(np.float64), *clip_of(node))
    found = region.constants_at(constants, gone)
    if not all(np.isfinite(array).all() for array in found.values()):
        return "what follows is not finite on them"
    for sink, value in region.sinks:
        if is_condensed(sink):
            narrow_condensed(sink, weight.rows, gone, found[name_of(value)], names)
        else:
            narrow_dense(sink, weight.rows, gone, found[name_of(value)], names)
    _narrow_region(region, weight.rows, names)
    compact = replace(
        weight,
        rows=np.arange(weight.active, dtype=np.int32),
        bias=weight.bias[weight.rows],
        out_features=weight.active,
    )
    set_weight(node, compact, names)
    for value in _values(region):
        value.shape = ir.Shape([*value.shape[:-1], weight.active]) if value.shape else None
    return None


def _values(region: Region) -> Iterable[ir.Value]:
    return (region.source, *(node.outputs[0] for node in region.nodes))


def _narrow_region(region: Region, keep: np.ndarray, names: Names) -> None:
    """Give element-wise nodes the part of their constants that belongs to the kept features."""
    for node in region.nodes:
        for position, value in enumerate(node.inputs):
            array = constant_of(value)
            if value is None or array is None:
                continue
            part = take_features(array, keep, region.width)
            if part is not array:
                narrow = add_constant(graph_of(node), names.free(f"{value.name}.active"), part)
                node.replace_input_with(position, narrow)


def narrow_condensed(
    sink: ir.Node, keep: np.ndarray, gone: np.ndarray, constants: np.ndarray, names: Names
) -> None:
    """Take columns that are constant out of a condensed node, into its bias."""
    weight = read_constant_weight(sink)
    entry = weight.is_entry()
    stored, slot = np.nonzero(entry)
    columns = weight.indices[stored, slot].astype(np.int64)
    values = weight.values[stored, slot]
    at = np.full(weight.in_features, -1, np.int64)
    at[keep] = np.arange(len(keep))
    value_of = np.zeros(weight.in_features)
    value_of[gone] = constants
    bias = weight.bias.astype(np.float64)
    np.add.at(bias, weight.rows[stored], values.astype(np.float64) * value_of[columns])
    remain = at[columns] >= 0
    narrow = CondensedWeight.from_entries(
        weight.rows[stored[remain]],
        at[columns[remain]],
        values[remain],
        bias=bias.astype(np.float32),
        in_features=len(keep),
    )
    set_weight(sink, narrow, names)


def narrow_dense(
    sink: ir.Node, keep: np.ndarray, gone: np.ndarray, constants: np.ndarray, names: Names
) -> None:
    """Take features that are constant out of a MatMul or Gemm, into its bias."""
    stored_in, graph = input_of(sink, 1), graph_of(sink)
    trans_b = sink.op_type == "Gemm" and bool(sink.attributes.get_int("transB", 0))
    array = array_of(stored_in)
    weight = array if trans_b else array.T
    layer = read_linear(sink, weight.shape[0], 23)
    shift = layer.alpha * (weight[:, gone].astype(np.float64) @ constants)
    narrow = weight[:, keep]
    sink.replace_input_with(
        1,
        add_constant(
            graph,
            names.free(f"{stored_in.name}.active"),
            narrow if trans_b else np.ascontiguousarray(narrow.T),
        ),
    )
    if not shift.any():
        return
    bias = layer.bias(weight.shape[0])
    total = (shift if bias is None else shift + bias).astype(np.float32)
    if sink.op_type == "Gemm" and layer.addend is None and layer.beta in (0.0, 1.0):
        sink.attributes.add(ir.AttrFloat32("beta", 1.0))
        _set_input(sink, 2, add_constant(graph, names.free(f"{sink.name}.bias"), total))
    elif layer.add is not None:
        position = 1 - layer.add.inputs.index(sink.outputs[0])
        name = names.free(f"{layer.add.name}.bias")
        layer.add.replace_input_with(position, add_constant(graph, name, total))
    else:
        _add_after(sink, shift.astype(np.float32), names)


def _set_input(node: ir.Node, position: int, value: ir.Value) -> None:
    if len(node.inputs) <= position:
        node.resize_inputs(position + 1)
    node.replace_input_with(position, value)


def _add_after(sink: ir.Node, shift: np.ndarray, names: Names) -> None:
    old, graph = sink.outputs[0], graph_of(sink)
    name = old.name
    constant = add_constant(graph, names.free(f"{sink.name}.shift"), shift)
    add = ir.node("Add", [old, constant], name=names.free(f"{sink.name}_shift"))
    sink.append(add)
    new = add.outputs[0]
    new.type, new.shape = old.type, old.shape
    for use in [u for u in old.uses() if u.node is not add]:
        use.node.replace_input_with(use.idx, new)
    outputs = graph.outputs
    for position, value in enumerate(outputs):
        if value is old:
            outputs[position] = new
    old.name = names.free(f"{name}_unshifted")
    new.name = name
