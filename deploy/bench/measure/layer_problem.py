"""The problem of one layer: inputs, and outputs in float64."""

from __future__ import annotations

import numpy as np

from ....export.condensed import CondensedWeight
from ..engines.reference import exact_outputs
from .problem import Problem, Sample, vary_inputs

# Of float32 sums against float64 ones, relative to the largest output.
_TOLERANCE = 1e-5


def layer_problem(weight: CondensedWeight, batch: int, seed: int) -> Problem:
    """Make standard normal inputs of ``seed``, and what the layer makes of them."""
    shape = (batch, weight.in_features)
    timed, fresh = (
        {"x": np.random.default_rng([seed, part]).standard_normal(shape, np.float32)}
        for part in (1, 2)
    )
    samples = [
        Sample(inputs, [exact_outputs(weight, inputs["x"])])
        for inputs in (timed, fresh, vary_inputs(timed))
    ]
    return Problem(*samples[:2], varied=samples[2], tolerance=_TOLERANCE)


def self_checked_problem(batch: int, in_features: int, seed: int) -> Problem:
    """Make inputs for such layers."""
    rng = np.random.default_rng(seed)
    timed, fresh = ({"x": rng.standard_normal((batch, in_features), np.float32)} for _ in range(2))
    zero = [np.zeros(1)]
    varied = Sample(vary_inputs(timed), zero)
    return Problem(Sample(timed, zero), Sample(fresh, zero), varied=varied, tolerance=1e-4)
