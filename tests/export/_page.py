"""An HTML page as tests read it: a tree of elements with their texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = ("meta", "img", "br", "wbr", "rect")


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        return [
            one
            for one in self.walk()
            if one.tag == tag
            and all(one.attributes.get(key.strip("_")) == v for key, v in attributes.items())
        ]

    def walk(self) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.walk()

    def table(self, label: str) -> list[list[str]]:
        """The texts of the body of a table, by row and cell."""
        (frame,) = (one for one in self.all("div", role="region", aria_label=label))
        (body,) = frame.all("tbody")
        return [[c.text for c in row.children if isinstance(c, Element)] for row in body.all("tr")]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("document", {})]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, {key.replace("-", "_"): value for key, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        self.open[-1].children.append(data)


def parse(page: str) -> Element:
    """Parse a page, in which every element is closed where it should be."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    assert len(parser.open) == 1, f"<{parser.open[-1].tag}> is not closed"
    return parser.open[0]
