"""Renders a report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from ...._base.figure_style import picture
from .document import Bullets, Document, Notes, Section, Table, Text
from .figure import describe


def to_markdown(document: Document) -> str:
    """Return the content of results.md."""
    shown = picture("results", describe(document.figure))
    blocks = [f"# {document.title}", shown, *map(_block, document.blocks)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _block(block: Section | Text | Bullets | Table) -> str:
    if isinstance(block, Section):
        return f"## {block.title}"
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Table):
        ruler = "|" + "---|" * block.words + "---:|" * (len(block.headings) - block.words)
        return "\n".join([_row(block.headings), ruler, *map(_row, block.rows)])
    lead = "Notes:\n\n" if block.lines and isinstance(block, Notes) else ""
    return lead + "\n".join(f"- {line}" for line in block.lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
