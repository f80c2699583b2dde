"""Prints a report: tables that fit the terminal, or plain text where stdout is none."""

from __future__ import annotations

from rich.console import Console

from ...._base.tables import Column, Sheet
from ...._base.terminal import print_notes, print_sheet
from .document import Document, Table


def print_report(document: Document, console: Console | None = None) -> None:
    """Print the tables for screens, and the notes."""
    for number, table in enumerate(document.screen):
        if number:
            print_notes([""], console)
        print_table(table, console)
    print_notes(document.notes, console)


def print_table(table: Table, console: Console | None = None) -> None:
    """Print one table."""
    print_sheet(to_sheet(table), console)


def to_sheet(table: Table) -> Sheet:
    """Convert the table: where room is short, its last numbers go first, and a speed-up stays."""
    leaving = _leaving(table)
    columns = tuple(
        Column(
            heading,
            right=at >= table.words,
            words=at < table.words,
            drop=leaving.index(at) if at in leaving else None,
        )
        for at, heading in enumerate(table.headings)
    )
    notes = (table.caption,) if table.caption else ()
    return Sheet(table.title, columns, tuple(map(tuple, table.rows)), notes)


def _leaving(table: Table) -> list[int]:
    """Order the columns that may be left out: all numbers but the first speed-up, if there is one.

    The first number, which is the time where there is a speed-up, goes last.
    """
    numbers = range(table.words, len(table.headings))
    speedups = [at for at in numbers[1:] if "speed-up" in table.headings[at]]
    plain = [at for at in numbers[1:] if at not in speedups]
    return [*reversed(plain), *reversed(speedups[1:]), *numbers[: bool(speedups)]]
