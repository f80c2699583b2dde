"""Check all links of the built site: pages, anchors and files exist, addresses are well-formed.

    python docs/site/check_links.py build/site

Other sites are not asked: a build must not depend on them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_SCHEMES = ("http", "https", "mailto")


class _Page(HTMLParser):
    """Collects the anchors and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the element links to, and what links can name it by."""
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src"):
                self.links.append(value or "")
            elif name == "srcset":
                self.links += [part.split()[0] for part in (value or "").split(",")]


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def broken_links(site: Path) -> Iterator[str]:
    """Describe each broken link, with the page that has it."""
    for path in sorted(site.rglob("*.html")):
        for link in dict.fromkeys(_read(path).links):
            fault = _fault(path, link)
            if fault:
                yield f"{path.relative_to(site)}: {link!r} {fault}"


def _fault(page: Path, link: str) -> str | None:
    try:
        parts = urlsplit(link)
    except ValueError as error:
        return f"is no address: {error}"
    if parts.scheme == "data":
        return None
    if parts.scheme or parts.netloc:
        known = parts.scheme in _SCHEMES and (parts.netloc or parts.scheme == "mailto")
        return None if known and " " not in link else "is no address of another site"
    target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
    if not target.is_file():
        return "does not exist"
    if target.suffix == ".html" and unquote(parts.fragment) not in _read(target).anchors:
        return "has an anchor that the page lacks"
    return None


def main(arguments: list[str]) -> int:
    """Print broken links to stderr; returns the exit status."""
    if len(arguments) != 1 or not Path(arguments[0], "index.html").is_file():
        print("usage: check_links.py FOLDER, which holds index.html", file=sys.stderr)
        return 2
    site = Path(arguments[0]).resolve()
    broken = list(broken_links(site))
    for line in broken:
        print(line, file=sys.stderr)
    pages = len(list(site.rglob("*.html")))
    print(f"{pages} pages, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
