"""The content of a report, independent of the format that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .figure import Figure


@dataclass(frozen=True)
class Section:
    """A heading."""

    title: str


@dataclass(frozen=True)
class Text:
    """A paragraph, in Markdown."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list; nothing when it is empty."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Notes(Bullets):
    """Caveats about the numbers, which a terminal shows as well."""


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; the first ``words`` columns hold words, the others numbers.

    A row of a single cell is a heading for the rows below it. Only a terminal shows ``title`` and
    ``caption``: a file has a section and a paragraph instead.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 2
    title: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Document:
    """A report: ``blocks`` are for files, ``screen`` has the tables that fit a terminal."""

    title: str
    blocks: Sequence[Section | Text | Bullets | Table]
    screen: Sequence[Table]
    figure: Figure

    @property
    def notes(self) -> list[str]:
        """All notes."""
        return [line for one in self.blocks if isinstance(one, Notes) for line in one.lines]
