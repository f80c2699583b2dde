"""Random layers with constant fan-in."""

from __future__ import annotations

import numpy as np

from ....ort_ops.format.condensed import CondensedWeight, index_dtype

MASKS = ("random", "clustered", "blocks")
"""``random``: all columns equally likely. ``clustered``: the columns of a neuron lie in a window
twice as wide as its fan-in at a random place, like a local receptive field. ``blocks``: in random
blocks of 4, the first one at a multiple of 4, as DeepSparse wants them in 8 bits; a neuron whose
fan-in is no multiple of 4 fills its last block in part."""

_BLOCK = 4

_CHUNK = 1 << 22


def random_sparse_layer(
    mask: str,
    rng: np.random.Generator,
    in_features: int,
    out_features: int,
    active: int,
    fan_in: int,
) -> CondensedWeight:
    """Make a layer with ``fan_in`` weights in each of ``active`` neurons at random rows.

    Values are normal with variance 1 / fan_in, biases standard normal. The dense weight, which
    would not fit into memory for a million outputs, is never built.
    """
    if mask not in MASKS:
        raise ValueError(f"unknown mask {mask!r}; there are {', '.join(MASKS)}")
    rows = np.sort(rng.permutation(out_features)[:active]).astype(np.int32)
    if mask == "blocks":
        columns = _in_blocks(rng, active, fan_in, in_features)
    else:
        width = in_features if mask == "random" else min(in_features, 2 * fan_in)
        columns = _distinct(rng, active, fan_in, width)
        columns += rng.integers(in_features - width + 1, size=(active, 1))
    values = rng.standard_normal((active, fan_in), np.float32) / np.float32(np.sqrt(fan_in))
    return CondensedWeight(
        values=values,
        indices=columns.astype(index_dtype(in_features)),
        rows=rows,
        bias=rng.standard_normal(out_features, np.float32),
        in_features=in_features,
        out_features=out_features,
    )


def _in_blocks(rng: np.random.Generator, rows: int, count: int, below: int) -> np.ndarray:
    """Draw [rows, count] ascending numbers below ``below`` in blocks of 4."""
    if below % _BLOCK:
        raise ValueError(f"in_features is {below}; a mask of blocks needs a multiple of {_BLOCK}")
    blocks = _distinct(rng, rows, -(-count // _BLOCK), below // _BLOCK)
    columns = _BLOCK * blocks[:, :, None] + np.arange(_BLOCK)
    return columns.reshape(rows, -1)[:, :count]


def _distinct(rng: np.random.Generator, rows: int, count: int, below: int) -> np.ndarray:
    """Draw [rows, count] distinct ascending numbers below ``below``, every set equally likely."""
    if count * count < 4 * below:
        # Few numbers collide: rows with duplicates are redrawn.
        drawn = np.empty((rows, count), np.int64)
        left = np.arange(rows)
        while len(left):
            drawn[left] = np.sort(rng.integers(below, size=(len(left), count)), axis=1)
            left = left[(np.diff(drawn[left], axis=1) == 0).any(axis=1)]
        return drawn
    chunk = max(1, _CHUNK // below)
    parts = [
        np.argsort(rng.random((min(chunk, rows - start), below)), axis=1)[:, :count]
        for start in range(0, rows, chunk)
    ]
    return np.sort(np.concatenate(parts), axis=1)
