"""Ablated filters leave the graph: their constant goes into the layers that read the channel."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.condensed import CondensedWeight
from .access import graph_of, input_of
from .channel_region import ChannelRegion, Sink, find_channel_region
from .conv_layer import is_conv
from .fold_ablated import narrow_condensed, narrow_dense
from .nodes import (
    Names,
    add_constant,
    adds_nothing,
    array_of,
    clip_of,
    condensed_nodes,
    is_condensed,
    is_condensed_conv,
    layer_name,
    read_geometry,
    read_weight,
    set_weight,
)
from .result_pass import ResultPass


@dataclass
class FoldFiltersResult(ir.passes.PassResult):
    """A pass result that also says what was folded.

    Attributes:
        folded: one line for each convolution that lost ablated filters.
        kept: one line for each convolution that keeps some, with the reason.

    """

    folded: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


class FoldFiltersPass(ResultPass[FoldFiltersResult]):
    """Drop the ablated filters of a condensed convolution where nothing mixes channels after it.

    The channel of an ablated filter is its bias b at every pixel. Nodes f that work channel by
    channel (activations, BatchNormalization, constants for each channel, pooling) leave it
    constant. A next Conv, CondensedConv, MatMul, Gemm or CondensedGemm then sees f(b) in all of its
    taps: the sum of its weights on it times f(b) goes into its bias, in float64, and its columns
    go. Where that layer pads with zeros the sum differs at the border, so that a channel is folded
    only where f(b) is 0, as after a ReLU of b <= 0; the same holds for an average that counts
    padding. Channels that cannot be folded stay, as do all where anything else reads them: a
    residual add, concat, a convolution of groups, an output of the model, a branch.

    Outputs stay the same to rounding for finite inputs.
    """

    def call(self, model: ir.Model) -> FoldFiltersResult:
        """Go through the condensed convolutions in graph order, so that folds add up."""
        names = Names(model)
        result = FoldFiltersResult(model, modified=False)
        for node in filter(is_condensed_conv, condensed_nodes(model)):
            weight = read_weight(node)
            if weight is None or weight.active == weight.out_features:
                continue
            count, name = weight.out_features - weight.active, layer_name(node)
            gone, reason = _fold(node, weight, names)
            if gone:
                result.modified = True
                result.folded.append(f"{gone} ablated filters of {name}")
            if gone < count:
                result.kept.append(f"{count - gone} ablated filters of {name}: {reason}")
        return result


def _fold(node: ir.Node, weight: CondensedWeight, names: Names) -> tuple[int, str]:
    """Fold one node; returns how many filters are gone, and why the others are not."""
    if not adds_nothing(node):
        return 0, "a residual is added to it"
    if weight.active == 0:
        return 0, "it has no other filter"
    if node.outputs[0].dtype != ir.DataType.FLOAT:
        return 0, "it computes in another type than float32"
    if read_geometry(node).group != 1:
        return 0, "it has groups"
    region = find_channel_region(node.outputs[0])
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
        width = len(keep) * region.layouts[id(value)].block
        if value.shape is not None:
            value.shape = ir.Shape([value.shape[0], width, *value.shape[2:]])
    return len(gone), reason


def _foldable(
    region: ChannelRegion, found: dict[int, np.ndarray], count: int
) -> tuple[np.ndarray, str]:
    """Tell which constant channels can leave: bool ``[count]``, and why the others cannot."""
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
    region: ChannelRegion,
    sink: Sink,
    keep: np.ndarray,
    gone: np.ndarray,
    constants: np.ndarray,
    names: Names,
) -> None:
    """Take the channels out of a layer; ``constants`` are ``[gone, block]``."""
    kept, left = (region.entries(sink.value, channels) for channels in (keep, gone))
    constants = constants.reshape(-1)
    if is_conv(sink.node):
        _narrow_conv(sink.node, kept, left, constants, names)
        return
    taps = np.arange(sink.taps)
    kept, left = ((e[:, None] * sink.taps + taps).reshape(-1) for e in (kept, left))
    narrow = narrow_condensed if is_condensed(sink.node) else narrow_dense
    narrow(sink.node, kept, left, np.repeat(constants, sink.taps), names)


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
    bias = add_constant(graph, names.free(f"{node.name}.bias"), total.astype(np.float32))
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, bias)


def _narrow_steps(region: ChannelRegion, keep: np.ndarray, names: Names) -> None:
    """Give the nodes between the part of their constants that belongs to the kept channels."""
    inside = set(region.layouts)
    for step in region.steps:
        node = step.node
        if step.kind == "flatten":
            _narrow_reshape(region, node, keep, names)
        if step.kind != "elementwise":
            continue
        for position, value in enumerate(node.inputs):
            if value is None or id(value) in inside:
                continue
            array = array_of(value)
            part = region.take_entries(node, array, keep)
            if part is not array:
                name = names.free(f"{value.name}.active")
                narrow = add_constant(graph_of(node), name, part)
                node.replace_input_with(position, narrow)


def _narrow_reshape(region: ChannelRegion, node: ir.Node, keep: np.ndarray, names: Names) -> None:
    if node.op_type != "Reshape":
        return
    wanted = input_of(node, 1)
    first, width = array_of(wanted).tolist()
    if width == -1:
        return
    width = len(keep) * region.layouts[id(node.outputs[0])].block
    name, sizes = names.free(f"{wanted.name}.active"), np.array([first, width], np.int64)
    node.replace_input_with(1, add_constant(graph_of(node), name, sizes))
