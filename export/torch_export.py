"""From a trained torch model to an ONNX file with condensed layers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from .._base.atomic import output_path, staging_folder
from ..ort_ops.format.condensed import VALUE_TYPES
from .compute import compute_notes, values_for, with_compute
from .dimensions import Dims
from .errors import ExportError
from .forms import Chooser, Policy
from .half_precision import in_precision, require_precision
from .lowering import final_layers
from .model_file import EXTERNAL_DATA_THRESHOLD, MAX_INLINE_BYTES, link_notes, publish_model
from .onnx_op import DEFAULT_OPSET, OPSETS
from .passes.condense import kept_names
from .ranges import require_range
from .report import (
    SPARSE,
    ExportReport,
    LayerReport,
    bytes_saved,
    note_on_sparsity,
    require_sparse_layers,
)
from .rounding import rounding_notes, with_rounding
from .torch_copy import eval_copy
from .torch_file import FileSettings, write_verified
from .torch_inputs import Call, Example, Shapes, call_of
from .torch_layers import check_masks, list_weights, merge_reports, tied_notes
from .torch_model import float64_noise, plain_torch, run_cases
from .verify import Case
from .verify_layers import LARGE


def export(
    model_or_run: nn.Module | str | os.PathLike[str],
    example_inputs: Example | None,
    path: str | os.PathLike[str],
    *,
    masks: Mapping[str, Tensor] | None = None,
    policy: Policy = "auto",
    batch: int = 1,
    threads: int = 1,
    device: str = "cpu",
    min_sparsity: float = SPARSE,
    portable: bool = False,
    fold: bool = True,
    opset: int = DEFAULT_OPSET,
    dense_baseline: bool = False,
    values_dtype: str = "float32",
    compute: str = "float32",
    precision: str = "float32",
    dynamic_shapes: Shapes | None = None,
    verify: bool = True,
    external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
    require_sparse: bool = False,
    dims: Dims | None = None,
) -> ExportReport:
    """Write a model to ONNX with its sparse layers as ``CondensedGemm`` and ``CondensedConv``.

    The model is copied; mode, weights and buffers of the one passed in stay as they are. The file
    is checked (onnx's full checker, strict shape inference, outputs against torch within 1e-5 of
    the largest output) before it gets its name; when anything fails there is no new file and an
    older one of that name is left alone. The first dimension of every input and output is the
    dynamic dimension "batch"; the second one of token ids (integers ``[batch, tokens]``) is
    "sequence" where torch can, and the report says where it cannot.

    A causal language model of transformers gets its cache as inputs and outputs of the file where
    ``example_inputs`` has a ``DynamicCache``, of any length or empty.

    Args:
        model_or_run: a module with float32 parameters, or the path of a finished run folder.
        example_inputs: float or integer tensors ``[batch, ...]`` that the model takes, in order or
            by name (as a tokenizer gives them); None for a run folder, which brings its own.
        path: the ONNX file; its folder must exist. What a link leads to is replaced.
        masks: bool tensors by qualified parameter name. When given, only these weights are
            candidates and the mask decides which entries are stored; without masks every linear
            layer is a candidate and its non-zero entries are stored. A run folder brings its own.
        policy: "auto" gives each layer the form that is predicted to be the fastest, "condensed",
            "structured" or "dense" the one that it names.
        batch: batch size that "auto" decides for.
        threads: intra-op threads of a session that "auto" decides for, 1 to 1024.
        device: what "auto" decides for: "cpu", "cuda" (the GPU that fanin calibrate measured, else
            the one in this machine, else an H200), or "cuda:NAME" of a known GPU.
        min_sparsity: candidates with a smaller share of left-out weights stay dense.
        portable: use standard operators only.
        fold: take ablated neurons out of the graph where only element-wise nodes follow.
        opset: version of the standard operators, 17 to 23.
        dense_baseline: also write the dense model, as ``NAME.dense.onnx`` beside ``NAME.onnx``.
        values_dtype: "float32", "float16" or "bfloat16": what the values of condensed layers are
            rounded to. Sums, biases, activations and layers of other forms stay float32, and so do
            weights that something else reads as well, which a note names. The outputs are then
            compared with torch on the rounded weights, and the report says what the rounding
            changed.
        compute: "bfloat16" lets condensed linear layers round their inputs to bfloat16 before they
            multiply them, which is faster on CPUs with AVX512-BF16; sums stay float32. It implies
            ``values_dtype="bfloat16"``. The file is compared as usual before, and then with the
            same values computed in float32, within 4e-2 of the largest output.
        precision: "float32", "float16" or "bfloat16": what the whole graph computes in, the dense
            baseline too. Inputs and outputs are of that type as well, but float32 for bfloat16.
            The file is compared in float32 first; then in the precision, where it may differ from
            float32 by four units in the last place of the type, or four times as much as the dense
            model in that precision does.
        dynamic_shapes: for each input the names of its dynamic dimensions by axis, such as
            ``{0: "batch", 1: "tokens"}``; or by the names of inputs, such as
            ``{"image": {2: "height"}}``, where the first one of each is "batch" anyway.
        verify: compare the file's outputs with torch. The structure is always checked.
        external_data_threshold: bytes of weights above which they go to a file of their own.
        require_sparse: fail where no layer of the file is sparse.
        dims: sizes of symbolic dimensions by name, such as ``{"tokens": 128}``, that "auto" decides
            for. The outputs are compared on the sizes of the example.

    Returns:
        What became of each layer, the parity error, and the sizes.

    Raises:
        ExportError: the model cannot be exported or the file fails its checks; says why and where.
        TypeError: the path stands where the example inputs belong.
        ValueError: an argument is out of its range.
        OSError: the output folder is missing or cannot be written.

    """
    if isinstance(example_inputs, str | os.PathLike):
        raise TypeError(
            f"example_inputs is the path {os.fspath(example_inputs)!r}; the order is "
            "export(model, example_inputs, path), with None for the inputs of a run folder"
        )
    path = Path(path)
    target = output_path(path)
    baseline_path = path.with_name(f"{path.stem}.dense{path.suffix}")
    require_range("min_sparsity", min_sparsity, 0, 1)
    if values_dtype not in VALUE_TYPES:
        raise ValueError(f"values_dtype is {values_dtype!r}, it must be {' or '.join(VALUE_TYPES)}")
    require_precision(precision, values_dtype)
    require_range("opset", opset, OPSETS.start, OPSETS.stop - 1)
    require_range("external_data_threshold", external_data_threshold, 0, MAX_INLINE_BYTES)
    values_dtype = values_for(compute, values_dtype, precision, portable=portable, device=device)
    chooser = Chooser.of(policy, batch, portable, threads, device, precision, dims)
    with ExitStack() as stack:
        scratch = stack.enter_context(staging_folder(target))
        if dense_baseline:
            baseline_target = output_path(baseline_path)
            if baseline_target == target:
                raise ValueError(f"{baseline_path} links to {target}; remove that link")
            baseline_scratch = stack.enter_context(staging_folder(baseline_target))
        stack.enter_context(plain_torch())
        model, masks, example_inputs = _resolve(model_or_run, target, masks, example_inputs)
        copied = eval_copy(model, masks)
        model, arrays = copied.model, check_masks(copied.model, copied.masks)
        call = call_of(model, example_inputs, dynamic_shapes, widen=copied.widened)
        if call.decodes:
            chooser = replace(chooser, tokens=1)
        weights = list_weights(model, arrays)
        large = sum(parameter.nbytes for parameter in model.parameters()) > LARGE
        # A large model is verified by layer: its outputs are not compared.
        cases = _cases(call, copied.widened) if verify and not large else []
        settings = FileSettings(
            call,
            chooser,
            fold,
            min_sparsity,
            arrays,
            opset,
            verify,
            external_data_threshold,
            float64_noise(model, cases),
            values_dtype,
            compute,
            precision,
        )
        baseline = None
        if dense_baseline:
            dense = replace(
                settings,
                masks={},
                min_sparsity=1.0,
                fold=False,
                values_dtype="float32",
                compute="float32",
            )
            baseline = write_verified(cases, dense, baseline_scratch / baseline_target.name)
        main = write_verified(cases, settings, scratch / target.name)
        reports = merge_reports(weights, main.layers, main.initializers)
        rounded = with_rounding(reports, main.rounding.errors, values_dtype)
        lowered = main.lowered
        made = baseline.made if baseline else None
        if main.made:
            rounded, lowered = in_precision(rounded, lowered, main.made, precision)
        layers = with_compute(final_layers(rounded, lowered), main.computed)
        listed = {layer.name for layer in layers}
        # torch writes copies of some parameters under names of its own.
        buffers = {name for name, _ in model.named_buffers()} - listed
        layers += tuple(layer for layer in main.elsewhere.layers if layer.name in buffers)
        sparsity = note_on_sparsity(layers, main.elsewhere.sparsest, min_sparsity)
        if require_sparse:
            require_sparse_layers(layers, sparsity)
        file_bytes = main.staged.nbytes
        if baseline is not None:
            dense_bytes = baseline.staged.nbytes
            publish_model(baseline.staged, baseline_target)
        else:
            dense_bytes = file_bytes + bytes_saved(layers, kept_names(main.kept))
        data_path = publish_model(main.staged, target)
    return ExportReport(
        path=str(path),
        data_path=str(data_path) if data_path else None,
        dense_path=str(baseline_path) if baseline else None,
        opset=opset,
        layers=layers,
        fused=main.lowered.fused,
        parity=main.parity,
        not_checked=main.not_checked,
        file_bytes=file_bytes,
        dense_file_bytes=dense_bytes,
        dense_file_measured=baseline is not None,
        notes=(
            *copied.notes,
            *main.notes,
            *tied_notes(model, layers),
            *sparsity,
            *main.kept,
            *_notes(layers, opset, values_dtype, precision, None if baseline else baseline_path),
            *(compute_notes(layers) if compute != "float32" else ()),
            *(main.made.notes if main.made else ()),
            *(f"dense baseline {note}" for note in (made.notes if made else ())),
            *link_notes(path, data_path),
        ),
        output_rounding_error=main.change,
        folded=main.lowered.folded,
        unfolded=main.lowered.unfolded,
        cost_model=chooser.costs.machine if policy == "auto" else "",
        threads=threads,
        measured_threads=chooser.costs.measured_threads,
        quantized_times=chooser.quantized_times(layers),
        device=chooser.device,
        counted_on=chooser.counted_on(layers),
        precision=precision,
        dense_precision_error=main.made.dense_error if main.made else None,
        other_cpu=chooser.other_cpu,
    )


def _cases(call: Call, widened: bool) -> list[Case]:
    try:
        return run_cases(call.model, call.batches)
    except ExportError as error:
        if not widened:
            raise
        raise ExportError(
            f"{error}. Half-precision parameters were widened to float32, so a forward that casts "
            "its tensors to half no longer fits them; remove the casts"
        ) from error


def _resolve(
    model_or_run: nn.Module | str | os.PathLike[str],
    target: Path,
    masks: Mapping[str, Tensor] | None,
    example_inputs: Example | None,
) -> tuple[nn.Module, Mapping[str, Tensor] | None, Example]:
    if isinstance(model_or_run, nn.Module):
        if example_inputs is None:
            raise ExportError("a module needs example_inputs, tensors [batch, ...] that it accepts")
        return model_or_run, masks, example_inputs
    if masks is not None:
        raise ExportError("a run folder brings its own masks; leave `masks` out")
    from ..trainer.run_folder import FILES, load_run

    run = load_run(model_or_run)
    if any(target.exists() and target.samefile(run.path / name) for name in FILES):
        raise ValueError(f"{target} belongs to the run; give the model another name")
    return run.model, run.masks, run.example_input if example_inputs is None else example_inputs


def _notes(
    layers: Sequence[LayerReport],
    opset: int,
    values_dtype: str,
    precision: str,
    unwritten_baseline: Path | None,
) -> tuple[str, ...]:
    notes = []
    if unwritten_baseline is not None and unwritten_baseline.exists():
        notes.append(f"{unwritten_baseline} is from an earlier export, not from this one")
    if all(layer.bytes_condensed is None for layer in layers):
        notes.append("no layer was condensed; the file is the dense model")
    if precision == "float32":
        why = "something else reads the weight, or the graph computes it"
        notes += rounding_notes(layers, values_dtype, why)
    if opset > DEFAULT_OPSET:
        notes.append(f"opset {opset} does not load in onnxruntime 1.20 and older")
    return tuple(notes)
