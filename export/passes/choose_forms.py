"""Give each condensed layer its form: condensed in one or more groups, structured, or dense."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from ...ort_ops.contract import COMPUTE_FLOAT32
from ...ort_ops.format.condensed import CondensedWeight
from ..forms import IMAGE_SIZE, Choice, Chooser
from ..report import Decision
from .access import graph_of, input_of, label_of
from .conv_layouts import find_borders, settle_forms
from .nodes import (
    Names,
    add_parts,
    clip_of,
    compute_of,
    condensed_nodes,
    dimensions_of,
    is_condensed_conv,
    make_condensed,
    read_geometry,
    read_weight,
    take_output,
)
from .result_pass import ResultPass
from .standard_forms import remove_with_constants, spread


@dataclass(frozen=True)
class Formed:
    """What became of one condensed node.

    Attributes:
        choice: the form with its reason.
        out_features: outputs in the file, ablated neurons folded away or not.
        active: stored rows in the file.
        fan_in: entries of the longest row in the file.
        stored: entries that are stored, padding included.
        padding: stored entries that are padding.
        nbytes: bytes of the constants.
        nodes: names of the nodes that hold the layer now.

    """

    choice: Choice
    out_features: int
    active: int
    fan_in: int
    stored: int
    padding: int
    nbytes: int
    nodes: tuple[str, ...]


@dataclass
class FormsResult(ir.passes.PassResult):
    """A pass result that also says what each node became, by its name before."""

    formed: dict[str, Formed] = field(default_factory=dict)


class ChooseFormsPass(ResultPass[FormsResult]):
    """Turn condensed nodes into the form that the chooser takes for them.

    It runs after the folding, which changes sizes, and before activations are fused, which only
    condensed nodes take over.
    """

    def __init__(self, chooser: Chooser) -> None:
        super().__init__()
        self.chooser = chooser

    def call(self, model: ir.Model) -> FormsResult:
        """Visit the condensed nodes whose weights are constant."""
        names = Names(model)
        formed: dict[str, Formed] = {}
        settled = self._settle(model)
        for node in condensed_nodes(model):
            weight, name = read_weight(node), label_of(node)
            if weight is None:
                continue
            choice, groups = self._choose(node, weight, settled.get(id(node)))
            if choice.form == "condensed":
                formed[name] = _split(node, weight, groups, choice, names)
            else:
                stored, nbytes = spread(node, weight, choice.form, names)
                formed[name] = Formed(choice, *_sizes(weight), stored, 0, nbytes, (name,))
        changed = any(entry.choice.form != "condensed" for entry in formed.values())
        return FormsResult(model, modified=changed, formed=formed)

    def _settle(self, model: ir.Model) -> dict[int, Decision]:
        """Find the forms of all convolutions that are the fastest together."""
        if self.chooser.policy != "auto":
            return {}
        seconds: dict[int, dict[Decision, float]] = {}
        for node in filter(is_condensed_conv, condensed_nodes(model)):
            weight = read_weight(node)
            if weight is None:
                continue
            shape = dimensions_of(input_of(node, 0))
            times = self.chooser.conv_seconds(weight, read_geometry(node), shape)
            if self.chooser.portable:
                del times["condensed"]
            times["dense"] /= self.chooser.min_gain
            seconds[id(node)] = times
        reorder = self.chooser.batch * self.chooser.costs.convolutions.reorder
        return settle_forms(seconds, find_borders(model, IMAGE_SIZE), reorder)

    def _choose(
        self, node: ir.Node, weight: CondensedWeight, settled: Decision | None
    ) -> tuple[Choice, list[CondensedWeight]]:
        """Choose the form of a node, and the groups of rows that it has if condensed."""
        shape = dimensions_of(input_of(node, 0))
        if is_condensed_conv(node):
            # Its kernel sorts rows by length, so no groups.
            choice = self.chooser.choose_conv(weight, read_geometry(node), shape, settled)
            return choice, [weight]
        rows = self.chooser.rows_of(shape)
        choice = self.chooser.choose(weight, rows)
        return choice, self.chooser.groups(weight, rows) if choice.form == "condensed" else []


def _split(
    node: ir.Node,
    weight: CondensedWeight,
    groups: list[CondensedWeight],
    choice: Choice,
    names: Names,
) -> Formed:
    """Replace a node by one for each group of rows, each adding to what the ones before made."""
    name, graph, x = label_of(node), graph_of(node), input_of(node, 0)
    stored = sum(group.values.size for group in groups)
    padding = sum(group.padding for group in groups)
    if len(groups) == 1:
        return Formed(choice, *_sizes(weight), stored, padding, weight.nbytes, (name,))
    sizes = {"in_features": weight.in_features, "out_features": weight.out_features}
    before, residual = node, input_of(node, 5)
    made: list[str] = []
    for number, group in enumerate(groups):
        last = number == len(groups) - 1
        label = name if last else names.free(f"{name}_rows{number}")
        parts = add_parts(graph, group, f"{name}.rows{number}", names)
        clip = clip_of(node) if last else (-math.inf, math.inf)
        new = make_condensed(x, parts, residual, sizes, name=label, clip=clip)
        new.meta.update(node.meta)
        if compute_of(node) != COMPUTE_FLOAT32:
            new.attributes.add(ir.AttrInt64("compute", compute_of(node)))
        before.append(new)
        output = node.outputs[0]
        if last:
            take_output(output, new.outputs[0])
        else:
            residual = new.outputs[0]
            residual.name = names.free(f"{output.name}_rows{number}")
            residual.type, residual.shape = output.type, output.shape
        before = new
        made.append(label)
    remove_with_constants(node)
    nbytes = sum(group.nbytes for group in groups)
    return Formed(choice, *_sizes(weight), stored, padding, nbytes, tuple(made))


def _sizes(weight: CondensedWeight) -> tuple[int, int, int]:
    return weight.out_features, weight.active, weight.fan_in
