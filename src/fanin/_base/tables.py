"""Tables of reports, for terminals, pipes and notebooks; rich is loaded for terminals alone."""

from __future__ import annotations

import html
import unicodedata
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from .table_layout import Column, lay_out, text_width

__all__ = ["Column", "Printed", "Sheet", "visible"]

if TYPE_CHECKING:
    from rich.table import Table

_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of what changes how the text around it is read."""


def visible(text: str) -> str:
    """Write control characters and direction marks as codes: names come from any file."""
    return "".join(
        sign.encode("unicode_escape").decode() if unicodedata.category(sign) in _INVISIBLE else sign
        for sign in text
    )


@dataclass(frozen=True)
class Sheet:
    """A table with what is said above and below it.

    Control characters and direction marks in title, cells and notes are shown as codes.

    Attributes:
        title: the line above.
        columns: of the table.
        rows: cells, as many as columns; a row of a single cell is a heading of those below.
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
        widths = [max(map(text_width, column)) for column in zip_longest(*cells, fillvalue="")]
        lines = [*[self.title, ""] * bool(self.title)]
        for row in cells:
            parts = [
                " " * (width - text_width(cell)) + cell
                if column.right
                else cell + " " * (width - text_width(cell))
                for column, cell, width in zip(self.columns, row, widths, strict=False)
            ]
            lines.append("  ".join(parts).rstrip())
        lines.insert(3 if self.title else 1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
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
                for side, cell in zip(sides, row, strict=False)
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
            width: of the terminal; where the table does not fit, ranges of numbers and then
                columns are left out, named in a last line, before any number is cut. None keeps
                all of them.

        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        layout = lay_out(self.columns, self.rows, width)
        notes = list(self.notes)
        if layout.left_out:
            notes.append(f"a wider terminal also shows {', '.join(layout.left_out)}")
        table = Table(
            title=Text(self.title) if self.title else None,
            title_justify="left",
            caption=Text("\n".join(notes)) if notes else None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        for at, header, column_width in zip(
            layout.kept, layout.headers, layout.widths, strict=True
        ):
            table.add_column(
                Text(header),
                justify="right" if self.columns[at].right else "left",
                overflow="fold",
                width=column_width,
            )
        for row in layout.rows:
            if len(row) == 1:
                table.add_section()
                table.add_row(Text(row[0], "bold"))
            else:
                table.add_row(*(Text(row[at]) for at in layout.kept))
        return table


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
