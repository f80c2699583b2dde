"""One file of an export from torch: traced, condensed, rounded, written, and verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes import common

from ..ort_ops.format.condensed import CondensedWeight
from ..ort_ops.format.conv_geometry import ConvGeometry
from .compute import BFLOAT16_TOLERANCE, compute_in_bfloat16
from .dimensions import require_known, with_inferred
from .engines import load_original
from .forms import Choice, Chooser
from .half_precision import InPrecision, before_conversion, set_precision
from .locate import first_difference
from .lowering import Lowered, lower
from .model_file import StagedModel, stage_model
from .onnx_op import IR_VERSION
from .onnx_reading import read_proto
from .passes.access import drop_weights, name_of
from .passes.attach_functions import AttachFunctionsPass
from .passes.clear_values import ClearValueMetadataPass
from .passes.compute_bfloat16 import nodes_in_bfloat16
from .passes.condense import CondensePass, notes_on_kept
from .passes.condense_layers import Shape
from .passes.elsewhere import Elsewhere
from .passes.expand import ExpandPass
from .passes.fold_norm import FoldNormPass
from .passes.tied_weights import KeepTiedWeightsPass
from .quantization_units import Units, units_of, with_noise
from .report import NOT_VERIFIED, LayerReport, ParityCheck
from .rounding import Rounding, read_elsewhere, round_values
from .torch_inputs import Call
from .torch_model import round_weights, run_cases
from .torch_to_ir import optimize, traced
from .verify import Case, Reference, check_parity, check_structure, largest_change
from .verify_layers import check_layers

_FOLDED_BY_TORCH = 8192
"""Entries up to which torch's optimizer transposes a shared weight: a copy is there anyway."""


@dataclass(frozen=True)
class FileSettings:
    """The settings with which both files of an export are written."""

    call: Call
    chooser: Chooser
    fold: bool
    min_sparsity: float
    masks: Mapping[str, np.ndarray] | None
    opset: int
    verify: bool
    external_data_threshold: int
    noise: float
    values_dtype: str
    compute: str
    precision: str


@dataclass(frozen=True)
class WrittenFile:
    """A verified model in the scratch folder, with what the report says about it."""

    staged: StagedModel
    layers: tuple[LayerReport, ...]
    elsewhere: Elsewhere
    initializers: frozenset[str]
    lowered: Lowered
    parity: tuple[ParityCheck, ...]
    not_checked: tuple[str, ...]
    rounding: Rounding
    change: float | None
    computed: frozenset[str]
    made: InPrecision | None
    notes: tuple[str, ...]
    kept: tuple[str, ...]


def write_verified(cases: Sequence[Case], settings: FileSettings, staged_path: Path) -> WrittenFile:
    """Write a model and verify the file; rounding changes the weights of the model as well."""
    model, rounds = settings.call.model, settings.values_dtype != "float32"
    program, call = traced(settings.call, settings.opset)
    cases = cases[: len(call.batches)]
    chooser = settings.chooser
    require_known(chooser.dims, program.model, "the model")
    sizes = with_inferred(program.model, chooser.dims, chooser.batch)
    settings = replace(settings, chooser=replace(chooser, dims=sizes))
    initializers = frozenset(program.model.graph.initializers)
    condense = CondensePass(
        min_sparsity=settings.min_sparsity,
        masks=settings.masks,
        choose_quantized=settings.chooser.choose_quantized,
        name_after_weights=True,
        leave_shared=partial(_dense_anyway, settings.chooser),
    )
    ExpandPass(settings.chooser, min_sparsity=settings.min_sparsity, masks=settings.masks)(
        program.model
    )
    found = [condense(program.model)]
    exclusive = dict(model.named_parameters()).keys() - read_elsewhere(program.model)
    graph_model = optimize(program)
    del program
    # Slices of packed weights have constant bounds only now.
    found.append(condense(graph_model))
    KeepTiedWeightsPass()(graph_model)
    common.ClearMetadataAndDocStringPass()(graph_model)
    ClearValueMetadataPass()(graph_model)
    # Before values are rounded: they would be rounded again.
    norms = FoldNormPass()(graph_model)
    rounding, change = Rounding(), 0.0 if not rounds else None
    if rounds:
        rounding = round_values(
            graph_model,
            settings.values_dtype,
            settings.chooser,
            fold=settings.fold,
            found=found,
            parameters=exclusive,
            norms=norms.scales,
        )
    if rounds and cases:
        round_weights(model, rounding, getattr(torch, settings.values_dtype))
        exact, cases = cases, run_cases(model, call.batches)
        change = largest_change(exact, cases)
    # The clone keeps the arrays that the passes replace; only a comparison of outputs reads it.
    before = graph_model.clone() if cases else None
    lowered = lower(graph_model, settings.chooser, fold=settings.fold)
    lowered = replace(lowered, fused=(*norms.folded, *lowered.fused))
    graph_model.ir_version = IR_VERSION
    graph_model.producer_name, graph_model.producer_version = "fanin", None
    staged = stage_model(graph_model, staged_path, settings.external_data_threshold)
    names = [name_of(value) for value in graph_model.graph.inputs]
    kept = notes_on_kept(graph_model, [line for result in found for line in result.notes])
    layers = tuple(layer for result in found for layer in result.layers)
    again = settings.compute != "float32" or settings.precision != "float32"
    if not again:
        drop_weights(graph_model)
    check_structure(staged.path)
    parity: tuple[ParityCheck, ...] = ()
    not_checked: tuple[str, ...] = (NOT_VERIFIED,)
    if settings.verify and before is not None:
        units = units_of(read_proto(staged.path))
        locate = partial(_locate, before, staged.path, names, units is not None)
        if units is not None:
            units = _own_noise(before, staged.path, names, cases, units)
        reference = Reference("torch", cases, settings.noise, units, locate)
        parity, not_checked = check_parity(staged.path, reference)
    made = None
    if settings.compute != "float32":
        compute_in_bfloat16(graph_model)
        staged = stage_model(graph_model, staged_path, settings.external_data_threshold)
        check_structure(staged.path)
        if settings.verify and before is not None:
            loose = replace(reference, locate=None, least_tolerance=BFLOAT16_TOLERANCE)
            parity, not_checked = check_parity(staged.path, loose)
    elif settings.precision != "float32":
        made = set_precision(
            graph_model,
            staged,
            before,
            names,
            cases,
            settings.precision,
            settings.external_data_threshold,
        )
        staged = made.staged
        parity = (*before_conversion(parity), *made.parity)
        not_checked = (*not_checked, *made.not_checked)
    if again:
        drop_weights(graph_model)
    if settings.verify and before is None:
        parity, not_checked = check_layers(staged.path)
    computed = nodes_in_bfloat16(graph_model)
    return WrittenFile(
        staged,
        layers,
        found[-1].elsewhere,
        initializers,
        lowered,
        parity,
        not_checked,
        rounding,
        change,
        computed,
        made,
        call.notes,
        kept,
    )


def _dense_anyway(
    chooser: Chooser, weight: CondensedWeight, shape: Shape, geometry: ConvGeometry | None
) -> Choice | None:
    """Leave a shared weight where it would be dense again: the copy would stay beside it."""
    if geometry is not None or weight.in_features * weight.out_features <= _FOLDED_BY_TORCH:
        return None
    choice = chooser.choose(weight, chooser.rows_of(shape))
    return choice if choice.form == "dense" else None


def _own_noise(
    before: ir.Model, path: Path, names: Sequence[str], cases: Sequence[Case], units: Units
) -> Units:
    """Measure how far a quantized graph is from itself where the runtime optimizes it."""
    feeds = [dict(zip(names, case.inputs, strict=True)) for case in cases]
    file = _saved(before, path)
    runs = [load_original(file, optimize=optimize) for optimize in (False, True)]
    return with_noise(units, *([run(feed) for feed in feeds] for run in runs))


def _locate(
    before: ir.Model,
    path: Path,
    names: Sequence[str],
    quantized: bool,
    case: Case,
    library: bool,
) -> str:
    """Compare with the graph as it was before anything was folded, chosen or fused."""
    saved = _saved(before, path)
    return first_difference(saved, path, names, case, library, quantized=quantized)


def _saved(before: ir.Model, path: Path) -> Path:
    AttachFunctionsPass()(before)
    before.ir_version = IR_VERSION
    reference = path.with_name("before.onnx")
    ir.save(before, reference)
    return reference
