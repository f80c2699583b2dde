"""Checks of arguments that both exports have."""

from __future__ import annotations


def require_range(name: str, value: float, low: float, high: float) -> None:
    """Raise ValueError, naming the argument, where a value is out of its range."""
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, it must be {low} to {high}")
