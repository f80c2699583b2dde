"""Results as one self-contained HTML page with sortable tables and embedded figures."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from ...._base.atomic import write_file
from ..requirements import require


class PageError(ValueError):
    """A folder without a report."""


def save_page(folders: Sequence[Path], path: Path, title: str) -> Path:
    """Write the reports of the folders (their .md and .png files) into one page.

    Raises:
        PageError: a folder has no report.
        OSError: a file cannot be read, or the page cannot be written.

    """
    # A dependency of rich.
    library = require("markdown_it", "the page is made with it")
    markdown = library.MarkdownIt("commonmark", {"html": False}).enable("table")
    sections = []
    for folder in folders:
        reports = sorted(folder.glob("*.md"))
        if not reports:
            raise PageError(f"{folder} holds no report (*.md) of a benchmark")
        for report in reports:
            figure = report.with_suffix(".png")
            body = markdown.render(report.read_text())
            if figure.is_file():
                body = _after_title(body, _figure(figure, _first_line(report)))
            sections.append(f"<section>\n{body}</section>")
    files = resources.files(__package__)
    page = Template(files.joinpath("page.html").read_text()).substitute(
        title=html.escape(title),
        style=files.joinpath("page.css").read_text(),
        script=files.joinpath("page.js").read_text(),
        sections="\n".join(sections),
    )
    return write_file(path, page)


def _first_line(report: Path) -> str:
    return report.read_text().partition("\n")[0].lstrip("# ")


def _figure(path: Path, caption: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">\n'


def _after_title(body: str, figure: str) -> str:
    title, mark, rest = body.partition("</h1>\n")
    return title + mark + figure + rest if mark else figure + body
