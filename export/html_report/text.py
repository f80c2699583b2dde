"""Texts and numbers of a page: escaped, and in one unit where they stand under each other."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

from ..._base.tables import visible

_LONGEST = 160
"""Characters of a name that are shown; a name in a file may be of any length."""

NONE = "–"

_NO_BREAK = "\N{NO-BREAK SPACE}"


def escape(text: str, longest: int = _LONGEST) -> str:
    """Make a text from a file harmless: HTML, control characters, direction marks, length."""
    if len(text) > longest:
        text = f"{text[: longest * 2 // 3]}…{text[-(longest // 3) :]}"
    return html.escape(visible(text))


def breakable(text: str, longest: int = _LONGEST) -> str:
    """Escape a name, with places where a line may break after dots, slashes and underscores."""
    escaped = escape(text, longest)
    for mark in (".", "/", "_", "::"):
        escaped = escaped.replace(mark, f"{mark}<wbr>")
    return f"<bdi>{escaped}</bdi>"


def shape(sizes: Iterable[int]) -> str:
    """Write a shape."""
    return "×".join(map(str, sizes))


def percent(share: float) -> str:
    """Write a share with one decimal; what is not quite everything is not written as 100 %."""
    if 0.9995 <= share < 1:
        return ">99.9%"
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{100 * share:.1f}%"


def times(factor: float | None) -> str:
    """Write a speed-up."""
    if factor is None:
        return NONE
    return f"{factor:.2f}×" if factor < 99.5 else f"{factor:.0f}×"


@dataclass(frozen=True)
class Unit:
    """A unit for numbers of a column.

    Attributes:
        name: after a number.
        size: of one.
        decimals: that are shown.

    """

    name: str
    size: float
    decimals: int

    def number(self, value: float | None) -> str:
        """Write a number without the unit."""
        if value is None:
            return NONE
        return f"{value / self.size:,.{self.decimals}f}"

    def text(self, value: float | None) -> str:
        """Write a number with the unit."""
        return NONE if value is None else f"{self.number(value)}{_NO_BREAK}{self.name}"


def unit_of_seconds(values: Iterable[float | None]) -> Unit:
    """Choose a unit for times by the longest."""
    most = max((value for value in values if value is not None), default=0.0)
    if most < 1e-3:
        return Unit("µs", 1e-6, 1)
    if most < 1:
        return Unit("ms", 1e-3, 3 if most < 1e-2 else 2)
    return Unit("s", 1.0, 3)


def unit_of_bytes(values: Iterable[int]) -> Unit:
    """Choose a unit for sizes by the largest."""
    most = max(values, default=0)
    if most < 1000:
        return Unit("B", 1, 0)
    for name, size in (("kB", 1e3), ("MB", 1e6)):
        if most < 1000 * size:
            return Unit(name, size, 1 if most >= 100 * size else 2)
    return Unit("GB", 1e9, 2)
