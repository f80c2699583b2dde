"""Times as people read them."""

from __future__ import annotations


def seconds_text(seconds: float | None) -> str:
    """Write a time with its unit; nothing for None."""
    if seconds is None:
        return ""
    unit, factor = unit_of(seconds)
    return f"{short(seconds * factor)} {unit}"


def short(number: float) -> str:
    """Write with three digits that count, without an exponent."""
    size = abs(float(f"{number:.3g}"))
    return f"{number:.2f}" if size < 10 else f"{number:.1f}" if size < 100 else f"{number:.0f}"


def unit_of(seconds: float) -> tuple[str, float]:
    """Choose a unit: its name, and how many there are in a second."""
    if abs(seconds) < 1e-3:
        return "µs", 1e6
    return ("ms", 1e3) if abs(seconds) < 1 else ("s", 1.0)


def threads_text(threads: int) -> str:
    """Write a number of threads."""
    return "1 thread" if threads == 1 else f"{threads} threads"
