"""Writes a result and its report to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...._base.atomic import atomic_file, output_folder, write_file
from ..requirements import require
from ..results.files import write_json
from ..results.result import Result
from .document import Document
from .markdown import to_markdown
from .png import draw


def write_report(
    result: Result[Any], document: Document, folder: str | Path, *, raw: bool = False
) -> list[Path]:
    """Write results.json, results.md and results.png into ``folder``.

    The folder is created when missing; each file is replaced as a whole or not at all.

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
    figure = folder / "results.png"
    with atomic_file(figure) as file:
        draw(document.figure, file)
    paths = [
        write_json(folder / "results.json", result.to_dict()),
        write_file(folder / "results.md", to_markdown(document)),
        figure,
    ]
    if raw:
        paths.append(write_json(folder / "raw.json", result.to_dict(raw=True)))
    return paths
