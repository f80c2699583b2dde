"""Masks of the largest weights, equally many in each row; as trainer's pruning makes them."""

from __future__ import annotations

import numpy as np

_BLOCK = 1 << 22
"""Entries that are compared at a time, so that a large weight needs little memory."""


def largest_per_row(matrix: np.ndarray, count: int) -> np.ndarray:
    """Select the largest magnitudes of each row; of equal ones, those of the first columns.

    Args:
        matrix: float ``[rows, columns]``, finite.
        count: entries per row, at most as many as there are columns.

    Returns:
        bool of the same shape.

    """
    mask = np.zeros(matrix.shape, bool)
    columns = matrix.shape[1]
    step = max(1, _BLOCK // max(1, columns))
    for start in range(0, len(matrix), step):
        sizes = np.abs(matrix[start : start + step].astype(np.float32, copy=False))
        least = np.partition(sizes, columns - count, axis=1)[:, columns - count, None]
        larger, equal = sizes > least, sizes == least
        wanted = count - np.count_nonzero(larger, axis=1, keepdims=True)
        mask[start : start + step] = larger | (equal & (np.cumsum(equal, axis=1) <= wanted))
    return mask
