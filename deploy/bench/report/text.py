"""Times, speed-ups and other values as text."""

from __future__ import annotations

from ..measure.statistics import Spread


def seconds_text(seconds: float | None) -> str:
    """Format a time with its unit; empty for None."""
    if seconds is None:
        return ""
    unit, factor = unit_of(seconds)
    return f"{short(seconds * factor)} {unit}"


def range_text(spread: Spread | None) -> str:
    """Format the median time and the range; empty for None."""
    if spread is None:
        return ""
    unit, factor = unit_of(spread.median)
    low, high = spread.min * factor, spread.max * factor
    return f"{short(spread.median * factor)} {unit} [{short(low)}–{short(high)}]"


def ratio_text(spread: Spread) -> str:
    """Format a speed-up: median, bootstrap confidence interval where it is known, range."""
    interval = f"({spread.interval[0]:.2f}–{spread.interval[1]:.2f}) " if spread.interval else ""
    return f"{spread.median:.2f}× {interval}[{spread.min:.2f}–{spread.max:.2f}]"


def short_ratio_text(spread: Spread) -> str:
    """Format a speed-up: median and range."""
    return f"{spread.median:.2f}× [{spread.min:.2f}–{spread.max:.2f}]"


def threads_text(threads: int) -> str:
    """Format a number of threads."""
    return "1 thread" if threads == 1 else f"{threads} threads"


def plain_text(value: object) -> str:
    """Format a value of a result file as one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain_text(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return " ".join(map(plain_text, value)) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "not known" if value is None else str(value)


def short(number: float) -> str:
    """Format with three significant digits, without an exponent."""
    size = abs(float(f"{number:.3g}"))
    return f"{number:.2f}" if size < 10 else f"{number:.1f}" if size < 100 else f"{number:.0f}"


def unit_of(seconds: float) -> tuple[str, float]:
    """Choose a unit of time; returns its name and how many there are in a second."""
    if abs(seconds) < 1e-3:
        return "µs", 1e6
    return ("ms", 1e3) if abs(seconds) < 1 else ("s", 1.0)
