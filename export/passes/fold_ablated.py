"""Ablated neurons and filters leave the graph: their constants move into the layers after them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.condensed import CondensedWeight
from .access import graph_of, input_of
from .conv_layer import is_conv
from .linear_layer import read_linear
from .nodes import (
    Names,
    add_constant,
    array_of,
    clip_of,
    condensed_nodes,
    has_no_residual,
    is_condensed,
    is_condensed_conv,
    layer_name,
    read_constant_weight,
    read_geometry,
    read_weight,
    set_weight,
    take_output,
)
from .region import Region, Sink, find_region
from .result_pass import ResultPass


@dataclass
class FoldResult(ir.passes.PassResult):
    """A pass result that also says what was folded.

    Attributes:
        folded: one line for each layer that lost ablated neurons or filters.
        kept: one line for each layer that keeps some, with the reason.

    """

    folded: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


class FoldAblatedPass(ResultPass[FoldResult]):
    """Remove the ablated outputs of condensed nodes where nothing mixes outputs after them.

    An ablated neuron is its bias b, clipped, whatever the input is; the channel of an ablated
    filter is that at every pixel. Nodes f that work on each output alone (activations,
    BatchNormalization, constants for each output, pooling) leave it constant. The next Conv,
    MatMul, Gemm or condensed node then sees f(b) in all of its taps: the sum of its weights on it
    times f(b) goes into its bias, in float64, and its columns go.

    Where that layer pads with zeros the sum differs at the border, so a channel is folded only if
    f(b) is 0, as after a ReLU of b <= 0; the same holds for an average that counts padding. An
    output whose f(b) is not finite is not folded. All outputs of a layer stay where anything else
    reads them: a residual add, a norm over features, concat, a reshape that mixes them, a
    convolution with groups, an output of the model, a branch.

    Outputs stay the same to rounding for finite inputs. Without the library a NaN of X no longer
    passes through a folded neuron.
    """

    def call(self, model: ir.Model) -> FoldResult:
        """Visit the condensed nodes in graph order, so that folds add up along a chain."""
        names = Names(model)
        result = FoldResult(model, modified=False)
        for node in condensed_nodes(model):
            weight = read_weight(node)
            if weight is None or weight.active == weight.out_features:
                continue
            count = weight.out_features - weight.active
            gone, reason = _fold(node, weight, names)
            what = f"ablated {_noun(node)}s of {layer_name(node)}"
            if gone:
                result.modified = True
                result.folded.append(f"{gone} {what}")
            if gone < count:
                result.kept.append(f"{count - gone} {what}: {reason}")
        return result


def _noun(node: ir.Node) -> str:
    return "filter" if is_condensed_conv(node) else "neuron"


def _fold(node: ir.Node, weight: CondensedWeight, names: Names) -> tuple[int, str]:
    """Fold one node; returns how many outputs are gone, and why the others are not."""
    if not has_no_residual(node):
        return 0, "a residual is added to it"
    if weight.active == 0:
        return 0, f"it has no other {_noun(node)}"
    if input_of(node, 5).dtype != ir.DataType.FLOAT:
        return 0, "it does not compute in float32"
    if is_condensed_conv(node) and read_geometry(node).group != 1:
        return 0, "it has groups"
    region = find_region(node.outputs[0])
    if region.obstacle is not None:
        return 0, region.obstacle
    ablated = np.ones(weight.out_features, bool)
    ablated[weight.rows] = False
    candidates = np.flatnonzero(ablated)
    constants = np.clip(weight.bias[candidates].astype(np.float64), *clip_of(node))
    found = region.constants_at(constants, candidates)
    fits, reason = _foldable(region, found, len(candidates))
    if not fits.any():
        return 0, reason
    gone = candidates[fits]
    ablated[candidates[~fits]] = False
    keep = np.flatnonzero(~ablated)
    for sink in region.sinks:
        _narrow_sink(region, sink, keep, gone, found[id(sink.value)][fits], names)
    _narrow_steps(region, keep, names)
    compact = replace(
        weight,
        rows=np.searchsorted(keep, weight.rows).astype(np.int32),
        bias=weight.bias[keep],
        out_features=len(keep),
    )
    set_weight(node, compact, names)
    for value in region.values:
        if value.shape is not None:
            layout, sizes = region.layouts[id(value)], list(value.shape)
            sizes[layout.axis] = len(keep) * layout.block
            value.shape = ir.Shape(sizes)
    return len(gone), reason


def _foldable(region: Region, found: dict[int, np.ndarray], count: int) -> tuple[np.ndarray, str]:
    """Find which constant outputs can be removed: bool ``[count]``, and why the others cannot."""
    fits, reasons = np.ones(count, bool), []
    finite = np.all([np.isfinite(array).all(axis=1) for array in found.values()], axis=0)
    if not finite.all():
        reasons.append("what follows is not finite on them")
        fits &= finite
    readers = [(s.node, id(s.node.inputs[0])) for s in region.steps if s.only_zero]
    readers += [(s.node, id(s.value)) for s in region.sinks if s.only_zero]
    for node, value in readers:
        zero = (found[value] == 0).all(axis=1)
        if (fits & ~zero).any():
            reasons.append(f"{layer_name(node)} pads, and they are not 0 there")
        fits &= zero
    return fits, "; ".join(reasons)


def _narrow_sink(
    region: Region,
    sink: Sink,
    keep: np.ndarray,
    gone: np.ndarray,
    constants: np.ndarray,
    names: Names,
) -> None:
    """Remove the outputs from a layer that reads them; ``constants`` are ``[gone, block]``."""
    kept, left = (region.entries(sink.value, outputs) for outputs in (keep, gone))
    constants = constants.reshape(-1)
    if is_conv(sink.node):
        _narrow_conv(sink.node, kept, left, constants, names)
        return
    taps = np.arange(sink.taps)
    kept, left = ((e[:, None] * sink.taps + taps).reshape(-1) for e in (kept, left))
    narrow = _narrow_condensed if is_condensed(sink.node) else _narrow_linear
    narrow(sink.node, kept, left, np.repeat(constants, sink.taps), names)


def _narrow_condensed(
    node: ir.Node, keep: np.ndarray, gone: np.ndarray, constants: np.ndarray, names: Names
) -> None:
    weight = read_constant_weight(node)
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
    set_weight(node, narrow, names)


def _narrow_linear(
    node: ir.Node, keep: np.ndarray, gone: np.ndarray, constants: np.ndarray, names: Names
) -> None:
    stored_in, graph = input_of(node, 1), graph_of(node)
    trans_b = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
    array = array_of(stored_in)
    weight = array if trans_b else array.T
    layer = read_linear(node, weight.shape[0], 23)
    shift = layer.alpha * (weight[:, gone].astype(np.float64) @ constants)
    narrow = weight[:, keep] if trans_b else np.ascontiguousarray(weight[:, keep].T)
    node.replace_input_with(1, add_constant(graph, names.free(f"{stored_in.name}.active"), narrow))
    if not shift.any():
        return
    bias = layer.bias(weight.shape[0])
    total = (shift if bias is None else shift + bias).astype(np.float32)
    if node.op_type == "Gemm" and layer.addend is None and layer.beta in (0.0, 1.0):
        node.attributes.add(ir.AttrFloat32("beta", 1.0))
        _set_bias(node, total, names)
    elif layer.add is not None:
        position = 1 - layer.add.inputs.index(node.outputs[0])
        name = names.free(f"{layer.add.name}.bias")
        layer.add.replace_input_with(position, add_constant(graph, name, total))
    else:
        _add_after(node, shift.astype(np.float32), names)


def _narrow_conv(
    node: ir.Node, keep: np.ndarray, gone: np.ndarray, constants: np.ndarray, names: Names
) -> None:
    value, graph = input_of(node, 1), graph_of(node)
    weight = array_of(value)
    sums = weight[:, gone].astype(np.float64).reshape(len(weight), len(gone), -1).sum(axis=2)
    shift = sums @ constants
    narrow = add_constant(graph, names.free(f"{value.name}.active"), weight[:, keep])
    node.replace_input_with(1, narrow)
    if not shift.any():
        return
    biased = len(node.inputs) > 2 and node.inputs[2] is not None
    total = shift + array_of(node.inputs[2]) if biased else shift
    _set_bias(node, total.astype(np.float32), names)


def _narrow_steps(region: Region, keep: np.ndarray, names: Names) -> None:
    """Give the nodes between the part of their constants that belongs to the kept outputs."""
    for step in region.steps:
        node = step.node
        if step.kind == "flatten":
            _narrow_reshape(region, node, keep, names)
        if step.kind != "elementwise":
            continue
        for position, value in enumerate(node.inputs):
            if value is None or id(value) in region.layouts:
                continue
            array = array_of(value)
            part = region.take_entries(node, array, keep)
            if part is not array:
                name = names.free(f"{value.name}.active")
                narrow = add_constant(graph_of(node), name, part)
                node.replace_input_with(position, narrow)


def _narrow_reshape(region: Region, node: ir.Node, keep: np.ndarray, names: Names) -> None:
    if node.op_type != "Reshape":
        return
    wanted = input_of(node, 1)
    first, width = array_of(wanted).tolist()
    if width == -1:
        return
    width = len(keep) * region.layouts[id(node.outputs[0])].block
    name, sizes = names.free(f"{wanted.name}.active"), np.array([first, width], np.int64)
    node.replace_input_with(1, add_constant(graph_of(node), name, sizes))


def _set_bias(node: ir.Node, bias: np.ndarray, names: Names) -> None:
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    constant = add_constant(graph_of(node), names.free(f"{node.name}.bias"), bias)
    node.replace_input_with(2, constant)


def _add_after(node: ir.Node, shift: np.ndarray, names: Names) -> None:
    """Add a constant to the output of a node that has no place for it."""
    output = node.outputs[0]
    product = names.free(f"{output.name}_unshifted")
    constant = add_constant(graph_of(node), names.free(f"{node.name}.shift"), shift)
    add = ir.node("Add", [None, constant], name=names.free(f"{node.name}_shift"))
    node.append(add)
    take_output(output, add.outputs[0])
    add.replace_input_with(0, output)
    output.name = product
