"""Values of condensed layers in half precision: which ones, and what the report says of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from .forms import Chooser
from .lowering import Lowered, lower
from .model_file import EXTERNAL_DATA_THRESHOLD, stage_model
from .onnx_cases import rerun
from .passes.access import label_of
from .passes.condense import CondenseResult
from .passes.constants import live_readers
from .passes.conv_layer import is_conv
from .passes.linear_layer import is_linear
from .passes.nodes import condensed_nodes
from .passes.round_values import RoundResult, RoundValuesPass, WidenValuesPass
from .report import LayerReport
from .verify import Case


@dataclass(frozen=True)
class Rounding:
    """What was rounded.

    Attributes:
        parameters: names of the parameters whose condensed values were rounded.
        errors: change of the weight as a share of its norm, by name of each node.
        scales: what norms multiplied the rows of convolutions by before they were rounded, float64
            ``[channels]``, by name of the parameter.

    """

    parameters: frozenset[str] = frozenset()
    errors: Mapping[str, float] = field(default_factory=dict)
    scales: Mapping[str, np.ndarray] = field(default_factory=dict)


def rounding_notes(layers: Iterable[LayerReport], values_dtype: str, why: str) -> tuple[str, ...]:
    """Say where the asked type of values is not in the file.

    Args:
        layers: final reports.
        values_dtype: what was asked for.
        why: reasons for a condensed layer to keep its own.

    """
    condensed = [layer for layer in layers if layer.decision == "condensed"]
    if values_dtype != "float32" and not condensed:
        return (f"no layer is condensed, so no values are rounded to {values_dtype}",)
    exact = [layer.name for layer in condensed if layer.values_dtype != values_dtype]
    if not exact:
        return ()
    return (f"values are not rounded to {values_dtype} where {why}: {', '.join(exact)}",)


def read_elsewhere(model: ir.Model) -> frozenset[str]:
    """Name the constants that other nodes than layers read, before constants are folded."""
    return frozenset(
        name
        for name, value in model.graph.initializers.items()
        if not all(is_linear(node) or is_conv(node) for node in live_readers(value))
    )


def round_values(
    model: ir.Model,
    values_dtype: str,
    chooser: Chooser,
    *,
    fold: bool,
    found: Iterable[CondenseResult],
    parameters: Collection[str],
    norms: Mapping[str, np.ndarray],
) -> Rounding:
    """Round the layers that will be condensed and whose rounding torch can repeat.

    Left exact are layers that get another form, and weights that something else reads as well or
    that the graph computes from a parameter.

    Args:
        model: condensed, before anything is folded or chosen.
        values_dtype: "float16" or "bfloat16".
        chooser: of the forms.
        fold: whether ablated neurons will be folded, on which the choice depends.
        found: what was condensed.
        parameters: names of the torch model's parameters that are only multiplied with.
        norms: what norms multiplied the rows of convolutions by, by name of the node.

    Raises:
        ExportError: a value is too large for the type.

    """
    stay = _condensed_at_last(model, chooser, fold=fold)
    rounded: set[str] = set()
    names, scales = set(), {}
    for result in found:
        for root in result.verbatim & set(parameters):
            nodes = {node for layer in result.layers if layer.name == root for node in layer.nodes}
            value = model.graph.initializers.get(root)
            # Nodes of one parameter with norms of their own store values of their own.
            alike = len(nodes) == 1 or not nodes.intersection(norms)
            if alike and stay.issuperset(nodes) and (value is None or not any(live_readers(value))):
                names.add(root)
                rounded |= nodes
                for node in nodes.intersection(norms):
                    scales[root] = norms[node]
    done = RoundValuesPass(values_dtype, rounded)(model)
    return Rounding(frozenset(names), done.errors, scales)


def _condensed_at_last(model: ir.Model, chooser: Chooser, *, fold: bool) -> set[str]:
    """Name the nodes that stay condensed; what is not is only known after the folding."""
    if chooser.policy == "condensed":
        return {label_of(node) for node in condensed_nodes(model)}
    formed = lower(model.clone(), chooser, fold=fold).formed
    return {name for name, entry in formed.items() if entry.choice.form == "condensed"}


def round_condensed(model: ir.Model, values_dtype: str) -> RoundResult:
    """Round the values of every condensed node of a lowered model, in place.

    Args:
        model: as it will be written.
        values_dtype: "float16" or "bfloat16".

    Raises:
        ExportError: a value is too large for the type.

    """
    names = {label_of(node) for node in condensed_nodes(model)}
    return RoundValuesPass(values_dtype, names)(model)


def without_saved_bytes(lowered: Lowered, saved: Mapping[str, int]) -> Lowered:
    """Subtract the bytes that rounding saved, by node name, from the sizes of the layers."""
    formed = {
        name: replace(entry, nbytes=entry.nbytes - sum(saved.get(n, 0) for n in entry.nodes))
        for name, entry in lowered.formed.items()
    }
    return replace(lowered, formed=formed)


def with_rounding(
    layers: Iterable[LayerReport], errors: Mapping[str, float], values_dtype: str
) -> tuple[LayerReport, ...]:
    """Say which layers hold rounded values.

    Args:
        layers: reports.
        errors: change of the weight as a share of its norm, by name of each rounded node.
        values_dtype: what they were rounded to.

    """
    return tuple(
        replace(
            layer,
            values_dtype=values_dtype,
            rounding_error=max(errors[node] for node in layer.nodes),
        )
        if layer.nodes and all(node in errors for node in layer.nodes)
        else layer
        for layer in layers
    )


def widened_cases(
    model: ir.Model, folder: Path, names: tuple[str, ...], cases: Sequence[Case]
) -> list[Case]:
    """Compute the rounded model in float32 throughout, which is what its file is held to.

    Args:
        model: rounded; its clone is changed, not the model.
        folder: for a scratch file.
        names: names of the model's inputs, in the order of a case's.
        cases: whose inputs are taken.

    """
    wide = model.clone()
    WidenValuesPass()(wide)
    staged = stage_model(wide, folder / "widened.onnx", EXTERNAL_DATA_THRESHOLD)
    return rerun(staged.path, names, cases)
