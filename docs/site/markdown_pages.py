"""A Sphinx extension: Markdown that reads well as a file becomes pages of the site.

What a file has for its readers is what the site is made from: the lists of links in docs/index.md
are its navigation, and a ``<picture>`` with a dark variant follows the theme that the reader chose.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
SHOWN = ("docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""What of the repository's root is on the site."""

START, RESULTS = "docs/index", "docs/results/index"

_HEADING = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
_ENTRY = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<path>[^)#]+)\.md\)", re.MULTILINE)
_PICTURE = re.compile(
    r'<picture><source media="(?P<query>[^"]+)" srcset="(?P<other>[^"]+)">\s*'
    r'<img src="(?P<usual>[^"]+)" alt="(?P<alt>[^"]*)"></picture>'
)
_CLASSES = {
    "(prefers-color-scheme: dark)": ("only-dark", "only-light"),
    "(max-width: 600px)": ("only-narrow", "only-wide"),
}
"""Classes of the two images of a picture, by the condition of the first; Furo has those of themes,
which follow a reader's choice against the system."""
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<path>\.[^)#:]+)\)")


def navigation(start: str) -> dict[str, dict[str, str]]:
    """Read the navigation from docs/index.md.

    Args:
        start: content of the file.

    Returns:
        For each heading the pages of its list: names of documents and their titles.

    """
    parts = _HEADING.split(start)[1:]
    return {
        heading: {_document(entry["path"]): entry["title"] for entry in _ENTRY.finditer(text)}
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }


def results() -> dict[str, str]:
    """Return the reports below docs/results, named by their folders."""
    folder = ROOT / RESULTS.rpartition("/")[0]
    found = sorted(folder.rglob("*.md"))
    documents = [path.relative_to(ROOT).with_suffix("") for path in found]
    return {
        document.as_posix(): _result_title(document.relative_to("docs/results"))
        for document in documents
        if document.as_posix() != RESULTS
    }


def _result_title(document: Path) -> str:
    return (document.parent if document.name == "results" else document).as_posix()


def _document(path: str) -> str:
    """Name the document of a link in docs/index.md."""
    return path.removeprefix("../") if path.startswith("../") else f"docs/{path}"


def _toctree(caption: str, pages: dict[str, str]) -> str:
    entries = "\n".join(f"{title} </{document}>" for document, title in pages.items())
    return f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def _images(picture: re.Match[str]) -> str:
    """Show one image or the other by their classes; Sphinx copies images, but no pictures."""
    other, usual = _CLASSES[picture["query"]]
    alt = picture["alt"]
    return (
        f'<img class="{usual}" src="{picture["usual"]}" alt="{alt}">'
        f'<img class="{other}" src="{picture["other"]}" alt="{alt}">'
    )


def _without_folders(text: str, folder: Path) -> str:
    """Replace links to folders, which have no page, by their texts."""

    def replacement(link: re.Match[str]) -> str:
        return link["text"] if (folder / link["path"]).is_dir() else link[0]

    return _LINK.sub(replacement, text)


def read_source(_: Sphinx, document: str, source: list[str]) -> None:
    """Add what the site needs to the content of a file."""
    text = _PICTURE.sub(_images, source[0])
    text = _without_folders(text, (ROOT / document).parent)
    if document == START:
        text += "".join(_toctree(*part) for part in navigation(source[0]).items())
    if document == RESULTS:
        text += _toctree("Results", results())
    source[0] = text


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("source-read", read_source)
    return {"parallel_read_safe": True}
