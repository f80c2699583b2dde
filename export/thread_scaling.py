"""How long a layer takes on several threads, predicted from its time on one.

Condensed layers are shared out as the op library's plans do (docs/kernels.md): in equal parts of
tiles × blocks of rows, for the number of threads that ends first with what starting them costs.
Dense layers get the speed-ups that were measured of ONNX Runtime's Gemm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..ort_ops.dispatch_cost import DispatchCost
from .interpolation import interpolate

_TILE = 32
"""Samples or pixels that a panel kernel computes at a time."""

_FEW_SAMPLES = 3
"""Up to so many samples the window kernels run, whose unit is a group of 64 rows."""

_WINDOW_ROWS, _BLOCK_ROWS = 64, 32

_FILL_SECONDS = 5e-9
"""To fill a column of a full tile's panel, which every thread that shares the tile does."""

_DENSE_THREADS = (1, 2, 4, 8, 16)
_DENSE_BATCHES = (1, 16)
_DENSE_SPEEDUPS = ((1.0, 1.0), (1.84, 1.97), (4.85, 3.51), (14.2, 5.24), (15.8, 8.69))
"""``[threads][batch]``: 3072 → 768 in ONNX Runtime 1.30 on 16 cores of a Xeon with 2 MB of L2 each;
the second column is the median of batch 16, 64 and 256. The 9.4 MB of one sample's weights come
from memory on one thread, and from eight L2 caches on eight."""

_CACHED_WEIGHTS = 1 << 19
"""Entries of a dense weight of 2 MB: one thread has it in its L2, so that more gain no cache."""


@dataclass(frozen=True)
class Work:
    """What there is to share out of a condensed layer.

    Attributes:
        tiles: of samples or pixels.
        blocks: of rows.
        fill: seconds that it takes to fill the panel of a tile; 0 where there is none.

    """

    tiles: int
    blocks: int
    fill: float

    @classmethod
    def of_rows(cls, batch: int, out_features: int, in_features: int) -> Work:
        """Describe a linear layer on ``batch`` rows of X."""
        if batch <= _FEW_SAMPLES:
            return cls(1, math.ceil(out_features / _WINDOW_ROWS), 0.0)
        return cls._of_panels(batch, out_features, in_features)

    @classmethod
    def of_pixels(cls, pixels: int, out_channels: int, columns: int) -> Work:
        """Describe a convolution with so many output pixels, of all images together."""
        return cls._of_panels(pixels, out_channels, columns)

    @classmethod
    def _of_panels(cls, samples: int, rows: int, columns: int) -> Work:
        fill = _FILL_SECONDS * columns * min(1.0, samples / _TILE)
        return cls(math.ceil(samples / _TILE), math.ceil(rows / _BLOCK_ROWS), fill)


def condensed_seconds(seconds: float, work: Work, threads: int, cost: DispatchCost) -> float:
    """Predict a condensed layer on up to ``threads`` threads.

    Args:
        seconds: on one thread.
        work: what is shared out.
        threads: of the session.
        cost: of a dispatch.

    Returns:
        Seconds on the number of threads that ends first; never more than on one.

    """
    tile = seconds / work.tiles
    fill = min(tile, work.fill)
    best = seconds
    for count in range(2, min(threads, work.tiles * work.blocks) + 1):
        if count <= work.tiles:
            share = tile * math.ceil(work.tiles / count)
        else:
            sharing = min(count // work.tiles, work.blocks)
            share = fill + (tile - fill) * math.ceil(work.blocks / sharing) / work.blocks
        best = min(best, share + cost.microseconds(count) / 1e6)
    return best


def dense_seconds(
    seconds: float, batch: int, weights: int, threads: int, cost: DispatchCost
) -> float:
    """Predict a dense layer on up to ``threads`` threads; the runtime, too, takes fewer for less.

    Args:
        seconds: on one thread.
        batch: rows of X; of a convolution 16, as pixels are many.
        weights: entries of the weight, if they are of float32; else as many as take its room.
        threads: of the session.
        cost: of a dispatch.

    Returns:
        Seconds on the number of threads that ends first, of the powers of two and all of them.

    """
    best = seconds
    for count in {min(2**power, threads) for power in range(1, threads.bit_length() + 1)}:
        speedup = dense_speedup(batch, count)
        if weights <= _CACHED_WEIGHTS:
            speedup = min(speedup, count)
        best = min(best, seconds / speedup + cost.microseconds(count) / 1e6)
    return best


def dense_speedup(batch: int, threads: int) -> float:
    """Return the speed-up of a large dense layer; beyond 16 threads as from 8 to 16."""
    axes = [np.log(np.array(axis, np.float64)) for axis in (_DENSE_THREADS, _DENSE_BATCHES)]
    point = np.log([threads, min(max(batch, 1), _DENSE_BATCHES[-1])])
    return math.exp(interpolate(np.log(_DENSE_SPEEDUPS), axes, point))
