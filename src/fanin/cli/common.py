"""What the commands share: errors for people, missing packages, options that are lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import typer

from .._base.atomic import output_folder

_T = TypeVar("_T")


@contextmanager
def readable(*errors: type[Exception]) -> Iterator[None]:
    """Turn the errors that a user can mend into one line on stderr and exit status 1."""
    try:
        yield
    except BrokenPipeError:
        raise  # The reader has seen enough, as `head` has: typer ends quietly.
    except errors as error:
        typer.secho(f"fanin: {_sentence(error)}", fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None
    except MemoryError as error:
        typer.secho(f"fanin: out of memory: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None


def _sentence(error: Exception) -> str:
    """Write an error of the system as the file and what is wrong with it, without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def requires(extra: str, *modules: str) -> None:
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


def require_writable(folder: Path) -> None:
    """Make the results' folder before the measurement, so that a bad one loses no time."""
    output_folder(folder)


def numbers(text: str, kind: Callable[[str], _T], option: str) -> tuple[_T, ...]:
    """Parse ``1,16,64``; a bad entry is an error that names the option."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a comma-separated list of numbers", param_hint=option
        ) from None


def say(title: str, done: float) -> None:
    """Print how far a long command is, on stderr."""
    typer.secho(f"[{done:4.0%}] {title}", dim=True, err=True)
