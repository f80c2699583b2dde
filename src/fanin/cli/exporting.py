"""fanin export, quantize, inspect and calibrate."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._base.atomic import output_folder, output_path
from .._base.local_paths import RemotePathError, refuse_address
from .common import CustomOpLibraries, dims_of, readable, refuse, requires, say, show, show_sheet
from .pages import require_page, write_export_page, write_inspection_page
from .sources import refuse_torch_file

if TYPE_CHECKING:
    from ..export import ExportReport
    from ..ort_ops.dispatch_cost import DispatchCalibration

_CALIBRATIONS = ("dispatch", "layers", "int8")

_Batch = Annotated[int, typer.Option(help="Batch size for which auto chooses.")]
_Threads = Annotated[
    int, typer.Option(help="Threads of the session for which auto chooses, 1 to 1024.")
]
_Device = Annotated[
    str,
    typer.Option(
        help="Device for which auto chooses: cpu, cuda, or cuda:NAME of a GPU, as cuda:h100."
    ),
]
_Dim = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=SIZE",
        help="Size of a symbolic dimension for which auto chooses and outputs are compared, as "
        "sequence=128; repeat it for several.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
_Measure = Annotated[
    bool,
    typer.Option("--measure", help="Run the models, and put the times of their nodes on the page."),
]


def export(
    source: Annotated[Path, typer.Argument(help="Finished run folder, or an ONNX file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="ONNX file to write.")],
    policy: Annotated[
        str,
        typer.Option(
            help="Form of the sparse layers: auto (the fastest predicted), condensed, structured "
            "or dense."
        ),
    ] = "auto",
    batch: _Batch = 1,
    threads: _Threads = 1,
    device: _Device = "cpu",
    opset: Annotated[
        int | None,
        typer.Option(
            help="Version of the standard operators, 17 to 23; an ONNX file keeps its own.",
            show_default="20",
        ),
    ] = None,
    min_sparsity: Annotated[
        float, typer.Option(help="Layers with a smaller share of zeros stay dense.")
    ] = 0.5,
    portable: Annotated[
        bool, typer.Option("--portable", help="Standard operators only, for any runtime.")
    ] = False,
    fold: Annotated[bool, typer.Option(help="Remove ablated neurons from the graph.")] = True,
    verify: Annotated[
        bool, typer.Option(help="Compare the outputs with those of the source before writing.")
    ] = True,
    dense_baseline: Annotated[
        bool,
        typer.Option("--dense-baseline", help="Also write OUT.dense.onnx as a baseline."),
    ] = False,
    values_dtype: Annotated[
        str,
        typer.Option(
            help="Type of float32 values in condensed layers: float32, float16 or bfloat16."
        ),
    ] = "float32",
    compute: Annotated[
        str,
        typer.Option(
            help="What condensed linear layers multiply in: float32, or bfloat16, to which weights "
            "and inputs are rounded (faster on CPUs with AVX512-BF16)."
        ),
    ] = "float32",
    precision: Annotated[
        str,
        typer.Option(
            help="Type of the whole graph: float32 (an ONNX file keeps its own), float16 or "
            "bfloat16."
        ),
    ] = "float32",
    require_sparse: Annotated[
        bool,
        typer.Option("--require-sparse", help="Fail where no layer of the file is sparse."),
    ] = False,
    dim: _Dim = None,
    as_json: _Json = False,
    report_html: Annotated[
        Path | None,
        typer.Option(help="Also write a page about the layers, before and after, to this file."),
    ] = None,
    measure: _Measure = False,
    custom_op_library: CustomOpLibraries = None,
) -> None:
    """Write a run or an ONNX file to ONNX with its sparse layers as CondensedGemm, verified."""
    common = {
        "policy": policy,
        "batch": batch,
        "threads": threads,
        "device": device,
        "min_sparsity": min_sparsity,
        "portable": portable,
        "fold": fold,
        "verify": verify,
        "values_dtype": values_dtype,
        "require_sparse": require_sparse,
        "compute": compute,
        "precision": precision,
        "dims": dims_of(dim),
    }
    with readable(RemotePathError):
        refuse_address(source)
    if os.path.isdir(out):
        refuse(f"{out} is a folder; name a file in it")
    refuse_torch_file(source, 'fanin.export.export(model, example_inputs, "model.onnx")')
    baseline = out.with_name(f"{out.stem}.dense{out.suffix}")
    require_page(report_html, "--report-html", source, out, baseline, measure=measure)
    if os.path.isfile(source) or (source.suffix == ".onnx" and not os.path.isdir(source)):
        common["custom_op_libraries"] = custom_op_library or ()
        report = _convert(source, out, common, opset, dense_baseline)
    elif custom_op_library:
        message = "belongs to ONNX files; leave it out"
        raise typer.BadParameter(message, param_hint="--custom-op-library")
    else:
        report = _export(source, out, common, opset, dense_baseline)
    show(report, as_json=as_json)
    if report_html is not None:
        write_export_page(report_html, report, source, common, measure=measure)


def _convert(
    source: Path,
    out: Path,
    common: dict[str, Any],
    opset: int | None,
    dense_baseline: bool,
) -> ExportReport:
    given = {"--opset": opset, "--dense-baseline": dense_baseline or None}
    for name, value in given.items():
        if value is not None:
            raise typer.BadParameter("belongs to run folders; leave it out", param_hint=name)
    requires("export", "onnx", "onnx_ir")
    from ..export import ExportError, convert

    with readable(ExportError, OSError, ValueError):
        return convert(source, out, **common)


def _export(
    source: Path,
    out: Path,
    common: dict[str, Any],
    opset: int | None,
    dense_baseline: bool,
) -> ExportReport:
    requires("train", "torch", "onnx", "onnxscript", "safetensors")
    from ..export import ExportError
    from ..export import export as write
    from ..export.onnx_op import DEFAULT_OPSET
    from ..trainer import RunFolderError

    with readable(ExportError, RunFolderError, OSError, ValueError):
        return write(
            source,
            None,
            out,
            opset=DEFAULT_OPSET if opset is None else opset,
            dense_baseline=dense_baseline,
            **common,
        )


def quantize(
    source: Annotated[Path, typer.Argument(help="Finished run folder, or a float32 ONNX file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="ONNX file to write.")],
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Samples to find the ranges of activations on: a .npz with an array for each "
            "input by its name, or a .npy for a model of one input. [default: 512 training samples "
            "of a run folder's data set]"
        ),
    ] = None,
    dynamic: Annotated[
        bool,
        typer.Option(
            "--dynamic", help="Find ranges in each run, without samples; linear layers only."
        ),
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(
            help="How ranges follow from the samples: min-max, entropy or percentile.",
            show_default="min-max",
        ),
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            help="Keep the layers that hurt most in float32 until the outputs differ by at most "
            "this share (0.01: 1 %), as a root mean square."
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Form of the sparse layers, as in fanin export.")
    ] = "auto",
    batch: _Batch = 1,
    threads: _Threads = 1,
    min_sparsity: Annotated[
        float, typer.Option(help="Layers with a smaller share of zeros stay dense, in 8 bits.")
    ] = 0.5,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder that holds the run's data set.")
    ] = None,
    rank: Annotated[bool, typer.Option(help="Measure the error that each layer causes.")] = True,
    verify: Annotated[
        bool, typer.Option(help="Compare the file with the quantized graph before writing.")
    ] = True,
    as_json: _Json = False,
) -> None:
    """Write a sparse run or ONNX file with weights and activations of 8 bits."""
    requires("export", "onnx", "onnx_ir")
    requires("bench", "onnxruntime")
    if os.path.isdir(source):
        requires("train", "torch", "onnxscript", "safetensors")
    from ..export import ExportError
    from ..export import quantize as write

    errors: list[type[Exception]] = [ExportError, OSError, ValueError]
    if os.path.isdir(source):
        from ..trainer import RunFolderError

        errors.append(RunFolderError)
    with readable(*errors):
        report = write(
            source,
            out,
            calibration=calibration,
            dynamic=dynamic,
            method=method,  # type: ignore[arg-type]  # checked there
            max_error=max_error,
            policy=policy,  # type: ignore[arg-type]
            batch=batch,
            threads=threads,
            min_sparsity=min_sparsity,
            data_dir=data_dir,
            rank=rank,
            verify=verify,
            progress=say,
        )
    show(report, as_json=as_json)


def inspect(
    file: Annotated[Path, typer.Argument(help="ONNX file.")],
    batch: _Batch = 1,
    threads: _Threads = 1,
    device: _Device = "cpu",
    dim: _Dim = None,
    as_json: _Json = False,
    html: Annotated[
        Path | None, typer.Option(help="Also write a page about the layers to this file.")
    ] = None,
    measure: _Measure = False,
) -> None:
    """List the condensed layers of an ONNX file, or how an export would convert its layers."""
    requires("export", "onnx", "onnx_ir")
    require_page(html, "--html", file, measure=measure)
    from ..export import ExportError
    from ..export import inspect as look
    from ..export.onnx_convert import plan_model
    from ..export.plan import describe_layers

    asked: dict[str, Any] = {
        "batch": batch,
        "threads": threads,
        "device": device,
        "dims": dims_of(dim),
    }
    with readable(ExportError, OSError, ValueError):
        inspection = look(file)
        plan = None
        if not inspection.layers or html is not None:
            layers, model = plan_model(file, **asked)
        if not inspection.layers:
            plan = describe_layers(file, layers, **asked)
    if as_json:
        with readable(OSError):
            typer.echo(
                json.dumps(inspection.to_dict() | {"plan": plan and plan.to_dict()}, indent=2)
            )
    else:
        sheet = inspection.sheet()
        if plan is None:
            show_sheet(sheet)
        else:  # a table of no layers says nothing
            with readable(OSError):
                print("\n".join((sheet.title, *sheet.notes)), end="\n\n", flush=True)
            show(plan, as_json=False)
    if html is not None:
        write_inspection_page(html, inspection, layers, model, asked, measure=measure)


def calibrate(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File to write; others are named after it.",
            show_default="where fanin export looks for it",
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            help="Threads with which layers are measured, at most as many as there are CPUs. Times "
            "on several go to OUT.N-threads.json; fanin export --threads N takes them."
        ),
    ] = 1,
    of: Annotated[
        str,
        typer.Option(
            help="What to measure: dispatch (starting a run on several threads, for open_session: "
            "seconds), layers (dense and condensed, for fanin export --policy auto: two minutes, "
            "longer with several threads), int8 (the same of 8-bit layers)."
        ),
    ] = ",".join(_CALIBRATIONS),
    device: Annotated[
        str,
        typer.Option(
            help="cuda measures this machine's GPU instead, for fanin export --device cuda, into "
            "OUT.cuda.json: large layers, dense and by each kernel, read from memory."
        ),
    ] = "cpu",
) -> None:
    """Measure this machine, for the choices of open_session and fanin export --policy auto."""
    requires("bench", "onnx", "onnxruntime")
    from .._base.user_folders import user_calibration_path
    from ..deploy import SessionError
    from ..deploy.bench.suites.calibrate import CalibrationSpec
    from ..deploy.bench.suites.calibrate import calibrate as measure
    from ..deploy.bench.suites.calibrate_dispatch import calibrate_dispatch
    from ..deploy.bench.suites.calibrate_int8 import BATCHES, calibrate_int8
    from ..export.calibration_files import quantized_path, table_path
    from ..ort_ops.dispatch_cost import dispatch_path

    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"{device!r}: there are cpu and cuda", param_hint="--device")
    if device == "cuda" and (threads != 1 or of != ",".join(_CALIBRATIONS)):
        message = "a GPU is measured by itself; leave --of and --threads out"
        raise typer.BadParameter(message, param_hint="--device")
    parts = of.split(",")
    if not set(parts) <= set(_CALIBRATIONS):
        message = f"{of!r}: there are {', '.join(_CALIBRATIONS)}"
        raise typer.BadParameter(message, param_hint="--of")
    if threads != 1 and parts == ["dispatch"]:
        message = "belongs to layers; a dispatch is measured with several numbers of threads anyway"
        raise typer.BadParameter(message, param_hint="--threads")
    with readable(ValueError):
        spec = CalibrationSpec(threads=threads)
    path = out or user_calibration_path()
    if path is None:
        raise typer.BadParameter(
            "this user has no home folder to keep the calibration in; name a file, here or in "
            "FANIN_CALIBRATION",
            param_hint="--out",
        )
    with readable(RemotePathError):  # before others are named after it
        refuse_address(path)
    if os.path.isdir(path):
        refuse(f"{path} is a folder; name a file in it")
    if device == "cuda":
        _calibrate_cuda(path)
        return
    with readable(SessionError, OSError):
        output_folder(path.parent)
        output_path(path)
        table = table_path(path, threads)
        quantized = table_path(quantized_path(path), threads)
        output_path(table)
        output_path(quantized)
        if "dispatch" in parts:
            _save_dispatch(calibrate_dispatch(progress=say), dispatch_path(path))
        if "layers" in parts:
            measure(spec, progress=say).save(table)
            typer.echo(f"Wrote {table}")
        if "int8" in parts:
            calibrate_int8(replace(spec, batches=BATCHES), progress=say).save(quantized)
            typer.echo(f"Wrote {quantized}")


def _calibrate_cuda(calibration: Path) -> None:
    from ..deploy import SessionError
    from ..deploy.bench.suites.calibrate_cuda import calibrate_cuda
    from ..export.gpus import gpu_table_path, save_gpu

    table = gpu_table_path(calibration)
    with readable(SessionError, OSError):
        output_folder(table.parent)
        output_path(table)
        gpu = calibrate_cuda(progress=say)
        save_gpu(gpu, table)
    factors = ", ".join(f"{family} {factor:.2g}" for family, factor in gpu.factors.items())
    typer.echo(
        f"Wrote {table}: times on {gpu.name}, as multiples of what is expected from an H200's: "
        f"{factors}"
    )


def _save_dispatch(measured: DispatchCalibration | None, path: Path) -> None:
    if measured is None:
        typer.echo("There is a single CPU, so that no dispatch was measured")
        return
    measured.save(path)
    threads = ", ".join(map(str, measured.threads))
    spinning, sleeping = (
        f"{cost.fixed:.3g} + {cost.per_thread:.3g} n µs"
        for cost in (measured.spinning, measured.sleeping)
    )
    typer.echo(
        f"Wrote {path}: starting n threads that spin takes {spinning}, {sleeping} if they sleep "
        f"(measured with {threads} threads; other numbers follow from that)"
    )
