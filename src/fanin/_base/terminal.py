"""The terminal that stdout may be; where it is none, tables are neither cut nor colored."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from .tables import Sheet

_UNCUT = 10_000
"""Width of tables where stdout is no terminal."""


def terminal_width() -> int | None:
    """Return the width of the terminal; None where stdout is none."""
    return output_console().width if sys.stdout.isatty() else None


def output_console() -> Console:
    """Return a console of rich on stdout, so wide that it cuts nothing where that is no terminal.

    NO_COLOR and the like count for terminals; FORCE_COLOR colors no pipe.
    """
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(width=_UNCUT, no_color=True, force_terminal=False)


def print_sheet(sheet: Sheet, console: Console | None = None) -> None:
    """Print a table as wide as the terminal, or in full and plain where stdout is none.

    Args:
        sheet: the table.
        console: what to print on; None is stdout.

    """
    if console is None and not sys.stdout.isatty():
        print(sheet.to_text(), flush=True)
        return
    console = console or output_console()
    console.print(sheet.to_rich(console.width))


def print_notes(lines: Sequence[str], console: Console | None = None) -> None:
    """Print lines below a table, in color where stdout is a terminal."""
    console = console or output_console()
    for line in lines:
        console.print(line, style="yellow", markup=False, highlight=False)
