"""What a report says, whatever shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .figure import Figure


@dataclass(frozen=True)
class Section:
    """The heading of what follows."""

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
    """What qualifies the numbers; a terminal shows it, too."""


@dataclass(frozen=True)
class Table:
    """Rows of texts under headings; the first ``words`` columns hold words, the others numbers.

    A row of a single cell is the heading of those below it. Only a terminal shows ``title`` and
    ``caption``: in a file a section and a paragraph stand for them.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 2
    title: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Document:
    """A report: ``blocks`` are for files, ``screen`` is what a terminal has room for."""

    title: str
    blocks: Sequence[Section | Text | Bullets | Table]
    screen: Sequence[Table]
    figure: Figure

    @property
    def notes(self) -> list[str]:
        """All notes."""
        return [line for one in self.blocks if isinstance(one, Notes) for line in one.lines]
