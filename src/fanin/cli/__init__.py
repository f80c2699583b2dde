"""The command line: thin commands, each of which imports only the package that it uses."""

from __future__ import annotations

import signal
import sys
from io import TextIOWrapper
from types import FrameType
from typing import Annotated

import typer

from .. import __version__
from .bench import bench
from .deploying import doctor, triton_repo
from .exporting import calibrate, export, inspect, quantize
from .flags import Command, Group
from .pruning import prune
from .serving import serve
from .starting import demo, library_path
from .training import analyze, sweep, train

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=Group,
    help="Train with constant fan-in sparsity, export to ONNX, run it faster than dense.",
)
for command in (
    train,
    sweep,
    prune,
    export,
    quantize,
    inspect,
    calibrate,
    doctor,
    serve,
    triton_repo,
    demo,
    library_path,
):
    app.command(cls=Command)(command)
app.add_typer(analyze, name="analyze")
app.add_typer(bench, name="bench")


def main() -> None:
    """Entry point of the ``fanin`` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a locale without UTF-8 lacks arrows and lines
            stream.reconfigure(errors="replace")
    # As an exception, so that what is half written is removed. A server handles it itself.
    if sys.argv[1:2] != ["serve"]:
        signal.signal(signal.SIGTERM, _stop)
    app()


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise SystemExit(128 + number)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"fanin {__version__}")
        raise typer.Exit
