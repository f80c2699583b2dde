"""Masks for the tests of the page about a model."""

from __future__ import annotations

import numpy as np

from fanin.export.mask_summary import MaskSummary


def summary(kept: np.ndarray) -> MaskSummary:
    found = MaskSummary.of(kept, np.count_nonzero(kept.reshape(len(kept), -1), axis=1))
    assert found is not None
    return found


def constant_fan_in(shape: tuple[int, int], fan_in: int, ablated: int = 0) -> np.ndarray:
    """Weights [out, in] with as many in each row, the last rows ablated."""
    rng = np.random.default_rng(1)
    weight = np.zeros(shape, np.float32)
    for row in weight[: shape[0] - ablated]:
        row[rng.choice(shape[1], fan_in, replace=False)] = 1 + rng.random(fan_in)
    return weight
