"""Command line of fanin: thin commands, each importing only the package that it uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import __version__

if TYPE_CHECKING:
    from .deploy.bench import Result

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train with constant fan-in sparsity, export to ONNX, run it faster than dense.",
)
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
) -> None:
    """Train a recipe into a run folder."""
    _requires("train", "torch", "torchvision", "safetensors")
    from .trainer import ConfigError, DataError, RunFolderError, TrainingError, recipe_names
    from .trainer import train as run_training

    if recipes:
        typer.echo("\n".join(recipe_names()))
        return
    if out is None or (recipe is None and not resume):
        raise typer.BadParameter("give a recipe and --out RUN (or --resume --out RUN)")
    with _readable(ConfigError, DataError, RunFolderError, TrainingError, OSError):
        result = run_training(recipe, out, resume=resume, data_dir=data_dir, progress=progress)
    typer.echo(result.summary)
    typer.echo(f"test accuracy {result.test_accuracy:.2%} after {result.steps} steps; run: {out}")


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="Finished run folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="ONNX file to write.")],
    opset: Annotated[int, typer.Option(help="Version of the standard operators, 17 to 23.")] = 20,
    min_sparsity: Annotated[
        float, typer.Option(help="Layers with a smaller share of zeros stay dense.")
    ] = 0.5,
    dense_baseline: Annotated[
        bool,
        typer.Option("--dense-baseline", help="Also write OUT.dense.onnx, to measure against."),
    ] = False,
    values: Annotated[
        str, typer.Option(help="Type of the condensed weights: float32, float16 or bfloat16.")
    ] = "float32",
) -> None:
    """Write a run to ONNX with its sparse layers as CondensedGemm, verified against torch."""
    _requires("train", "torch", "onnx", "onnxscript", "safetensors")
    from rich.console import Console

    from .export import ExportError
    from .export import export as write
    from .trainer import RunFolderError

    with _readable(ExportError, RunFolderError, OSError, ValueError):
        report = write(
            source,
            out,
            opset=opset,
            min_sparsity=min_sparsity,
            dense_baseline=dense_baseline,
            values_dtype=values,
        )
    Console().print(report.to_rich_table())


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="ONNX file.")],
) -> None:
    """List the condensed layers of an ONNX file and validate the weights that they hold."""
    _requires("export", "onnx")
    from rich.console import Console

    from .export import ExportError
    from .export import inspect as look

    with _readable(ExportError, OSError, ValueError):
        Console().print(look(file).to_rich_table())


@bench.command("layer")
def bench_layer(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")],
    in_features: Annotated[int, typer.Option(help="Inputs of the layer.")] = 3072,
    out_features: Annotated[int, typer.Option(help="Outputs of the layer.")] = 768,
    sparsity: Annotated[str, typer.Option(help="Shares of zeros.")] = "0.8,0.9,0.95,0.99",
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1",
    ablated: Annotated[float, typer.Option(help="Share of neurons without weights.")] = 0.0,
    threads: Annotated[int, typer.Option(help="Intra-op threads of every engine.")] = 1,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 21,
    seed: Annotated[int, typer.Option(help="Seed of masks, weights and inputs.")] = 0,
) -> None:
    """Measure one layer of random constant fan-in weights: dense Gemm against CondensedGemm."""
    _requires("bench", "onnx", "onnxruntime", "matplotlib")
    from .deploy import SessionError
    from .deploy.bench import BenchLayerSpec, RequirementError
    from .deploy.bench import bench_layer as measure

    with _readable(SessionError, RequirementError, OSError, ValueError):
        spec = BenchLayerSpec(
            in_features=in_features,
            out_features=out_features,
            sparsities=_numbers(sparsity, float, "--sparsity"),
            batches=_numbers(batch, int, "--batch"),
            ablated=ablated,
            threads=threads,
            rounds=rounds,
            seed=seed,
        )
        _require_writable(out)
        _save(measure(spec, progress=_say), out)


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


def _say(title: str, done: float) -> None:
    typer.secho(f"[{done:4.0%}] {title}", dim=True, err=True)


def _save(result: Result, folder: Path) -> None:
    from rich.console import Console

    from .deploy.bench.report import result_notes, result_table

    # Printed before saving: a disk that fills up now does not lose the measurement.
    Console().print(result_table(result))
    for note in result_notes(result):
        typer.secho(note, fg=typer.colors.YELLOW)
    paths = result.save(folder)
    typer.echo("Wrote " + ", ".join(str(path) for path in paths))
