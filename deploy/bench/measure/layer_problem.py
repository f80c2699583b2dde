"""Problems of one layer: random inputs and their expected outputs."""

from __future__ import annotations

import numpy as np

from ....ort_ops.format.condensed import CondensedWeight
from ..engines.reference import exact_outputs
from .problem import Problem

# Of float32 sums relative to the largest float64 one.
_TOLERANCE = 1e-5


def layer_problem(weight: CondensedWeight, batch: int, seed: int) -> Problem:
    """Draw standard normal inputs [batch, in_features], and compute the layer's outputs."""
    shape = (batch, weight.in_features)
    timed, fresh = (
        {"x": np.random.default_rng([seed, part]).standard_normal(shape, np.float32)}
        for part in (1, 2)
    )
    return Problem.of(timed, fresh, lambda inputs: [exact_outputs(weight, inputs["x"])], _TOLERANCE)


def self_checked_problem(batch: int, in_features: int, seed: int) -> Problem:
    """Draw inputs for engines whose output is their error, which should be 0."""
    rng = np.random.default_rng(seed)
    timed, fresh = ({"x": rng.standard_normal((batch, in_features), np.float32)} for _ in range(2))
    return Problem.of(timed, fresh, lambda _: [np.zeros(1)], 1e-4)
