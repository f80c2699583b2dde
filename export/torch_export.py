"""From a trained torch model to an ONNX file with condensed layers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from onnx_ir.passes import common
from torch import Tensor, nn

from .atomic import staging_folder
from .condensed import VALUE_TYPES
from .errors import ExportError
from .layer_plan import LayerPlan, plan_layers, round_plan
from .model_file import (
    EXTERNAL_DATA_THRESHOLD,
    MAX_INLINE_BYTES,
    StagedModel,
    publish_model,
    stage_model,
)
from .onnx_op import DEFAULT_OPSET, IR_VERSION, OPSETS, register_schemas
from .passes.attach_functions import AttachFunctionsPass
from .passes.clear_values import ClearValueMetadataPass
from .passes.fuse_activation import FuseActivationPass
from .passes.name_layers import NameLayersPass
from .report import ExportReport, LayerReport, ParityCheck
from .torch_model import as_inputs, eval_copy, replace_layers, round_weights, run_cases
from .torch_to_ir import torch_to_ir
from .verify import Case, Reference, check_parity, check_structure, largest_change


def export(
    model_or_run: nn.Module | str | os.PathLike[str],
    path: str | os.PathLike[str],
    example_input: Tensor | Sequence[Tensor] | None = None,
    *,
    masks: Mapping[str, Tensor] | None = None,
    min_sparsity: float = 0.5,
    opset: int = DEFAULT_OPSET,
    dense_baseline: bool = False,
    values_dtype: str = "float32",
    external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
) -> ExportReport:
    """Write a model to ONNX with its sparse linear layers as ``ai.fanin::CondensedGemm``.

    The model is copied; mode, weights and buffers of the one passed in stay as they are. The file
    is checked (onnx's full checker, strict shape inference, outputs against torch within 1e-5 of
    the largest output) before it gets its name; when anything fails there is no new file and an
    older one of that name is left alone. The first dimension of every input and output is the
    dynamic dimension "batch".

    Args:
        model_or_run: a module with float32 parameters, or the path of a finished run folder.
        path: the ONNX file; its folder must exist.
        example_input: float or integer tensors ``[batch, ...]`` that the model takes, in order;
            a run folder brings its own.
        masks: bool tensors by qualified parameter name. When given, only these weights are
            candidates and the mask decides which entries are stored; without masks every linear
            layer is a candidate and its non-zero entries are stored. A run folder brings its own.
        min_sparsity: candidates with a smaller share of left-out weights stay dense.
        opset: version of the standard operators, 17 to 23.
        dense_baseline: also write the dense model, as ``NAME.dense.onnx`` beside ``NAME.onnx``.
        values_dtype: "float32", "float16" or "bfloat16": what the values of condensed layers are
            rounded to. Sums, biases, activations and dense layers stay float32; the outputs are
            then compared with torch on the rounded weights, and the report says what the rounding
            changed.
        external_data_threshold: bytes of weights above which they go to a file of their own.

    Returns:
        What became of each layer, the parity error, and the sizes.

    Raises:
        ExportError: the model cannot be exported or the file fails its checks; says why and where.
        ValueError: an argument is out of its range.
        OSError: the output folder is missing or cannot be written.

    """
    path = Path(path)
    _require_range("min_sparsity", min_sparsity, 0, 1)
    if values_dtype not in VALUE_TYPES:
        raise ValueError(f"values_dtype is {values_dtype!r}, it must be {' or '.join(VALUE_TYPES)}")
    _require_range("opset", opset, OPSETS.start, OPSETS.stop - 1)
    _require_range("external_data_threshold", external_data_threshold, 0, MAX_INLINE_BYTES)
    with staging_folder(path) as scratch:
        model, masks, example_input = _resolve(model_or_run, masks, example_input)
        model = eval_copy(model)
        inputs = as_inputs(example_input)
        plans = plan_layers(model, masks, min_sparsity)
        cases = run_cases(model, inputs)
        baseline_path = path.with_name(f"{path.stem}.dense{path.suffix}")
        baseline = None
        if dense_baseline:
            baseline = _write(
                model, inputs, cases, opset, scratch / baseline_path.name, external_data_threshold
            )
        change = 0.0
        if values_dtype != "float32":
            plans = [round_plan(plan, values_dtype) for plan in plans]
            round_weights(model, plans, getattr(torch, values_dtype))
            exact, cases = cases, run_cases(model, inputs)
            change = largest_change(exact, cases)
        model = replace_layers(model, plans)
        main = _write(model, inputs, cases, opset, scratch / path.name, external_data_threshold)
        file_bytes = main.staged.nbytes
        if baseline is not None:
            dense_bytes = baseline.staged.nbytes
            publish_model(baseline.staged, baseline_path)
        else:
            dense_bytes = file_bytes + _bytes_saved(plans)
        data_path = publish_model(main.staged, path)
    return ExportReport(
        path=str(path),
        data_path=str(data_path) if data_path else None,
        dense_path=str(baseline_path) if baseline else None,
        opset=opset,
        layers=_with_nodes(plans, main.nodes),
        fused=main.fused,
        parity=main.parity,
        not_checked=main.not_checked,
        file_bytes=file_bytes,
        dense_file_bytes=dense_bytes,
        dense_file_measured=baseline is not None,
        notes=_notes(plans, opset, None if baseline else baseline_path),
        output_rounding_error=change,
    )


@dataclass(frozen=True)
class _Written:
    """A verified model in the scratch folder, with what the report says about it."""

    staged: StagedModel
    nodes: dict[str, tuple[str, ...]]
    fused: tuple[str, ...]
    parity: tuple[ParityCheck, ...]
    not_checked: tuple[str, ...]


def _write(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    cases: Sequence[Case],
    opset: int,
    staged_path: Path,
    external_data_threshold: int,
) -> _Written:
    count = len(cases[0].outputs)
    names = ["output"] if count == 1 else [f"output_{i}" for i in range(count)]
    graph_model = torch_to_ir(model, inputs, names, opset)
    nodes = NameLayersPass()(graph_model).nodes
    fused = FuseActivationPass()(graph_model).fused
    common.RemoveUnusedNodesPass()(graph_model)
    common.ClearMetadataAndDocStringPass()(graph_model)
    ClearValueMetadataPass()(graph_model)
    AttachFunctionsPass()(graph_model)
    register_schemas()
    common.ShapeInferencePass()(graph_model)
    graph_model.ir_version = IR_VERSION
    graph_model.producer_name, graph_model.producer_version = "fanin", None
    staged = stage_model(graph_model, staged_path, external_data_threshold)
    check_structure(staged.path)
    parity, not_checked = check_parity(staged.path, Reference("torch", cases))
    return _Written(staged, nodes, tuple(fused), parity, not_checked)


def _resolve(
    model_or_run: nn.Module | str | os.PathLike[str],
    masks: Mapping[str, Tensor] | None,
    example_input: Tensor | Sequence[Tensor] | None,
) -> tuple[nn.Module, Mapping[str, Tensor] | None, Tensor | Sequence[Tensor]]:
    if isinstance(model_or_run, nn.Module):
        if example_input is None:
            raise ExportError("a module needs an example_input, a tensor [batch, ...] it accepts")
        return model_or_run, masks, example_input
    if masks is not None:
        raise ExportError("a run folder brings its own masks; leave `masks` out")
    from ..trainer.run_folder import load_run

    run = load_run(model_or_run)
    return run.model, run.masks, run.example_input if example_input is None else example_input


def _require_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, it must be {low} to {high}")


def _bytes_saved(plans: Sequence[LayerPlan]) -> int:
    return sum(
        plan.report.bytes_dense - plan.report.bytes_condensed
        for plan in plans
        if plan.report.bytes_condensed is not None
    )


def _with_nodes(
    plans: Sequence[LayerPlan], nodes: Mapping[str, tuple[str, ...]]
) -> tuple[LayerReport, ...]:
    reports = []
    for plan in plans:
        report = plan.report
        if plan.weight is not None:
            report = replace(report, nodes=nodes.get(plan.layer, ()))
        reports.append(report)
    return tuple(reports)


def _notes(
    plans: Sequence[LayerPlan], opset: int, unwritten_baseline: Path | None
) -> tuple[str, ...]:
    notes = []
    if unwritten_baseline is not None and unwritten_baseline.exists():
        notes.append(f"{unwritten_baseline} is from an earlier export, not from this one")
    if all(plan.weight is None for plan in plans):
        notes.append("no layer was condensed; the file is the dense model")
    if opset > DEFAULT_OPSET:
        notes.append(f"opset {opset} does not load in onnxruntime 1.20 and older")
    return tuple(notes)
