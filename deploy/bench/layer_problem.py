"""The problem of one layer: inputs, and outputs in float64."""

from __future__ import annotations

import numpy as np

from ...export.condensed import CondensedWeight
from ...ort_ops.reference import condensed_gemm
from .problem import Problem, Sample, vary_inputs

# Of float32 sums against float64 ones, relative to the largest output.
_TOLERANCE = 1e-5
# Above this many weights the dense matrix for the reference is too large to make.
_DENSE_REFERENCE = 1 << 24


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


def exact_outputs(weight: CondensedWeight, x: np.ndarray) -> np.ndarray:
    """Compute [batch, out_features] in float64; the dense weight is made only where it fits."""
    if weight.in_features * weight.out_features <= _DENSE_REFERENCE:
        return x.astype(np.float64) @ weight.to_dense().T.astype(np.float64) + weight.bias
    return condensed_gemm(
        x,
        weight.values,
        weight.indices,
        weight.bias,
        weight.rows,
        in_features=weight.in_features,
        out_features=weight.out_features,
    )
