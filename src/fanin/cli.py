"""Command line of fanin: thin commands, each importing only the package that it uses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import __version__

if TYPE_CHECKING:
    from rich.table import Table

    from .deploy.bench import KernelsResult, Result
    from .deploy.bench.trained_layer import TrainedLayer
    from .export import ExportReport
    from .trainer.analysis import Analysis

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train with constant fan-in sparsity, export to ONNX, run it faster than dense.",
)
analyze = typer.Typer(no_args_is_help=True, help="Tables and figures of runs, sweeps, the paper.")
app.add_typer(analyze, name="analyze")
bench = typer.Typer(no_args_is_help=True, help="Measure against dense, interleaved in one run.")
app.add_typer(bench, name="bench")


def main() -> None:
    """Entry point of the ``fanin`` command."""
    app()


@contextmanager
def _readable(*errors: type[Exception]) -> Iterator[None]:
    """Turn the errors that a user can mend into one line on stderr and exit status 1."""
    try:
        yield
    except BrokenPipeError:
        raise  # The reader has seen enough, as `head` has: typer ends quietly.
    except errors as error:
        typer.secho(f"fanin: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None
    except MemoryError as error:
        typer.secho(f"fanin: out of memory: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None


def _requires(extra: str, *modules: str) -> None:
    """End with the pip command when an optional dependency of the command is missing."""
    from importlib.util import find_spec

    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        typer.secho(
            f"fanin: this command needs {', '.join(missing)}; run: pip install 'fanin[{extra}]'",
            fg=typer.colors.RED,
            err=True,
        )
        raise typer.Exit(1)


def _require_writable(folder: Path) -> None:
    """Make the results' folder before the measurement, so that a bad one loses no time."""
    import tempfile

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _numbers(text: str, kind: type, option: str) -> tuple:
    """Parse ``1,16,64``; a bad entry is an error that names the option."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a comma-separated list of numbers", param_hint=option
        ) from None


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"fanin {__version__}")
        raise typer.Exit


@app.command()
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A TOML recipe, or the name of a shipped one; not needed to resume."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder to write.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data set.")] = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
    recipes: Annotated[bool, typer.Option("--recipes", help="List the shipped recipes.")] = False,
    sparsity: Annotated[
        float | None, typer.Option(help="Instead of the recipe's method.sparsity.")
    ] = None,
    epochs_factor: Annotated[
        float | None, typer.Option(help="Train so many times as long, schedule included.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another value of the recipe: TABLE.KEY=VALUE, as in TOML."),
    ] = None,
) -> None:
    """Train a recipe into a run folder."""
    _requires("train", "torch", "torchvision", "safetensors")
    from .trainer import ConfigError, DataError, RunFolderError, TrainingError, recipe_names
    from .trainer import train as run_training
    from .trainer.recipe import adjusted

    if recipes:
        typer.echo("\n".join(recipe_names()))
        return
    if out is None or (recipe is None and not resume):
        raise typer.BadParameter("give a recipe and --out RUN (or --resume --out RUN)")
    changes = list(set_ or []) + ([] if sparsity is None else [f"method.sparsity={sparsity}"])
    if recipe is None and (changes or epochs_factor):
        raise typer.BadParameter("a resumed run keeps its configuration; give the recipe, too")
    with _readable(ConfigError, DataError, RunFolderError, TrainingError, OSError):
        config = None if recipe is None else adjusted(recipe, changes, epochs_factor)
        result = run_training(config, out, resume=resume, data_dir=data_dir, progress=progress)
    if os.environ.get("RANK", "0") != "0":  # of torchrun: one process speaks for all
        return
    typer.echo(result.summary)
    typer.echo(f"test accuracy {result.test_accuracy:.2%} after {result.steps} steps; run: {out}")


@app.command()
def sweep(
    sweep_file: Annotated[
        str | None, typer.Argument(help="A TOML sweep, or the name of a shipped one.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the runs.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data set.")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Run as tasks of Ray Tune.")] = False,
    sweeps: Annotated[bool, typer.Option("--sweeps", help="List the shipped sweeps.")] = False,
) -> None:
    """Train every combination of a grid; finished runs are kept, interrupted ones go on."""
    _requires("train", "torch", "torchvision", "safetensors")
    if ray:
        _requires("ray", "ray")
    from .trainer import ConfigError, DataError, RunFolderError, TrainingError
    from .trainer.analysis import analyse_sweep
    from .trainer.sweep import run_sweep
    from .trainer.sweep_config import sweep_names

    if sweeps:
        typer.echo("\n".join(sweep_names()))
        return
    if out is None or sweep_file is None:
        raise typer.BadParameter("give a sweep and --out FOLDER")

    def say(run: object, number: int, total: int) -> None:
        _say(run.name, number / total)

    with _readable(ConfigError, DataError, RunFolderError, TrainingError, OSError):
        records = run_sweep(sweep_file, out, data_dir=data_dir, ray=ray, on_run=say)
    typer.echo(analyse_sweep(records)[0].to_markdown())
    failed = [record for record in records if record.error]
    for record in failed:
        typer.secho(f"{record.name}: {record.error}", fg=typer.colors.RED, err=True)
    if failed:
        raise typer.Exit(1)


@analyze.command("run")
def analyze_run(
    run: Annotated[Path, typer.Argument(help="Finished run folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for tables and figures.")],
) -> None:
    """Neurons, fan-ins, thresholds, exploration and operations of a run."""
    _requires("train", "torch", "torchvision", "safetensors")
    _requires("bench", "matplotlib")
    from .trainer import RunFolderError, load_run
    from .trainer.analysis import analyse_run

    with _readable(RunFolderError, OSError, ValueError):
        _save_analyses(analyse_run(load_run(run)), out)


@analyze.command("sweep")
def analyze_sweep(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep, finished or not.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for tables and figures.")],
    against: Annotated[
        str | None, typer.Option(help="Variant to compare the others with, seed by seed.")
    ] = None,
) -> None:
    """Accuracy against what was varied, methods side by side, layers."""
    _requires("train", "torch", "safetensors")
    _requires("bench", "matplotlib")
    from .trainer.analysis import analyse_sweep
    from .trainer.sweep import read_records

    with _readable(OSError, ValueError):
        _save_analyses(analyse_sweep(read_records(folder), folder, against=against), out)


@analyze.command("paper")
def analyze_paper(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for tables and figures.")],
    draws: Annotated[int, typer.Option(help="Draws of the variance simulation.")] = 20_000,
) -> None:
    """Variance, operations of ResNet-50, and the published tables."""
    _requires("train", "torch", "torchvision")
    _requires("bench", "matplotlib")
    from .trainer.analysis import analyse_paper

    with _readable(OSError, ValueError):
        _save_analyses(analyse_paper(draws), out)


@app.command()
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
    batch: Annotated[int, typer.Option(help="Batch size that auto decides for.")] = 1,
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
    fold: Annotated[bool, typer.Option(help="Take ablated neurons out of the graph.")] = True,
    verify: Annotated[
        bool, typer.Option(help="Compare the outputs with the source's before writing.")
    ] = True,
    dense_baseline: Annotated[
        bool,
        typer.Option("--dense-baseline", help="Also write OUT.dense.onnx, to measure against."),
    ] = False,
    values: Annotated[
        str | None,
        typer.Option(
            help="Type of the condensed weights: float32, float16 or bfloat16; an ONNX file keeps "
            "its own.",
            show_default="float32",
        ),
    ] = None,
) -> None:
    """Write a run or an ONNX file to ONNX with its sparse layers as CondensedGemm, verified."""
    common = {
        "policy": policy,
        "batch": batch,
        "min_sparsity": min_sparsity,
        "portable": portable,
        "fold": fold,
        "verify": verify,
    }
    if source.suffix == ".onnx" and not source.is_dir():
        report = _convert(source, out, common, opset, values, dense_baseline)
    else:
        report = _export(source, out, common, opset, values, dense_baseline)
    from rich.console import Console

    Console().print(report.to_rich_table())


def _convert(
    source: Path,
    out: Path,
    common: dict[str, Any],
    opset: int | None,
    values: str | None,
    dense_baseline: bool,
) -> ExportReport:
    given = {"--opset": opset, "--values": values, "--dense-baseline": dense_baseline or None}
    for name, value in given.items():
        if value is not None:
            raise typer.BadParameter("belongs to run folders; leave it out", param_hint=name)
    _requires("export", "onnx", "onnx_ir")
    from .export import ExportError, convert

    with _readable(ExportError, OSError, ValueError):
        return convert(source, out, **common)


def _export(
    source: Path,
    out: Path,
    common: dict[str, Any],
    opset: int | None,
    values: str | None,
    dense_baseline: bool,
) -> ExportReport:
    _requires("train", "torch", "onnx", "onnxscript", "safetensors")
    from .export import ExportError
    from .export import export as write
    from .trainer import RunFolderError

    chosen = {"opset": opset, "values_dtype": values}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    with _readable(ExportError, RunFolderError, OSError, ValueError):
        return write(source, out, dense_baseline=dense_baseline, **common, **chosen)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="ONNX file.")],
) -> None:
    """List the condensed layers of an ONNX file, or what an export would make of its layers."""
    _requires("export", "onnx", "onnx_ir")
    from rich.console import Console

    from .export import ExportError, plan_conversion
    from .export import inspect as look
    from .export.report import layer_table

    with _readable(ExportError, OSError, ValueError):
        inspection = look(file)
        Console().print(inspection.to_rich_table())
        if not inspection.layers:
            title = f"fanin export {file} would write"
            Console().print(layer_table(plan_conversion(file), title=title))


@app.command()
def calibrate(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File to write.", show_default="where fanin export looks for it"
        ),
    ] = None,
) -> None:
    """Measure dense and condensed layers on this machine, for fanin export --policy auto."""
    _requires("bench", "onnx", "onnxruntime")
    from .deploy import SessionError
    from .deploy.calibrate import calibrate as measure
    from .export.cost_model import user_calibration_path

    path = out or user_calibration_path()
    with _readable(SessionError, OSError):
        _require_writable(path.parent)
        measure(progress=_say).save(path)
    typer.echo(f"Wrote {path}")


@bench.command("layer")
def bench_layer(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")],
    in_features: Annotated[
        int | None, typer.Option(help="Inputs of the layer.", show_default="3072")
    ] = None,
    out_features: Annotated[
        int | None, typer.Option(help="Outputs of the layer.", show_default="768")
    ] = None,
    sparsity: Annotated[
        str | None, typer.Option(help="Shares of zeros.", show_default="0.8,0.9,0.95,0.99")
    ] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1",
    ablated: Annotated[
        float | None, typer.Option(help="Share of neurons without weights.", show_default="0")
    ] = None,
    mask: Annotated[
        str,
        typer.Option(
            help="Where weights are: random, clustered, or a run folder or an exported ONNX file "
            "whose layer is taken; several are measured side by side."
        ),
    ] = "random",
    layer: Annotated[
        str | None, typer.Option(help="Parameter or node, when the mask's file has several layers.")
    ] = None,
    engines: Annotated[
        str,
        typer.Option(
            help="Of dense, condensed, fallback, deepsparse, torch-csr, scipy-csr; dense first."
        ),
    ] = "dense,condensed",
    deepsparse_python: Annotated[
        Path | None,
        typer.Option(
            help="Python that has DeepSparse; make deepsparse-env makes the default one.",
            show_default=".cache/deepsparse-venv/bin/python",
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="Intra-op threads of every engine.")] = 1,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 21,
    seed: Annotated[int, typer.Option(help="Seed of masks, weights and inputs.")] = 0,
) -> None:
    """Measure one layer of constant fan-in weights: dense Gemm, CondensedGemm, other runtimes."""
    _requires("bench", "onnx", "onnxruntime", "matplotlib")
    from .deploy import SessionError
    from .deploy.bench import BenchLayerSpec, RequirementError
    from .deploy.bench import bench_layer as measure

    sizes = {
        "in_features": in_features,
        "out_features": out_features,
        "sparsities": None if sparsity is None else _numbers(sparsity, float, "--sparsity"),
        "ablated": ablated,
    }
    sizes = {name: value for name, value in sizes.items() if value is not None}
    common = {
        "batches": _numbers(batch, int, "--batch"),
        "engines": tuple(engines.split(",")),
        "threads": threads,
        "rounds": rounds,
        "seed": seed,
    }
    if deepsparse_python is not None:
        common["deepsparse_python"] = deepsparse_python
    with _readable(SessionError, RequirementError, OSError, ValueError):
        masks, trained = _masks(mask, layer)
        if trained is None:
            spec = BenchLayerSpec(**sizes, masks=masks, **common)
        elif sizes:
            raise typer.BadParameter(
                "a trained layer has its own sizes, sparsity and ablation; leave out --"
                + ", --".join(name.replace("_", "-") for name in sizes)
            )
        else:
            spec = BenchLayerSpec.of_trained(trained, masks, **common)
        _require_writable(out)
        _save(measure(spec, progress=_say), out)


@bench.command("kernels")
def bench_kernels(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")],
    shapes: Annotated[
        str | None,
        typer.Option(help="Inputs x outputs of the layers.", show_default="3072x768,768x3072"),
    ] = None,
    sparsity: Annotated[
        str | None, typer.Option(help="Shares of zeros.", show_default="0.8,0.9,0.95,0.99")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="Batch sizes.", show_default="1,8,16,64,256")
    ] = None,
    mask: Annotated[
        str, typer.Option(help="As in bench layer; a file's layer is measured beside the others.")
    ] = "random",
    layer: Annotated[
        str | None, typer.Option(help="Parameter or node, when the mask's file has several layers.")
    ] = None,
    values: Annotated[
        str, typer.Option(help="Types of the weights: float32, float16, bfloat16.")
    ] = "float32",
    scaling: Annotated[
        bool,
        typer.Option(
            "--scaling",
            help="Instead: 1,000 to 1,000,000 outputs, 32 of 1,024 inputs each, batch 1.",
        ),
    ] = False,
    dispatched: Annotated[
        bool, typer.Option("--dispatched", help="Only the kernel that the dispatch table takes.")
    ] = False,
    rounds: Annotated[int, typer.Option(help="Rounds, each beside plain reading.")] = 11,
    seed: Annotated[int, typer.Option(help="Seed of masks, weights and inputs.")] = 0,
) -> None:
    """Measure every kernel that this CPU runs against the limits of its core, on one thread."""
    _requires("bench", "onnx", "matplotlib")
    from .deploy.bench import BenchKernelsSpec, RequirementError
    from .deploy.bench import bench_kernels as measure
    from .deploy.bench.kernels_report import kernels_notes, kernels_table

    chosen = {
        "shapes": None if shapes is None else _shapes(shapes),
        "sparsities": None if sparsity is None else _numbers(sparsity, float, "--sparsity"),
        "batches": None if batch is None else _numbers(batch, int, "--batch"),
        "dispatched": dispatched or None,
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if scaling and (chosen or layer or mask != "random" or values != "float32"):
        raise typer.BadParameter("--scaling has its own layers; leave the other choices out")
    with _readable(RequirementError, OSError, ValueError):
        if scaling:
            spec = BenchKernelsSpec.scaling(rounds=rounds, seed=seed)
        else:
            masks, trained = _masks(mask, layer)
            spec = BenchKernelsSpec(
                masks=masks,
                values=tuple(values.split(",")),
                trained=trained,
                rounds=rounds,
                seed=seed,
                **chosen,
            )
        _require_writable(out)
        result = measure(spec, progress=_say)
        _print_and_save(result, [kernels_table(result)], kernels_notes(result), out)


@bench.command("model")
def bench_model(
    model: Annotated[Path, typer.Argument(help="Exported ONNX file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")],
    dense: Annotated[
        Path | None, typer.Option(help="Dense baseline; default MODEL.dense.onnx beside it.")
    ] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,64",
    threads: Annotated[int, typer.Option(help="Intra-op threads of every engine.")] = 1,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 21,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
) -> None:
    """Measure a whole exported model against its dense baseline."""
    _requires("bench", "onnx", "onnxruntime", "matplotlib")
    from .deploy import SessionError
    from .deploy.bench import BenchModelSpec, RequirementError
    from .deploy.bench import bench_model as measure

    with _readable(SessionError, RequirementError, OSError, ValueError):
        spec = BenchModelSpec(
            model=model,
            dense=dense,
            batches=_numbers(batch, int, "--batch"),
            threads=threads,
            rounds=rounds,
            seed=seed,
        )
        _require_writable(out)
        _save(measure(spec, progress=_say), out)


@app.command()
def doctor() -> None:
    """Check everything that running an exported model needs; exit status 1 when a check fails."""
    from rich.console import Console

    from .deploy.doctor import checks_table, run_checks

    checks = run_checks()
    Console().print(checks_table(checks))
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def _shapes(text: str) -> tuple[tuple[int, int], ...]:
    """Parse ``3072x768,768x3072``."""
    try:
        pairs = [tuple(map(int, part.split("x"))) for part in text.split(",")]
    except ValueError:
        pairs = [()]
    if any(len(pair) != 2 for pair in pairs):
        raise typer.BadParameter(f"{text!r} is not like 3072x768,768x3072", param_hint="--shapes")
    return tuple(pairs)


def _masks(text: str, layer: str | None) -> tuple[tuple[str, ...], TrainedLayer | None]:
    """Split ``--mask`` into the names of made-up masks and the layer of the file in it."""
    from .deploy.bench.masks import MASKS
    from .deploy.bench.trained_layer import load_trained_layer

    parts = text.split(",")
    files = [Path(part) for part in parts if part not in MASKS]
    if len(files) > 1:
        raise typer.BadParameter(
            f"{text!r} has several files; give one beside {', '.join(MASKS)}", param_hint="--mask"
        )
    if layer is not None and not files:
        raise typer.BadParameter("--layer goes with a file in --mask", param_hint="--layer")
    trained = load_trained_layer(files[0], layer) if files else None
    return tuple(part for part in parts if part in MASKS), trained


def _say(title: str, done: float) -> None:
    typer.secho(f"[{done:4.0%}] {title}", dim=True, err=True)


def _save_analyses(analyses: list[Analysis], folder: Path) -> None:
    for analysis in analyses:
        typer.echo(analysis.to_markdown())
        typer.echo("Wrote " + ", ".join(str(path) for path in analysis.save(folder)) + "\n")


def _save(result: Result, folder: Path) -> None:
    from .deploy.bench.report import result_notes, result_table, rivals_table

    tables = [result_table(result), rivals_table(result)]
    _print_and_save(result, [table for table in tables if table], result_notes(result), folder)


def _print_and_save(
    result: Result | KernelsResult, tables: list[Table], notes: list[str], folder: Path
) -> None:
    from rich.console import Console

    # Printed before saving: a disk that fills up now does not lose the measurement.
    for table in tables:
        Console().print(table)
    for note in notes:
        typer.secho(note, fg=typer.colors.YELLOW)
    paths = result.save(folder)
    typer.echo("Wrote " + ", ".join(str(path) for path in paths))
