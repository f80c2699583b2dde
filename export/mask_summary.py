"""What a picture of a mask needs: the density of its blocks and how long its rows are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..ort_ops.format.condensed import CondensedWeight

MOST_ROWS, MOST_COLUMNS = 96, 128
"""Blocks of the finest picture; a smaller mask has one for each entry."""


@dataclass(frozen=True, eq=False)
class MaskSummary:
    """A mask ``[neurons, inputs]``, downsampled.

    Attributes:
        shape: of the mask.
        density: share of stored weights of each block, float32 ``[rows, columns]``.
        ablated: share of the neurons of each row of blocks that have no weight, float32 ``[rows]``.
        fan_ins: counts of weights that neurons have, increasing; 0 is that of ablated ones.
        neurons: how many neurons have each of them.

    """

    shape: tuple[int, int]
    density: np.ndarray
    ablated: np.ndarray
    fan_ins: np.ndarray
    neurons: np.ndarray

    @classmethod
    def of(cls, kept: np.ndarray, fan_in: np.ndarray) -> MaskSummary | None:
        """Summarize a mask; None if it is empty.

        Args:
            kept: which entries are weights, bool ``[neurons, ...]``.
            fan_in: how many there are in each row.

        """
        if kept.ndim < 2 or not kept.size:
            return None
        kept = kept.reshape(len(kept), -1)
        down, across = _edges(kept.shape[0], MOST_ROWS), _edges(kept.shape[1], MOST_COLUMNS)
        if kept.strides[0] < kept.strides[1]:
            counts = _blocks(kept.T, across, down).T
        else:
            counts = _blocks(kept, down, across)
        return cls._of_counts(kept.shape, counts, fan_in, down, across)

    @classmethod
    def of_condensed(cls, weight: CondensedWeight) -> MaskSummary:
        """Summarize where a condensed weight has entries."""
        shape = (weight.out_features, weight.in_features)
        stored, slot = np.nonzero(weight.is_entry())
        rows, columns = weight.rows[stored], weight.indices[stored, slot]
        down, across = _edges(shape[0], MOST_ROWS), _edges(shape[1], MOST_COLUMNS)
        blocks = (len(down) - 1, len(across) - 1)
        block = (np.searchsorted(down, rows, "right") - 1) * blocks[1]
        block += np.searchsorted(across, columns, "right") - 1
        counts = np.bincount(block, minlength=blocks[0] * blocks[1]).reshape(blocks)
        return cls._of_counts(shape, counts, np.bincount(rows, minlength=shape[0]), down, across)

    @classmethod
    def _of_counts(
        cls,
        shape: tuple[int, ...],
        counts: np.ndarray,
        fan_in: np.ndarray,
        down: np.ndarray,
        across: np.ndarray,
    ) -> MaskSummary:
        sizes = np.outer(np.diff(down), np.diff(across))
        ablated = np.add.reduceat((fan_in == 0).astype(np.float32), down[:-1]) / np.diff(down)
        fan_ins, neurons = np.unique(fan_in, return_counts=True)
        return cls(
            (int(shape[0]), int(shape[1])),
            (counts / sizes).astype(np.float32),
            ablated.astype(np.float32),
            fan_ins,
            neurons,
        )

    def coarser(self, rows: int, columns: int) -> MaskSummary:
        """Return the summary with at most so many blocks."""
        down, across = _edges(len(self.density), rows), _edges(self.density.shape[1], columns)
        sums = np.add.reduceat(np.add.reduceat(self.density, down[:-1]), across[:-1], axis=1)
        ablated = np.add.reduceat(self.ablated, down[:-1]) / np.diff(down)
        density = sums / np.outer(np.diff(down), np.diff(across))
        return MaskSummary(self.shape, density, ablated, self.fan_ins, self.neurons)


def _blocks(kept: np.ndarray, down: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Count the weights of each block, over rows first, since that is vectorized."""
    rows = [kept[low:high].sum(axis=0, dtype=np.uint32) for low, high in pairwise(down)]
    return np.add.reduceat(np.stack(rows), across[:-1], axis=1)


def _edges(size: int, most: int) -> np.ndarray:
    """Return where blocks of nearly equal sizes begin, and where the last one ends."""
    return np.linspace(0, size, min(size, most) + 1).round().astype(np.intp)
