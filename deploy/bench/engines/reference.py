"""Expected outputs of a layer, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....ort_ops.format.condensed import CondensedWeight
from ....ort_ops.reference import condensed_gemm

# Above this many weights the dense matrix for the reference is too large.
_DENSE_REFERENCE = 1 << 24


def exact_outputs(weight: CondensedWeight, x: np.ndarray) -> np.ndarray:
    """Compute [batch, out_features] in float64 from x [batch, in_features]."""
    if weight.in_features * weight.out_features <= _DENSE_REFERENCE:
        dense: NDArray[np.float64] = weight.to_dense().astype(np.float64)
        outputs: NDArray[np.float64] = x.astype(np.float64) @ dense.T + weight.bias
        return outputs
    return condensed_gemm(
        x,
        weight.values,
        weight.indices,
        weight.bias,
        weight.rows,
        in_features=weight.in_features,
        out_features=weight.out_features,
    )
