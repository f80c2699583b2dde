"""fanin train, sweep and analyze."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import readable, requires, say, show_sheet
from .flags import Command, Group

if TYPE_CHECKING:
    from ..trainer.analysis import Analysis
    from ..trainer.sweep_config import SweepRun

analyze = typer.Typer(
    no_args_is_help=True, cls=Group, help="Tables and figures of runs, sweeps, the paper."
)


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A TOML recipe, or the name of a shipped one; omit it to resume."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder to write.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data set.")] = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
    recipes: Annotated[bool, typer.Option("--recipes", help="List the shipped recipes.")] = False,
    sparsity: Annotated[
        float | None, typer.Option(help="Overrides the recipe's method.sparsity.")
    ] = None,
    epochs_factor: Annotated[
        float | None, typer.Option(help="Multiply the length of training and its schedule.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a value of the recipe: TABLE.KEY=VALUE, as in TOML."),
    ] = None,
) -> None:
    """Train a recipe into a run folder."""
    requires("train", "torch", "torchvision", "safetensors")
    from ..trainer import ConfigError, DataError, RunFolderError, TrainingError, recipe_names
    from ..trainer import train as run_training
    from ..trainer.recipe import load_customized

    if recipes:
        typer.echo("\n".join(recipe_names()))
        return
    if out is None or (recipe is None and not resume):
        raise typer.BadParameter("give a recipe and --out RUN (or --resume --out RUN)")
    changes = list(set_ or []) + ([] if sparsity is None else [f"method.sparsity={sparsity}"])
    if recipe is None and (changes or epochs_factor):
        raise typer.BadParameter("a resumed run keeps its configuration; give the recipe, too")
    with readable(ConfigError, DataError, RunFolderError, TrainingError, OSError):
        config = None if recipe is None else load_customized(recipe, changes, epochs_factor)
        result = run_training(config, out, resume=resume, data_dir=data_dir, progress=progress)
    if os.environ.get("RANK", "0") != "0":  # under torchrun, only rank 0 prints
        return
    show_sheet(result.summary.sheet())
    typer.echo(f"test accuracy {result.test_accuracy:.2%} after {result.steps} steps; run: {out}")


def sweep(
    sweep_file: Annotated[
        str | None, typer.Argument(help="A TOML sweep, or the name of a shipped one.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the runs.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data set.")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Run as tasks of Ray Tune.")] = False,
    sweeps: Annotated[bool, typer.Option("--sweeps", help="List the shipped sweeps.")] = False,
) -> None:
    """Train every combination of a grid; finished runs are kept, interrupted ones resumed."""
    requires("train", "torch", "torchvision", "safetensors")
    if ray:
        requires("ray", "ray")
    from ..trainer import ConfigError, DataError, RunFolderError, TrainingError, run_sweep
    from ..trainer.analysis import analyze_sweep
    from ..trainer.sweep_config import sweep_names

    if sweeps:
        typer.echo("\n".join(sweep_names()))
        return
    if out is None or sweep_file is None:
        raise typer.BadParameter("give a sweep and --out FOLDER")

    def say_run(run: SweepRun, number: int, total: int) -> None:
        say(run.name, number / total)

    with readable(ConfigError, DataError, RunFolderError, TrainingError, OSError):
        records = run_sweep(sweep_file, out, data_dir=data_dir, ray=ray, on_run=say_run)
    show_sheet(analyze_sweep(records)[0].sheet())
    failed = [record for record in records if record.error]
    for record in failed:
        typer.secho(f"{record.name}: {record.error}", fg=typer.colors.RED, err=True)
    if failed:
        raise typer.Exit(1)


@analyze.command("run", cls=Command)
def analyze_run(
    run: Annotated[Path, typer.Argument(help="Finished run folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for tables and figures.")],
) -> None:
    """Neurons, fan-ins, thresholds, exploration and operations of a run."""
    requires("train", "torch", "torchvision", "safetensors")
    requires("bench", "matplotlib")
    from ..trainer import RunFolderError, load_run
    from ..trainer.analysis import analyze_run

    with readable(RunFolderError, OSError, ValueError):
        _save_analyses(analyze_run(load_run(run)), out)


@analyze.command("sweep", cls=Command)
def analyze_sweep(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep, finished or not.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for tables and figures.")],
    against: Annotated[
        str | None, typer.Option(help="Variant to compare all others with, seed by seed.")
    ] = None,
) -> None:
    """Accuracy against what was varied, methods side by side, layers."""
    requires("train", "torch", "safetensors")
    requires("bench", "matplotlib")
    from ..trainer.analysis import analyze_sweep
    from ..trainer.sweep import read_records

    with readable(OSError, ValueError):
        _save_analyses(analyze_sweep(read_records(folder), folder, against=against), out)


@analyze.command("paper", cls=Command)
def analyze_paper(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for tables and figures.")],
    draws: Annotated[int, typer.Option(help="Draws of the variance simulation.")] = 20_000,
) -> None:
    """Variance, operations of ResNet-50, and the published tables."""
    requires("train", "torch", "torchvision")
    requires("bench", "matplotlib")
    from ..trainer.analysis import analyze_paper

    with readable(OSError, ValueError):
        _save_analyses(analyze_paper(draws), out)


def _save_analyses(analyses: list[Analysis], folder: Path) -> None:
    for analysis in analyses:
        show_sheet(analysis.sheet())
        typer.echo("Wrote " + ", ".join(str(path) for path in analysis.save(folder)) + "\n")
