"""Command line of fanin: thin commands over the packages, which are imported by the command used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from . import __version__

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
    """Turns the errors that a user can mend into one line on stderr and exit status 1."""
    try:
        yield
    except errors as error:
        typer.secho(f"fanin: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None


def _requires(extra: str, *modules: str) -> None:
    """Ends with the pip command when an optional dependency of the command is missing."""
    from importlib.util import find_spec

    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        typer.secho(
            f"fanin: this command needs {', '.join(missing)}; run: pip install 'fanin[{extra}]'",
            fg=typer.colors.RED,
            err=True,
        )
        raise typer.Exit(1)


def _numbers(text: str, kind: type, option: str) -> tuple:
    """Parses ``1,16,64``; a bad entry is an error that names the option."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a comma-separated list of numbers", param_hint=option) from None


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"fanin {__version__}")
        raise typer.Exit


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="Path of a TOML recipe, or the name of a shipped one.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Run folder to write.")],
    resume: Annotated[bool, typer.Option(help="Continue an interrupted run in the folder.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data set.")] = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
) -> None:
    """Trains a recipe into a run folder."""
    _requires("train", "torch", "torchvision", "safetensors")
    raise NotImplementedError
