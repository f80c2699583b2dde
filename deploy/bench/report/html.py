"""Results as one self-contained HTML page with sortable tables and embedded figures."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from ...._base.atomic import write_file
from ...._base.figure_style import NARROW, NARROW_PAGE
from ...._base.local_paths import refuse_address
from ..requirements import require

_PICTURE = re.compile(r"<picture>.*?</picture>\n*", re.DOTALL)
_FIGURES = (".svg", f"{NARROW.suffix}.svg", ".png")


class PageError(ValueError):
    """A folder without a report."""


def save_page(folders: Sequence[Path], path: Path, title: str) -> Path:
    """Write the reports of the folders (their .md files and figures) into one page.

    Raises:
        PageError: a folder has no report.
        OSError: a file cannot be read, or the page cannot be written.

    """
    # A dependency of rich.
    library = require("markdown_it", "the page is made with it")
    markdown = library.MarkdownIt("commonmark", {"html": False}).enable("table")
    sections = []
    for folder in folders:
        refuse_address(folder)
        reports = sorted(folder.glob("*.md"))
        if not reports:
            raise PageError(f"{folder} holds no report (*.md) of a benchmark")
        for report in reports:
            text = report.read_text(encoding="utf-8")
            body = markdown.render(_PICTURE.sub("", text))
            body = body.replace("<table>", '<div class="table" tabindex="0"><table>')
            body = body.replace("</table>", "</table></div>")
            body = _after_title(body, _figure(report, text))
            sections.append(f"<section>\n{body}</section>")
    files = resources.files(__package__)
    page = Template(files.joinpath("page.html").read_text()).substitute(
        title=html.escape(title),
        style=files.joinpath("page.css").read_text(),
        script=files.joinpath("page.js").read_text(),
        sections="\n".join(sections),
    )
    return write_file(path, page)


def _figure(report: Path, text: str) -> str:
    """Embed the report's figure, if there is one; older reports have a PNG."""
    wide, narrow, old = (report.with_name(report.stem + end) for end in _FIGURES)
    described = re.search(r'alt="([^"]*)"', text)
    caption = described[1] if described else html.escape(text.partition("\n")[0].lstrip("# "))
    if wide.is_file():
        source = ""
        if narrow.is_file():
            source = f'<source media="{NARROW_PAGE}" srcset="{_data(narrow, "svg+xml")}">'
        image = f'<img alt="{caption}" src="{_data(wide, "svg+xml")}">'
        return f"<picture>{source}{image}</picture>\n"
    return f'<img alt="{caption}" src="{_data(old, "png")}">\n' if old.is_file() else ""


def _data(path: Path, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _after_title(body: str, figure: str) -> str:
    title, mark, rest = body.partition("</h1>\n")
    return title + mark + figure + rest if mark else figure + body
