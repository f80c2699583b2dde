"""The doctor's look at the kernels: every one that this CPU can run, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from .. import ort_ops
from .doctor_probe import FindingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..ort_ops._native import ConvKernelRow, KernelRow

_TOLERANCE = 1e-5
_REMEDY = "Set FANIN_ISA to another one, and report this with the output of fanin doctor."


class _Rows(TypedDict):
    values: NDArray[np.float32]
    indices: NDArray[np.uint16]
    rows: NDArray[np.int32]
    bias: NDArray[np.float32]


class _Sizes(TypedDict):
    in_features: int
    out_features: int


class _ConvLayer(TypedDict):
    in_channels: int
    out_channels: int
    kernel_shape: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    group: int


def gemm_kernels() -> str:
    """Compare the kernels of CondensedGemm on a small random layer."""
    from ..ort_ops import _native, reference

    rng = np.random.default_rng(0)
    rows, width = 24, 300
    arrays = _random_rows(rng, rows, 37, width)
    sizes: _Sizes = {"in_features": width, "out_features": rows}
    for isa in _native.supported_isas():
        packed = _native.PackedGemm(**arrays, **sizes, isa=isa)
        for batch in (1, 5, 64):
            x = rng.standard_normal((batch, width), np.float32)
            want = reference.condensed_gemm(x, **arrays, **sizes)
            _compare(packed.run(x), want, f"the {isa} kernel for batch {batch}")
    return _names(ort_ops.kernel_table())


def conv_kernels() -> str:
    """Compare the kernels of CondensedConv on a small random layer, padded and strided."""
    from ..ort_ops import _native, reference

    rng = np.random.default_rng(0)
    channels, outputs = 5, 24
    arrays = _random_rows(rng, outputs, 11, channels * 9)
    layer: _ConvLayer = {
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
        _compare(packed.run(x), want, f"the {isa} kernel of convolutions")
    return _names(ort_ops.conv_kernel_table())


def _random_rows(rng: np.random.Generator, rows: int, fan_in: int, width: int) -> _Rows:
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
    return f"right on every instruction set of this CPU: {', '.join(names)}"
