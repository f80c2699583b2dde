"""Tables of measured times, read between their points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def interpolate(table: np.ndarray, axes: Sequence[np.ndarray], point: np.ndarray) -> float:
    """Interpolate linearly along each axis; outside, go on with the slope of the last segment.

    An axis of one point says nothing of others: what was measured there stands for all.
    """
    for axis, x in zip(axes, point, strict=False):
        if len(axis) == 1:
            table = table[0]
            continue
        right = int(np.clip(np.searchsorted(axis, x), 1, len(axis) - 1))
        share = (x - axis[right - 1]) / (axis[right] - axis[right - 1])
        table = table[right - 1] * (1 - share) + table[right] * share
    return float(table)


def require_axis(name: str, axis: Sequence[float]) -> None:
    """Raise ValueError unless ``axis`` is of positive, finite numbers that increase."""
    values = as_numbers(axis)
    if values.ndim != 1 or not values.size or not are_times(values) or (np.diff(values) <= 0).any():
        raise ValueError(f"{name} are not numbers that increase")


def as_numbers(table: object) -> np.ndarray:
    """Return a table as an array, an empty one for what has no numbers or uneven rows."""
    try:
        return np.asarray(table, np.float64)
    except (TypeError, ValueError):
        return np.zeros(0)


def are_times(values: np.ndarray) -> bool:
    """Say whether all are positive and finite."""
    return bool(((values > 0) & (values < np.inf)).all())
