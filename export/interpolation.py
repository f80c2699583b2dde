"""Tables of measured times, read between their points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def interpolate(table: np.ndarray, axes: Sequence[np.ndarray], point: np.ndarray) -> float:
    """Interpolate linearly along each axis; outside, go on with the slope of the last segment."""
    for axis, x in zip(axes, point, strict=False):
        right = int(np.clip(np.searchsorted(axis, x), 1, len(axis) - 1))
        share = (x - axis[right - 1]) / (axis[right] - axis[right - 1])
        table = table[right - 1] * (1 - share) + table[right] * share
    return float(table)
