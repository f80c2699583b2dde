"""From a run folder or a sparse float32 ONNX file to one that computes in 8 bits."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..._base.atomic import output_path, staging_folder
from ..engines import EngineUnavailableError, Run, load_original, load_plain, load_with_library
from ..errors import ExportError
from ..forms import Chooser, Policy
from ..layer_names import name_in_reports
from ..model_file import publish_model
from ..onnx_cases import cases_for
from ..onnx_source import data_files
from ..passes.access import name_of
from ..ranges import require_range
from ..verify import case_batch
from .build import Builder, Built, Form
from .float_model import CONV, FloatModel, Layer, layer_name, load_float_model
from .output_error import OutputError, Outputs, accuracy, compare, run_all
from .report import QuantizationReport, QuantizedLayer
from .samples import ArraySource, Samples, read_samples
from .selection import Ranking, Selection
from .static import METHODS, Method
from .trial import Trial

Progress = Callable[[str, float], None]
"""Called with what is being done, and the share of the work that is behind."""

_RANKED = 64
"""Samples that sets of layers are tried on."""

_FEW = 16
"""Samples below which the ranges of activations deserve a warning."""

_NO_CONV = "convolutions are quantized only with samples"


def quantize(
    source: str | os.PathLike[str],
    onnx_out: str | os.PathLike[str],
    *,
    calibration: ArraySource | None = None,
    dynamic: bool = False,
    method: Method | None = None,
    max_error: float | None = None,
    policy: Policy = "auto",
    batch: int = 1,
    threads: int = 1,
    min_sparsity: float = 0.5,
    data_dir: str | os.PathLike[str] | None = None,
    rank: bool = True,
    verify: bool = True,
    progress: Progress = lambda title, done: None,  # noqa: ARG005
) -> QuantizationReport:
    """Write a model with weights and activations of 8 bits, its sparse layers condensed.

    ONNX Runtime's quantizer rounds weights to int8, symmetric and with a scale for each output, so
    that zeros stay zeros. Activations become uint8, with ranges found on samples or, with
    ``dynamic``, in each run. :func:`fanin.export.convert` then condenses what is sparse.

    Args:
        source: a finished run folder, or a float32 ONNX file: with dense weights that hold zeros,
            or condensed by fanin. It is only read.
        onnx_out: the file to write; its folder must exist.
        calibration: samples to find ranges on, and to compare outputs on where no others are
            known: a .npz file or a mapping with an array ``[samples, ...]`` for each input by its
            name, or a .npy file for a model of one input. Run folders have 512 training samples of
            their data set without it, and their test samples to compare on.
        dynamic: let each run find the ranges. Only linear layers are quantized then, and ONNX
            files without ``calibration`` are compared on made-up inputs.
        method: "min-max" (the default), "entropy" or "percentile": how ranges follow from the
            samples.
        max_error: keep the layers that hurt most in float32 until the outputs differ by at most
            this: root mean square of the difference over that of the float outputs.
        policy: form of the sparse layers, as in convert.
        batch: batch size that "auto" decides for.
        threads: threads of a session that "auto" decides for.
        min_sparsity: layers with a smaller share of zeros stay dense, in 8 bits.
        data_dir: folder of the run's data set, if it has files.
        rank: measure the error that each layer causes alone; ``max_error`` needs it.
        verify: compare the file with the graph of ONNX Runtime's quantizer, as convert does.
        progress: is told what is being done.

    Returns:
        What became of each layer, the error of the outputs, accuracies where samples have labels,
        and the sizes.

    Raises:
        FileNotFoundError: there is no such source, or no such samples.
        ExportError: the model or the samples do not fit, or no file meets ``max_error``; nothing
            is written.
        ValueError: an argument is out of its range.
        OSError: the output folder is missing or cannot be written.

    """
    source, target = Path(source), output_path(onnx_out)
    _check_arguments(dynamic, method, max_error, rank, min_sparsity)
    form = Form(policy, batch, threads, min_sparsity, verify)
    Chooser.of(policy, batch, portable=False, threads=threads)
    is_run = source.is_dir()
    _require_other_file(source, target, calibration, onnx_out)
    with staging_folder(target) as scratch:
        progress("reading the model", 0.0)
        path = _dense_file(source, scratch) if is_run else source
        floats = load_float_model(path)
        needed = frozenset() if is_run else data_files(path)
        if target.resolve() in needed:
            raise ValueError(f"{onnx_out} holds weights of {source}; give the result another name")
        layers = _candidates(source, floats, dynamic)
        samples, compared, notes = _samples(source, path, floats, calibration, data_dir, dynamic)
        progress("running the float model", 0.1)
        expected = run_all(load_original(path), compared, source)
        _require_finite(source, compared, expected)
        builder = Builder(
            floats, scratch, target.name, samples, method or METHODS[0], form, compared
        )
        ranking, kept = Ranking(layers, {}), 0
        if rank:
            selection = Selection(_trial(builder, layers), compared.first(_RANKED))
            ranking = selection.rank(
                layers, lambda done: progress("quantizing one layer at a time", 0.2 + 0.4 * done)
            )
            if max_error is not None:
                kept = selection.fewest_floats(ranking, max_error)
        result = _build(builder, ranking, kept, expected, max_error, progress)
        file_bytes = result.built.staged.nbytes
        data_path = publish_model(result.built.staged, target, keep=needed)
    reports = _reports(floats, ranking, result, dynamic, max_error)
    if not any(report.form == "condensed int8" for report in reports):
        notes += ("no 8-bit layer is condensed: ONNX Runtime's own kernels compute them",)
    labels = compared.labels
    return QuantizationReport(
        path=os.fspath(onnx_out),
        method="dynamic" if dynamic else builder.method,
        calibrated_on=None if samples is None else str(samples),
        compared_on=str(compared),
        layers=reports,
        error=result.error,
        accuracy_before=None if labels is None else accuracy(expected, labels),
        accuracy_after=None if labels is None else accuracy(result.outputs, labels),
        max_error=max_error,
        file_bytes=file_bytes,
        float_bytes=floats.nbytes,
        export=replace(
            result.built.report,
            path=os.fspath(onnx_out),
            data_path=str(data_path) if data_path else None,
        ),
        notes=(*floats.notes, *notes),
    )


def _check_arguments(
    dynamic: bool,
    method: str | None,
    max_error: float | None,
    rank: bool,
    min_sparsity: float,
) -> None:
    require_range("min_sparsity", min_sparsity, 0, 1)
    if method is not None and method not in METHODS:
        raise ValueError(f"method is {method!r}, it must be {', '.join(METHODS)}")
    if method is not None and dynamic:
        raise ValueError("method belongs to static quantization; leave it or dynamic out")
    if max_error is not None and not 0 < max_error < math.inf:
        raise ValueError(f"max_error is {max_error:g}, it must be over 0")
    if max_error is not None and not rank:
        raise ValueError("max_error needs to know which layers hurt most; do not switch rank off")


def _require_other_file(
    source: Path, target: Path, calibration: ArraySource | None, given: str | os.PathLike[str]
) -> None:
    """Refuse an output that would replace what is read."""
    if not target.exists():
        return
    if source.is_dir():
        from .run_samples import belongs_to

        if belongs_to(source, target):
            raise ValueError(f"{given} belongs to the run; give the model another name")
    elif source.exists() and target.samefile(source):
        raise ValueError(f"{given} is the model itself; give the result another name")
    if isinstance(calibration, str | os.PathLike):
        data = Path(calibration)
        if data.exists() and target.samefile(data):
            raise ValueError(f"{given} holds the samples; give the model another name")


def _dense_file(run: Path, scratch: Path) -> Path:
    """Export a run folder in standard operators, which the export verifies."""
    from ..torch_export import export

    path = scratch / "dense.onnx"
    export(run, None, path, policy="dense", portable=True)
    return path


def _candidates(source: Path, floats: FloatModel, dynamic: bool) -> tuple[Layer, ...]:
    layers = tuple(layer for layer in floats.layers if _obstacle(layer, dynamic) is None)
    if not layers:
        first = floats.layers[0]
        raise ExportError(
            f"no layer of {source} can be quantized; {first.name}: {_obstacle(first, dynamic)}"
        )
    return layers


def _obstacle(layer: Layer, dynamic: bool) -> str | None:
    return (
        _NO_CONV
        if layer.obstacle is None and dynamic and layer.op_type == CONV
        else (layer.obstacle)
    )


def _samples(
    source: Path,
    path: Path,
    floats: FloatModel,
    calibration: ArraySource | None,
    data_dir: str | os.PathLike[str] | None,
    dynamic: bool,
) -> tuple[Samples | None, Samples, tuple[str, ...]]:
    """Return the samples to find ranges on, those to compare on, and notes."""
    given = None if calibration is None else read_samples(calibration, floats.model)
    compared, notes = given, []
    if source.is_dir():
        from .run_samples import run_samples

        try:
            training, compared = run_samples(
                source, data_dir, name_of(floats.model.graph.inputs[0])
            )
            given = given or training
        except ExportError as error:
            if given is None:
                raise
            notes.append(f"accuracy was not measured: {error}")
    elif data_dir is not None:
        raise ValueError("data_dir belongs to run folders; leave it out")
    if dynamic:
        return None, compared or _made_up(path), tuple(notes)
    if given is None or compared is None:
        raise ExportError(
            f"{source} is no run folder, which would bring samples to find the ranges of "
            "activations on; give them (--calibration FILE.npz), or quantize it with --dynamic"
        )
    if given.count < _FEW:
        notes.append(
            f"{given} {'are' if given.count > 1 else 'is'} few: values beyond their ranges are cut "
            "off; give some hundred"
        )
    notes += [
        f"{name} is 0 in {given}: ranges of activations follow from nothing; give typical samples"
        for name in given.feeds[0]
        if not any(np.any(feeds[name]) for feeds in given.feeds)
    ]
    return given, compared, tuple(notes)


def _made_up(path: Path) -> Samples:
    remedy = "give samples to compare on (--calibration FILE.npz)"
    cases, names = cases_for(path, None, remedy)
    feeds = tuple(dict(zip(names, case.inputs, strict=True)) for case in cases)
    return Samples(feeds, sum(map(case_batch, cases)), "made-up inputs, of a normal distribution")


def _require_finite(source: Path, samples: Samples, outputs: Sequence[Outputs]) -> None:
    for run in outputs:
        for output in run:
            if output.dtype.kind == "f" and not np.isfinite(output).all():
                raise ExportError(
                    f"the outputs of {source} are not finite on {samples}; nothing was written"
                )


def _trial(builder: Builder, layers: Sequence[Layer]) -> Trial:
    grids = builder.grids(layers)
    return Trial(builder.floats, layers, grids, builder.scratch / "trial.onnx")


@dataclass(frozen=True)
class _Result:
    """A built file and what it computes.

    Attributes:
        built: the file.
        outputs: for the samples that are compared.
        error: of the outputs.
        quantized: nodes of the layers in 8 bits.

    """

    built: Built
    outputs: list[Outputs]
    error: OutputError
    quantized: frozenset[str]


def _build(
    builder: Builder,
    ranking: Ranking,
    kept: int,
    expected: Sequence[Outputs],
    max_error: float | None,
    progress: Progress,
) -> _Result:
    """Build the file, with more layers from the front of the ranking as floats if necessary."""
    layers = ranking.layers
    while True:
        progress("quantizing and converting", 0.6)
        built = builder.build(layers[kept:])
        progress("running the quantized model", 0.9)
        outputs = run_all(_load(built.staged.path), builder.compared, "the quantized model")
        error = compare(expected, outputs)
        if max_error is None or error.relative <= max_error:
            return _Result(built, outputs, error, frozenset(x.node for x in layers[kept:]))
        kept += 1
        if kept == len(layers):
            raise ExportError(
                f"no layer can be quantized within a max_error of {max_error:g}: even "
                f"{layers[-1].name} alone, which hurts least, changes the outputs by "
                f"{error.relative:.3g}; nothing was written"
            )


def _load(path: Path) -> Run:
    try:
        return load_with_library(path)
    except EngineUnavailableError:
        return load_plain(path)


def _reports(
    floats: FloatModel,
    ranking: Ranking,
    result: _Result,
    dynamic: bool,
    max_error: float | None,
) -> tuple[QuantizedLayer, ...]:
    converted = {layer_name(layer.name): layer for layer in result.built.report.layers}
    places = {layer.node: place for place, layer in enumerate(ranking.layers)}
    ordered = sorted(floats.layers, key=lambda layer: places.get(layer.node, len(places)))
    reports = []
    for layer in ordered:
        reason = _obstacle(layer, dynamic) or ""
        if not reason and layer.node not in result.quantized:
            reason = f"kept for max_error {max_error:g}"
        found = converted.get(layer.name)
        decision = "dense" if found is None else found.decision
        form = f"{decision} {'float32' if reason else 'int8'}"
        if found is not None and form == "dense int8":
            reason = found.reason
        reports.append(
            QuantizedLayer(
                name_in_reports(layer.name, layer.node),
                layer.op_type,
                layer.weight.shape,
                layer.sparsity,
                ranking.errors.get(layer.node),
                form,
                reason,
            )
        )
    return tuple(reports)
