"""How a table fits a terminal: what is left out, and how wide each column is."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST_WORDS = 16
"""Least width of a column of words: less would break most of them."""

_MOST_WORD = 40
"""Longest word that other columns make room for."""

_DETAILS = (
    ("ranges in brackets", re.compile(r" \[[^\]]*\d[^\]]*\]")),
    ("intervals in parentheses", re.compile(r" \([^)]*\d–[^)]*\)")),
)
"""What goes first from columns of numbers, before a whole column does."""

_SEPARATOR = re.compile(r"(?<=[/._,:-])(?=\w)")
"""Where names of nodes and kernels are broken if nothing else helps."""


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
class Layout:
    """What a terminal shows of a table.

    Attributes:
        kept: positions of the columns that are shown.
        headers: of these columns, broken into lines.
        widths: of these columns.
        rows: cells of all columns, shortened and broken into lines as far as necessary; a row of
            a single cell is a heading.
        left_out: names of what a wider terminal also shows.

    """

    kept: tuple[int, ...]
    headers: tuple[str, ...]
    widths: tuple[int, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: tuple[str, ...]


def text_width(text: str) -> int:
    """Count the columns of a terminal that a text takes."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def lay_out(
    columns: Sequence[Column], rows: Sequence[tuple[str, ...]], width: int | None
) -> Layout:
    """Choose what of a table to show.

    Where it does not fit, ranges and intervals of numbers are left out, headers are broken at
    hyphens, then columns are left out in the order of ``drop``; what is shown is complete. Columns
    of words are broken between words, and inside of names only where nothing else is left to do.

    Args:
        columns: of the table.
        rows: cells, as many as columns, or one.
        width: of the terminal; None shows everything.

    """
    fitting = _Fitting(columns, rows, width)
    fitting.leave_out_details()
    fitting.break_headers()
    fitting.leave_out_columns()
    if not fitting.fits():
        fitting.break_names()
    return fitting.layout()


class _Fitting:
    def __init__(
        self, columns: Sequence[Column], rows: Sequence[tuple[str, ...]], width: int | None
    ) -> None:
        self._columns, self._rows, self._width = columns, tuple(rows), width
        self._kept = list(range(len(columns)))
        self._headers = [column.header for column in columns]
        self._left_out: list[str] = []

    def fits(self) -> bool:
        # Between columns, and at both edges, there are two spaces or one.
        least = sum(map(self._room, self._kept)) + 2 * len(self._kept)
        return self._width is None or least <= self._width

    def leave_out_details(self) -> None:
        for name, pattern in _DETAILS:
            if self.fits():
                return
            shorter = tuple(
                tuple(
                    pattern.sub("", cell) if column.right else cell
                    for column, cell in zip(self._columns, row, strict=False)
                )
                for row in self._rows
            )
            if shorter != self._rows:
                self._rows = shorter
                self._left_out.append(name)

    def break_headers(self) -> None:
        if not self.fits():
            self._headers = [header.replace("-", "-\n") for header in self._headers]

    def leave_out_columns(self) -> None:
        while not self.fits():
            droppable = [at for at in self._kept if self._columns[at].drop is not None]
            if not droppable:
                break
            self._kept.remove(min(droppable, key=lambda at: self._columns[at].drop or 0))
        self._left_out += [
            column.header for at, column in enumerate(self._columns) if at not in self._kept
        ]

    def break_names(self) -> None:
        """Mark the separators of names as ends of words."""
        self._rows = tuple(
            tuple(
                _SEPARATOR.sub("\n", cell) if column.words else cell
                for column, cell in zip(self._columns, row, strict=False)
            )
            for row in self._rows
        )

    def layout(self) -> Layout:
        widths = self._widths()
        broken = dict(zip(self._kept, widths, strict=True))
        rows = tuple(
            tuple(
                _filled(cell, broken[at]) if self._columns[at].words and at in broken else cell
                for at, cell in enumerate(row)
            )
            for row in self._rows
        )
        headers = tuple(_filled(self._headers[at], broken[at]) for at in self._kept)
        left_out = tuple(dict.fromkeys(self._left_out))
        return Layout(tuple(self._kept), headers, tuple(widths), rows, left_out)

    def _widths(self) -> list[int]:
        """Give what is left to columns of words, the last one first, then to headers."""
        widths = {at: self._room(at) for at in self._kept}
        spare = 10**9
        if self._width is not None:
            spare = self._width - sum(widths.values()) - 2 * len(self._kept)
        last_first = self._kept[::-1]
        words = [at for at in last_first if self._columns[at].words]
        for at in [*words, *(at for at in last_first if at not in words)]:
            more = max(0, min(spare, self._natural(at) - widths[at]))
            widths[at] += more
            spare -= more
        return list(widths.values())

    def _cells(self, at: int) -> list[str]:
        return [row[at] for row in self._rows if at < len(row)]

    def _room(self, at: int) -> int:
        """Return the least width of a column; words are broken only if they are very long."""
        header = max(map(text_width, self._headers[at].split()), default=0)
        cells = self._cells(at)
        if not self._columns[at].words:
            return max([header, *map(text_width, cells)])
        longest = max((text_width(word) for cell in cells for word in cell.split()), default=0)
        wanted = max(_LEAST_WORDS, min(longest, _MOST_WORD))
        return max(header, min(self._natural(at), wanted))

    def _natural(self, at: int) -> int:
        cells = [cell.replace("\n", "") for cell in self._cells(at)]
        return max(map(text_width, (self._columns[at].header, *cells)))


def _filled(text: str, width: int) -> str:
    """Break a text into lines: at spaces, and at line ends, which join without a space."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        joint = " " if line else ""
        for piece in word.split("\n"):
            if line and text_width(line + joint + piece) > width:
                lines.append(line)
                line, joint = "", ""
            line += joint + piece
            joint = ""
    return "\n".join([*lines, line])
