"""Masks of the largest weights, equally many in each row; as trainer's pruning makes them."""

from __future__ import annotations

import numpy as np

_BLOCK = 1 << 22
"""Entries that are sorted at a time, so that a large weight needs little memory."""


def largest_per_row(matrix: np.ndarray, count: int) -> np.ndarray:
    """Select the largest magnitudes of each row; of equal ones, those of the first columns.

    Args:
        matrix: float ``[rows, columns]``, finite.
        count: entries per row, at most as many as there are columns.

    Returns:
        bool of the same shape.

    """
    mask = np.zeros(matrix.shape, bool)
    step = max(1, _BLOCK // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), step):
        block = -np.abs(matrix[start : start + step].astype(np.float32, copy=False))
        order = np.argsort(block, axis=1, kind="stable")[:, :count]
        np.put_along_axis(mask[start : start + step], order, True, axis=1)
    return mask
