"""The command line: thin commands, each of which imports only the package that it uses."""

from __future__ import annotations

import signal
import sys
import warnings
from io import TextIOWrapper
from types import FrameType
from typing import Annotated

import typer

from .. import __version__
from .bench import bench
from .common import show_warning
from .deploying import doctor, triton_repo
from .exporting import calibrate, export, inspect, quantize
from .flags import Command, Group
from .pruning import prune
from .serving import serve
from .starting import demo, library_path
from .stdout import checked_stdout, occupy_standard_streams
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
    occupy_standard_streams()
    if isinstance(sys.stderr, TextIOWrapper):  # a locale without UTF-8 lacks arrows and lines
        sys.stderr.reconfigure(errors="replace")
    warnings.showwarning = show_warning
    serves = sys.argv[1:2] == ["serve"]  # handles signals itself, and prints nothing on stdout
    if not serves:
        # As an exception, so that what is half written is removed.
        signal.signal(signal.SIGTERM, _stop)
    with checked_stdout(needed=not serves):
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
