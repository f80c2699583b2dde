"""Helpers of the commands: readable errors, missing packages, list options, progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import typer

from .._base.atomic import output_folder
from .._base.tables import Printed, Sheet, visible
from .._base.terminal import print_sheet

_T = TypeVar("_T")

FAILED = 1
"""Exit status of a command that could not do what it was asked; docs/commands.md has them all."""


def show(report: Printed, *, as_json: bool) -> None:
    """Print a report on stdout: as JSON, or as :func:`show_sheet` does."""
    if as_json:
        typer.echo(report.to_json())
    else:
        show_sheet(report.sheet())


def colored(text: str, color: str) -> str:
    """Color a text for a terminal."""
    return typer.style(text, fg=color) if sys.stdout.isatty() else text


def show_sheet(sheet: Sheet) -> None:
    """Print a table: in colors and as wide as the terminal, or in full where stdout is none."""
    print_sheet(sheet)


CustomOpLibraries = Annotated[
    list[Path] | None,
    typer.Option(
        "--custom-op-library",
        metavar="PATH",
        help="Library with operators of another domain that the model uses; may be repeated. It "
        "runs code: name only libraries that you trust.",
    ),
]


class LostOutputError(Exception):
    """What a command printed on stdout did not get there; main() says so, whoever printed it."""


@contextmanager
def readable(*errors: type[Exception]) -> Iterator[None]:
    """Report errors that users can fix as one line on stderr, with exit status 1."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has stopped, as `head` does; typer exits quietly
    except errors as error:
        refuse(_sentence(error))
    except MemoryError as error:
        refuse(f"out of memory: {error}")


def refuse(sentence: str) -> NoReturn:
    """Say on stderr what is wrong and what to do, and exit with status 1."""
    complain(sentence)
    raise typer.Exit(FAILED) from None


def complain(sentence: str) -> None:
    """Say on stderr what is wrong."""
    _say(sentence, typer.colors.RED)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Say a Python warning on stderr: replaces ``warnings.showwarning``.

    Its place in the code says nothing to those who run a command.
    """
    _say(f"warning: {message}", typer.colors.YELLOW)


def _say(sentence: str, color: str) -> None:
    shown = "\n".join(map(visible, sentence.split("\n")))
    typer.secho(f"fanin: {shown}", fg=color, err=True)


def _sentence(error: Exception) -> str:
    """Format an OS error as the file and the reason, without the error number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def requires(extra: str, *modules: str) -> None:
    """Exit with the pip command to run if an optional dependency is missing."""
    missing = [name for name in modules if not _is_installed(name)]
    if missing:
        refuse(f"this command needs {', '.join(missing)}; run: pip install 'fanin[{extra}]'")


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is a part of
        return False


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


def dims_of(texts: list[str] | None) -> dict[str, int]:
    """Parse ``--dim NAME=SIZE`` options; the error for a bad one names it."""
    sizes: dict[str, int] = {}
    for text in texts or ():
        name, _, size = text.rpartition("=")
        if not name or not size.isdecimal():
            raise typer.BadParameter(
                f"{text!r} is not NAME=SIZE, such as sequence=128", param_hint="--dim"
            )
        if sizes.setdefault(name, int(size)) != int(size):
            raise typer.BadParameter(f"{name!r} has two sizes; give one", param_hint="--dim")
    return sizes


def say(title: str, done: float) -> None:
    """Print the progress of a long command on stderr."""
    typer.secho(f"[{done:4.0%}] {title}", dim=True, err=True)
