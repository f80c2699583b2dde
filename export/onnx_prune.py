"""Prune an ONNX file by magnitude, with equally many weights in each row of a layer."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from .._base.atomic import output_path, staging_folder
from .._base.distributions import Distribution, layer_densities, weight_budget
from .._base.names import near_matches
from .declared_outputs import stage_checked
from .errors import ExportError
from .layer_names import name_in_reports
from .magnitude import largest_per_row
from .model_file import (
    EXTERNAL_DATA_THRESHOLD,
    MAX_INLINE_BYTES,
    link_notes,
    publish_model,
)
from .onnx_schema import register_schemas
from .onnx_source import data_files, load_source
from .passes.access import label_of, name_of, remove_unread_constant
from .passes.elsewhere import LEAST_ENTRIES, find_elsewhere
from .passes.nodes import all_values, our_nodes
from .passes.prunable import Unfit, Weight, find_weights, put_weight
from .prune_report import PrunedLayer, PruneReport
from .ranges import require_range

LEAST_INPUTS = 32
"""Rows of fewer inputs stay dense: a depthwise filter has 9, a first filter of an image 27."""


def prune(
    onnx_in: str | os.PathLike[str],
    onnx_out: str | os.PathLike[str],
    sparsity: float,
    *,
    distribution: Distribution = "uniform",
    dense_layers: Sequence[str] = (),
    external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
) -> PruneReport:
    """Zero the smallest weights of an ONNX model, equally many in each output of a layer.

    Pruned are the weights of layers that :func:`.convert` condenses: of MatMul, Gemm, Conv,
    ConvTranspose, Einsum, LSTM and GRU, also where the graph computes them from constants. A weight
    that something else reads as well, such as a tied embedding, stays whole for that reader. The
    file is as large as before and computes as fast: :func:`.convert` it. Its accuracy is lower than
    the source's, the more the sparser; only training wins it back.

    Args:
        onnx_in: the model; opset 11 to 23. It is only read.
        onnx_out: the file to write; its folder must exist.
        sparsity: share of the entries of the pruned layers to zero, above 0 and below 1.
        distribution: "uniform" gives each layer this sparsity; "erk" makes large layers sparser
            than small ones, with this sparsity overall.
        dense_layers: names of weights or nodes to leave as they are, or patterns with ``*``.
        external_data_threshold: bytes of weights above which they go to a file of their own.

    Returns:
        What became of each weight.

    Raises:
        FileNotFoundError: there is no such model.
        ExportError: it cannot be read, a name is unknown, or no layer can be pruned; nothing is
            written.
        ValueError: an argument is out of its range, or the layers cannot have the sparsity.
        TypeError: ``dense_layers`` is a string.
        OSError: the output folder is missing or cannot be written.

    """
    source, target = Path(onnx_in), output_path(onnx_out)
    if not 0 < sparsity < 1:
        raise ValueError(f"sparsity is {sparsity}, it must be above 0 and below 1, such as 0.9")
    if isinstance(dense_layers, str):
        raise TypeError(f"dense_layers must be a list of layer names; write [{dense_layers!r}]")
    require_range("external_data_threshold", external_data_threshold, 0, MAX_INLINE_BYTES)
    if os.path.exists(target) and os.path.exists(source) and target.samefile(source):
        raise ValueError(f"{onnx_out} is the model itself; give the result another name")
    with staging_folder(target) as scratch:
        model, notes = load_source(source)
        needed = data_files(source)
        if target.resolve() in needed:
            raise ValueError(f"{onnx_out} holds weights of {source}; give the result another name")
        if our_nodes(model):
            raise ExportError(f"{source} is condensed already; prune the file it was made from")
        register_schemas()
        common.ShapeInferencePass(strict_mode=False)(model)
        layers, copies = _prune(model, sparsity, distribution, dense_layers)
        if not any(layer.pruned for layer in layers):
            reasons = "; ".join(f"{x.name}: {x.reason}" for x in layers[:3]) or "no weights found"
            raise ExportError(f"{source}: nothing to prune ({reasons}); nothing was written")
        staged = stage_checked(model, scratch / target.name, external_data_threshold)
        data_path = publish_model(staged, target, keep=needed)
    return PruneReport(
        source=str(source),
        path=os.fspath(onnx_out),
        data_path=str(data_path) if data_path else None,
        asked_sparsity=sparsity,
        distribution=distribution,
        layers=layers,
        notes=(*notes, *copies, *link_notes(Path(onnx_out), data_path)),
    )


def _prune(
    model: ir.Model, sparsity: float, distribution: Distribution, patterns: Sequence[str]
) -> tuple[tuple[PrunedLayer, ...], tuple[str, ...]]:
    opset = model.opset_imports.get("", 1)
    groups, left = _grouped(find_weights(model))
    found = [*(one.found for one in left), *(group[0].found for group in groups)]
    seen = {id(value) for one in found for value in (one.root, *one.others)}
    others = find_elsewhere(model, seen, 0, opset).layers
    dense = _named(patterns, groups)
    lines: dict[int, PrunedLayer] = {}
    for number, group in enumerate(groups):
        reason = "dense_layers names it" if number in dense else _too_small(group[0])
        if reason is not None:
            lines[number] = _left(group[0], reason)
    # Names may repeat: several slices of one packed weight are layers of their own.
    todo = [number for number in range(len(groups)) if number not in lines]
    keys = {number: _key(number, groups) for number in todo}
    shapes = {keys[number]: groups[number][0].shape for number in todo}
    densities = layer_densities(shapes, sparsity, distribution) if shapes else {}
    made: list[tuple[ir.Value, str]] = []
    for number in todo:
        lines[number] = _zero(model, groups[number], densities[keys[number]], made)
    _remove_unread(model)
    copies = _rename(model, made)
    rest = [_left(one, one.reason) for one in left if one.found.array.size >= LEAST_ENTRIES]
    rest += [
        PrunedLayer(x.name, x.kind, x.shape, x.sparsity, x.sparsity, None, 1.0, x.reason)
        for x in others
    ]
    return (*(lines[number] for number in range(len(groups))), *rest), copies


def _grouped(found: Iterable[Weight | Unfit]) -> tuple[list[list[Weight]], list[Unfit]]:
    """Put readers of one value together; one value cannot have equal rows in two layouts."""
    by_value: dict[int, list[Weight]] = {}
    left: list[Unfit] = []
    for one in found:
        if isinstance(one, Unfit):
            left.append(one)
        else:
            by_value.setdefault(id(one.value), []).append(one)
    groups = []
    for group in by_value.values():
        if len({weight.layout for weight in group}) > 1:
            reason = "nodes read it in different ways, so that no rows are equal in all of them"
            left.append(Unfit(group[0].node, group[0].found, reason))
        else:
            groups.append(group)
    return groups, left


def _name(one: Weight | Unfit) -> str:
    return name_in_reports(name_of(one.found.root), label_of(one.node))


def _named(patterns: Sequence[str], groups: Sequence[Sequence[Weight]]) -> set[int]:
    """Find the weights that patterns name, by the weight, the layer or a node."""
    known: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        weight = name_of(group[0].found.root)
        nodes = (label_of(one.node) for one in group)
        for name in {weight, weight.removesuffix(".weight"), *nodes} - {""}:
            known.setdefault(name, set()).add(number)
    found: set[int] = set()
    for pattern in patterns:
        matching = [numbers for name, numbers in known.items() if fnmatchcase(name, pattern)]
        if not matching:
            raise ExportError(
                f"no layer that can be pruned is named {pattern!r}.{near_matches(pattern, known)}"
            )
        found |= set().union(*matching)
    return found


def _key(number: int, groups: Sequence[Sequence[Weight]]) -> str:
    names = [_name(group[0]) for group in groups]
    name = names[number]
    return name if names.count(name) == 1 else f"{name} ({groups[number][0].node.name})"


def _too_small(weight: Weight) -> str | None:
    array, inputs = weight.found.array, math.prod(weight.shape[1:])
    if array.size < LEAST_ENTRIES:
        return f"it has {array.size} entries, fewer than {LEAST_ENTRIES}"
    if inputs < LEAST_INPUTS:
        return f"its rows have {inputs} inputs, fewer than {LEAST_INPUTS}"
    if not np.isfinite(array).all():
        return "it holds values that are not finite"
    return None


def _left(one: Weight | Unfit, reason: str) -> PrunedLayer:
    array = one.found.array
    shape = one.shape if isinstance(one, Weight) else array.shape
    sparsity = 1 - np.count_nonzero(array) / max(1, array.size)
    kind = one.node.op_type
    return PrunedLayer(_name(one), kind, tuple(shape), sparsity, sparsity, None, 1.0, reason)


def _zero(
    model: ir.Model, group: Sequence[Weight], density: float, made: list[tuple[ir.Value, str]]
) -> PrunedLayer:
    """Prune a weight for all nodes that read it, unless its rows are that sparse already."""
    weight = group[0]
    rows = weight.rows()
    fan_in = weight_budget(weight.shape, density) // len(rows)
    longest = int(np.count_nonzero(rows, axis=1).max(initial=0))
    if longest <= fan_in:
        return _left(weight, f"sparse already, with at most {longest} weights in a row")
    kept = np.where(largest_per_row(rows, fan_in), rows, rows.dtype.type(0))
    new = put_weight(model, group, weight.in_place(kept))
    if new is not None:
        made.append((new, name_of(weight.found.root)))
    norm = np.linalg.norm(rows.astype(np.float64))
    return PrunedLayer(
        _name(weight),
        weight.node.op_type,
        weight.shape,
        1 - np.count_nonzero(rows) / rows.size,
        1 - np.count_nonzero(kept) / kept.size,
        fan_in,
        float(np.linalg.norm(kept.astype(np.float64)) / norm),
    )


def _remove_unread(model: ir.Model) -> None:
    """Remove what computed weights that are stored now, and the old weights."""
    common.RemoveUnusedNodesPass()(model)
    for graph in model.graphs():
        for value in list(graph.initializers.values()):
            remove_unread_constant(value)
    common.ShapeInferencePass(strict_mode=False)(model)


def _rename(model: ir.Model, made: Sequence[tuple[ir.Value, str]]) -> tuple[str, ...]:
    """Give new constants the names of those that they replaced, and say where these stay."""
    notes = []
    taken = {value.name for value in all_values(model)}
    for value, name in made:
        if name not in taken:
            taken.add(name)
            value.name = name
        else:
            notes.append(f"{name} stays whole for what else reads it, beside {value.name}")
    return tuple(notes)
