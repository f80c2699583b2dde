"""Tables that are written both to a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True)
class Grid:
    """Rows of texts under headings; the first ``words`` columns hold words, the others numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 2

    def to_markdown(self) -> list[str]:
        """Write it as lines, without its title."""
        count = len(self.headings)
        return [
            "| " + " | ".join(self.headings) + " |",
            "|" + "---|" * self.words + "---:|" * (count - self.words),
            *("| " + " | ".join(row) + " |" for row in self.rows),
        ]

    def to_rich(self) -> Table:
        """Lay it out for the terminal; words are folded, not cut."""
        table = Table(title=self.title)
        for at, heading in enumerate(self.headings):
            table.add_column(
                heading, justify="left" if at < self.words else "right", overflow="fold"
            )
        for row in self.rows:
            table.add_row(*row)
        return table
