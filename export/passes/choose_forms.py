"""Each condensed layer gets its form: condensed in one or more groups, structured, or dense."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.condensed import CondensedWeight
from ..forms import IMAGE_SIZE, MIN_GAIN, Choice, Chooser, dense_nodes, structured_nodes
from ..report import Decision
from .access import (
    graph_of,
    input_of,
    label_of,
    name_of,
    remove_node,
    remove_unread_constant,
    type_of,
)
from .conv_forms import spread_conv
from .conv_layouts import find_borders, settle_forms
from .nodes import (
    Names,
    add_constant,
    add_parts,
    clip_of,
    condensed_nodes,
    dimensions_of,
    has_no_residual,
    is_condensed_conv,
    make_condensed,
    read_geometry,
    read_weight,
    take_output,
)
from .result_pass import ResultPass


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
        """Go through the condensed nodes whose weights are constant."""
        names = Names(model)
        formed: dict[str, Formed] = {}
        settled = self._settle(model)
        for node in condensed_nodes(model):
            weight, name = read_weight(node), label_of(node)
            if weight is None:
                continue
            if is_condensed_conv(node):
                formed[name] = self._form_conv(node, weight, settled.get(id(node)), names)
                continue
            rows = self.chooser.rows_of(dimensions_of(input_of(node, 0)))
            choice = self.chooser.choose(weight, rows)
            if choice.form == "condensed":
                groups = self.chooser.groups(weight, rows)
                formed[name] = _split(node, weight, groups, choice, names)
            else:
                formed[name] = _spread(node, weight, choice, names)
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
            times["dense"] /= MIN_GAIN
            seconds[id(node)] = times
        reorder = self.chooser.batch * self.chooser.costs.convolutions.reorder
        return settle_forms(seconds, find_borders(model, IMAGE_SIZE), reorder)

    def _form_conv(
        self, node: ir.Node, weight: CondensedWeight, settled: Decision | None, names: Names
    ) -> Formed:
        """Leave a convolution or spread it; its kernel sorts rows by length, so no groups."""
        shape = dimensions_of(input_of(node, 0))
        choice = self.chooser.choose_conv(weight, read_geometry(node), shape, settled)
        stored, padding, nbytes = weight.values.size, weight.padding, weight.nbytes
        name = label_of(node)
        if choice.form != "condensed":
            stored, nbytes = spread_conv(node, weight, choice.form, names)
            padding = 0
            remove_with_constants(node)
        return Formed(choice, *_sizes(weight), stored, padding, nbytes, (name,))


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


def remove_with_constants(node: ir.Node) -> None:
    """Remove a node and the constants that only it read: a large model has no room for both."""
    values = set(filter(None, node.inputs))
    remove_node(node)
    for value in values:
        remove_unread_constant(value)


def _spread(node: ir.Node, weight: CondensedWeight, choice: Choice, names: Names) -> Formed:
    """Replace a node by standard operators: MatMul and Add, of the active rows if structured."""
    graph, output = graph_of(node), node.outputs[0]
    x, residual = input_of(node, 0), input_of(node, 5)
    prefix = name_of(input_of(node, 1)).removesuffix(".values")
    if choice.form == "structured" and weight.active:
        nodes, arrays = structured_nodes(weight, "x", "y", prefix)
    else:
        matrix = x.shape is not None and len(x.shape) == 2
        nodes, arrays = dense_nodes(weight, "x", "y", prefix, matrix=matrix)
    dtype = type_of(residual).numpy()
    low, high = clip_of(node)
    values, nbytes = {"x": x}, 0
    for name, array in arrays.items():
        array = np.asarray(array)
        typed = array.astype(dtype) if array.dtype == np.float32 else array
        values[name] = add_constant(graph, names.free(name), typed)
        nbytes += typed.nbytes
    at = node
    for proto in nodes:
        new = ir.node(
            proto.op_type,
            [values[name] for name in proto.input],
            attributes={a.name: ir.serde.deserialize_attribute(a) for a in proto.attribute},
            name=node.name if proto.op_type in ("MatMul", "Gemm") else names.free(proto.name),
        )
        at.append(new)
        values[proto.output[0]] = new.outputs[0]
        if proto is not nodes[-1]:
            new.outputs[0].name = names.free(f"{output.name}_{proto.op_type.lower()}")
        at = new
    if not has_no_residual(node):
        new = ir.node("Add", [at.outputs[0], residual], name=names.free(f"{prefix}_residual"))
        at.outputs[0].name = names.free(f"{output.name}_before_residual")
        at.append(new)
        at = new
    if (low, high) != (-math.inf, math.inf):
        bounds = [
            add_constant(graph, names.free(f"{prefix}.{end}"), np.array(bound, dtype))
            for end, bound in (("clip_min", low), ("clip_max", high))
        ]
        new = ir.node("Clip", [at.outputs[0], *bounds], name=names.free(f"{prefix}_clip"))
        at.outputs[0].name = names.free(f"{output.name}_before_clip")
        at.append(new)
        at = new
    take_output(output, at.outputs[0])
    name = label_of(node)
    remove_with_constants(node)
    stored = math.prod(np.shape(arrays[f"{prefix}.weight"]))
    return Formed(choice, *_sizes(weight), stored, 0, nbytes, (name,))
