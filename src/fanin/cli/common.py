"""Helpers of the commands: readable errors, missing packages, list options, progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from .._base.atomic import output_folder

_T = TypeVar("_T")

CustomOpLibraries = Annotated[
    list[Path] | None,
    typer.Option(
        "--custom-op-library",
        metavar="PATH",
        help="Library with operators of another domain that the model uses; may be repeated. It "
        "runs code: name only libraries that you trust.",
    ),
]


@contextmanager
def readable(*errors: type[Exception]) -> Iterator[None]:
    """Report errors that users can fix as one line on stderr, with exit status 1."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has stopped, as `head` does; typer exits quietly
    except errors as error:
        typer.secho(f"fanin: {_sentence(error)}", fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None
    except MemoryError as error:
        typer.secho(f"fanin: out of memory: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None


def _sentence(error: Exception) -> str:
    """Format an OS error as the file and the reason, without the error number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def requires(extra: str, *modules: str) -> None:
    """Exit with the pip command to run if an optional dependency is missing."""
    from importlib.util import find_spec

    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        typer.secho(
            f"fanin: this command needs {', '.join(missing)}; run: pip install 'fanin[{extra}]'",
            fg=typer.colors.RED,
            err=True,
        )
        raise typer.Exit(1)


def require_writable(folder: Path) -> None:
    """Create the results folder before measuring, so that a bad one wastes no time."""
    output_folder(folder)


def numbers(text: str, kind: Callable[[str], _T], option: str) -> tuple[_T, ...]:
    """Parse a list such as ``1,16,64``; the error for a bad entry names the option."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a comma-separated list of numbers", param_hint=option
        ) from None


def say(title: str, done: float) -> None:
    """Print the progress of a long command on stderr."""
    typer.secho(f"[{done:4.0%}] {title}", dim=True, err=True)
