"""The doctor's check of the kernels: all that this CPU can run, compared with float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ort_ops
from .doctor_probe import FindingError

if TYPE_CHECKING:
    from ..ort_ops._native import ConvKernelRow, KernelRow

_TOLERANCE = 1e-5
_REMEDY = "Set FANIN_ISA to another one, and report this with the output of fanin doctor."


def gemm_kernels() -> str:
    """Check the CondensedGemm kernels on a small random layer; FindingError if one is wrong."""
    from ..ort_ops import _native, reference

    rng = np.random.default_rng(0)
    rows, width = 24, 300
    arrays = _random_rows(rng, rows, 37, width)
    sizes: dict[str, Any] = {"in_features": width, "out_features": rows}
    for isa in _native.supported_isas():
        packed = _native.PackedGemm(**arrays, **sizes, isa=isa)
        for batch in (1, 5, 64):
            x = rng.standard_normal((batch, width), np.float32)
            want = reference.condensed_gemm(x, **arrays, **sizes)
            _compare(packed.run(x), want, f"the {isa} kernel for batch {batch}")
    return _names(ort_ops.kernel_table())


def conv_kernels() -> str:
    """Check the CondensedConv kernels on a small layer with padding and strides, likewise."""
    from ..ort_ops import _native, reference

    rng = np.random.default_rng(0)
    channels, outputs = 5, 24
    arrays = _random_rows(rng, outputs, 11, channels * 9)
    layer: dict[str, Any] = {
        "in_channels": channels,
        "out_channels": outputs,
        "kernel_shape": (3, 3),
        "strides": (2, 1),
        "pads": (1, 0, 1, 2),
        "dilations": (1, 1),
        "group": 1,
    }
    x = rng.standard_normal((2, channels, 9, 11), np.float32)
    want = reference.condensed_conv(x, **arrays, **layer)
    for isa in _native.supported_isas():
        packed = _native.PackedConv(**arrays, **layer, isa=isa)
        _compare(packed.run(x), want, f"the {isa} convolution kernel")
    return _names(ort_ops.conv_kernel_table())


def _random_rows(rng: np.random.Generator, rows: int, fan_in: int, width: int) -> dict[str, Any]:
    columns = rng.permuted(np.tile(np.arange(width), (rows, 1)), axis=1)[:, :fan_in]
    return {
        "values": rng.standard_normal((rows, fan_in), np.float32),
        "indices": np.sort(columns).astype(np.uint16),
        "rows": np.arange(rows, dtype=np.int32),
        "bias": rng.standard_normal(rows, np.float32),
    }


def _compare(got: np.ndarray, want: np.ndarray, what: str) -> None:
    error = float(np.abs(got - want).max() / np.abs(want).max())
    if not error <= _TOLERANCE:
        raise FindingError(f"{what} is wrong by {error:.1e}", _REMEDY)


def _names(table: Sequence[KernelRow | ConvKernelRow]) -> str:
    names = dict.fromkeys(row.name for row in table if row.supported)
    return f"correct on every instruction set of this CPU: {', '.join(names)}"
