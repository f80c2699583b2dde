"""Tables of reports, for terminals, pipes and notebooks; rich is loaded for terminals alone."""

from __future__ import annotations

import html
import unicodedata
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_LEAST_WORDS = 16
"""Least width of a column of words: less would break most of them."""

_MOST_WORD = 40
"""Longest word that other columns make room for."""

_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of what changes how the text around it is read."""


def visible(text: str) -> str:
    """Write control characters and direction marks as codes: names come from any file."""
    return "".join(
        sign.encode("unicode_escape").decode() if unicodedata.category(sign) in _INVISIBLE else sign
        for sign in text
    )


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        header: its first line.
        right: whether cells are aligned to the right, as numbers are.
        words: whether a terminal may break its cells into lines.
        drop: the column with the smallest number is left out first where a terminal is too narrow;
            None for one that stays.

    """

    header: str
    right: bool = False
    words: bool = False
    drop: int | None = None


@dataclass(frozen=True)
class Sheet:
    """A table with what is said above and below it.

    Control characters and direction marks in title, cells and notes are shown as codes.

    Attributes:
        title: the line above.
        columns: of the table.
        rows: cells, as many as columns.
        notes: lines below.

    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", visible(self.title))
        object.__setattr__(self, "rows", tuple(tuple(map(visible, row)) for row in self.rows))
        object.__setattr__(self, "notes", tuple(map(visible, self.notes)))

    def to_text(self) -> str:
        """Write every cell in full, whatever the width: for pipes, files and ``str``."""
        cells = [tuple(column.header for column in self.columns), *self.rows]
        widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
        lines = [self.title, ""]
        for row in cells:
            parts = [
                " " * (width - _width(cell)) + cell
                if column.right
                else cell + " " * (width - _width(cell))
                for column, cell, width in zip(self.columns, row, widths, strict=True)
            ]
            lines.append("  ".join(parts).rstrip())
        lines.insert(3, "-" * (sum(widths) + 2 * (len(widths) - 1)))
        if self.notes:
            lines += ["", *self.notes]
        return "\n".join(lines)

    def to_html(self) -> str:
        """Write a table for notebooks, everything escaped."""
        sides = ["right" if column.right else "left" for column in self.columns]
        head = "".join(
            f'<th style="text-align:{side}">{html.escape(column.header)}</th>'
            for side, column in zip(sides, self.columns, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:{side}">{html.escape(cell)}</td>'
                for side, cell in zip(sides, row, strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        return (
            f"<table><caption>{html.escape(self.title)}</caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table>{notes}"
        )

    def to_rich(self, width: int | None = None) -> Table:
        """Lay out the table for a terminal.

        Args:
            width: of the terminal; where the table does not fit, columns are left out, named in a
                last line, before any number is cut. None keeps all of them.

        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        kept = self._fitting(width)
        gone = [c.header for at, c in enumerate(self.columns) if at not in kept]
        notes = list(self.notes)
        if gone:
            notes.append(f"a wider terminal also shows {', '.join(gone)}")
        table = Table(
            title=Text(self.title),
            caption="\n".join(notes) or None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        widths = self._widths(kept, width)
        for at in kept:
            column = self.columns[at]
            table.add_column(
                column.header,
                justify="right" if column.right else "left",
                no_wrap=not column.words,
                overflow="fold",
                width=widths.get(at),
            )
        for row in self.rows:
            table.add_row(*(Text(row[at]) for at in kept))
        return table

    def _fitting(self, width: int | None) -> list[int]:
        """Choose columns that fit, columns of words at the least that they can have."""
        kept = list(range(len(self.columns)))
        while width is not None and self._least(kept) > width:
            droppable = [at for at in kept if self.columns[at].drop is not None]
            if not droppable:
                break
            kept.remove(min(droppable, key=lambda at: self.columns[at].drop or 0))
        return kept

    def _widths(self, kept: list[int], width: int | None) -> dict[int, int]:
        """Choose widths of the columns of words: rich would shrink the widest, breaking words."""
        spare = 0 if width is None else width - self._least(kept)
        if width is None or spare < 0:
            return {}
        widths = {}
        for at in reversed(kept):
            if self.columns[at].words:
                widths[at] = min(self._natural(at), self._room(at) + spare)
                spare -= widths[at] - self._room(at)
        return widths

    def _least(self, kept: list[int]) -> int:
        # Between columns, and at both edges, there are two spaces or one.
        return sum(map(self._room, kept)) + 2 * len(kept)

    def _room(self, at: int) -> int:
        """Return the least width of a column; words are broken only if they are very long."""
        natural = self._natural(at)
        if not self.columns[at].words:
            return natural
        words = (word for row in self.rows for word in row[at].split())
        longest = max(map(_width, words), default=0)
        return min(natural, max(_LEAST_WORDS, min(longest, _MOST_WORD)))

    def _natural(self, at: int) -> int:
        return max(map(_width, (self.columns[at].header, *(row[at] for row in self.rows))))


class Printed(ABC):
    """A report that prints itself: ``print(report)``, and as HTML in a notebook."""

    @abstractmethod
    def sheet(self) -> Sheet:
        """Return the table that is shown."""

    @abstractmethod
    def to_json(self) -> str:
        """Return all of it as a JSON object."""

    def __str__(self) -> str:
        return self.sheet().to_text()

    def _repr_html_(self) -> str:
        return self.sheet().to_html()


def _width(text: str) -> int:
    """Count the columns of a terminal that a text takes."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)
