"""Prints a report on a terminal, with rich."""

from __future__ import annotations

from typing import Literal

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ...._base.terminal import output_console
from .document import Document, Table


def print_report(document: Document, console: Console | None = None) -> None:
    """Print the tables that fit a terminal, and the notes."""
    console = console or output_console()
    for table in document.screen:
        print_table(table, console)
    for note in document.notes:
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)


def print_table(table: Table, console: Console | None = None) -> None:
    """Print one table."""
    (console or output_console()).print(to_rich(table))


def to_rich(table: Table) -> RichTable:
    """Convert the table: long cells are folded, words after the first column are not."""
    made = RichTable(title=table.title or None, caption=table.caption or None)
    for at, heading in enumerate(table.headings):
        justify: Literal["left", "right"] = "left" if at < table.words else "right"
        made.add_column(heading, justify=justify, no_wrap=1 <= at < table.words, overflow="fold")
    for row in table.rows:
        if len(row) == 1:
            made.add_section()
        made.add_row(*map(Text, row), style="bold" if len(row) == 1 else None)
    return made
