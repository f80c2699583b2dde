"""The terminal that stdout may be; where it is none, tables are neither cut nor colored."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

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
