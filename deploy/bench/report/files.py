"""Writes a result and its report to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...._base.atomic import output_folder, write_file
from ...._base.figure_style import WIDTHS
from ..requirements import require
from ..results.files import write_json
from ..results.result import Result
from .document import Document
from .markdown import to_markdown
from .svg import to_svg_bytes


def write_report(
    result: Result[Any], document: Document, folder: str | Path, *, raw: bool = False
) -> list[Path]:
    """Write results.json, results.md and its figure into ``folder``.

    The figure is drawn for wide pages (results.svg) and for phones (results-narrow.svg). The folder
    is created when missing; each file is replaced as a whole or not at all.

    Args:
        result: content of results.json.
        document: its report.
        folder: where to write.
        raw: also write raw.json, with the figures of every round.

    Returns:
        The paths of the files.

    Raises:
        RequirementError: matplotlib is not installed.
        OSError: a file cannot be written.

    """
    require("matplotlib", "the benchmark draws its figure with it")
    folder = output_folder(Path(folder))
    paths = [
        write_json(folder / "results.json", result.to_dict()),
        write_file(folder / "results.md", to_markdown(document)),
        *write_figures(document, folder),
    ]
    if raw:
        paths.append(write_json(folder / "raw.json", result.to_dict(raw=True)))
    return paths


def write_figures(document: Document, folder: Path) -> list[Path]:
    """Write the report's figure in each width."""
    return [
        write_file(folder / f"results{width.suffix}.svg", to_svg_bytes(document.figure, width))
        for width in WIDTHS
    ]
