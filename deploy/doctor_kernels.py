"""The doctor's check of the kernels: all that this CPU can run, compared with float64."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ort_ops
from ..ort_ops.contract import COMPUTE_BFLOAT16
from .doctor_probe import FindingError

if TYPE_CHECKING:
    from ..ort_ops._native import (
        ConvKernelRow,
        KernelRow,
        QuantizedConvKernelRow,
        QuantizedKernelRow,
    )

    _Row = KernelRow | ConvKernelRow | QuantizedKernelRow | QuantizedConvKernelRow

_TOLERANCE = 1e-5
_CONV: dict[str, Any] = {
    "kernel_shape": (3, 3),
    "strides": (2, 1),
    "pads": (1, 0, 1, 2),
    "dilations": (1, 1),
    "group": 1,
}
_REMEDY = "Set FANIN_ISA to another one, and report this with the output of fanin doctor."


def gemm_kernels() -> str:
    """Check the CondensedGemm kernels on a small random layer; FindingError if one is wrong."""
    from ..ort_ops import _native, reference

    rng = np.random.default_rng(0)
    outputs, width = 24, 300
    arrays = _random_rows(rng, outputs, 37, width)
    sizes: dict[str, Any] = {"in_features": width, "out_features": outputs}
    for isa in _native.supported_isas():
        packed = _native.PackedGemm(**arrays, **sizes, isa=isa)
        for batch in (1, 5, 64):
            x = rng.standard_normal((batch, width), np.float32)
            want = reference.condensed_gemm(x, **arrays, **sizes)
            _compare(packed.run(x), want, f"the {isa} kernel for batch {batch}")
    rows = ort_ops.kernel_table()
    if find_spec("ml_dtypes"):
        _check_bfloat16(rng, arrays, sizes)
        return _names(rows)
    checked = _names([row for row in rows if row.compute == "float32"])
    return f"{checked}; those of bfloat16 are not checked without the package ml_dtypes"


def _check_bfloat16(
    rng: np.random.Generator, arrays: dict[str, Any], sizes: dict[str, Any]
) -> None:
    """Check what computes in bfloat16, on values that are exact in it."""
    import ml_dtypes

    from ..ort_ops import _native, reference

    layer = arrays | {"values": arrays["values"].astype(ml_dtypes.bfloat16)}
    for isa in _native.supported_isas():
        packed = _native.PackedGemm(**layer, **sizes, isa=isa, compute="bfloat16")
        for batch in (1, 64):
            x = rng.standard_normal((batch, sizes["in_features"]), np.float32)
            want = reference.condensed_gemm(x, **layer, **sizes, compute=COMPUTE_BFLOAT16)
            _compare(packed.run(x), want, f"the {isa} bfloat16 kernel for batch {batch}")


def conv_kernels() -> str:
    """Check the CondensedConv kernels on a small layer with padding and strides, likewise."""
    from ..ort_ops import _native, reference

    rng = np.random.default_rng(0)
    channels, outputs = 5, 24
    arrays = _random_rows(rng, outputs, 11, channels * 9)
    layer = _CONV | {"in_channels": channels, "out_channels": outputs}
    x = rng.standard_normal((2, channels, 9, 11), np.float32)
    want = reference.condensed_conv(x, **arrays, **layer)
    for isa in _native.supported_isas():
        packed = _native.PackedConv(**arrays, **layer, isa=isa)
        _compare(packed.run(x), want, f"the {isa} convolution kernel")
    return _names(ort_ops.conv_kernel_table())


def quantized_kernels() -> str:
    """Check the kernels of int8 weights, which must give the very bits of the reference."""
    from ..ort_ops import _native, reference_quantized

    rng = np.random.default_rng(0)
    rows, width = 40, 300
    arrays = _random_integers(rng, rows, 37, width)
    bias = rng.integers(-9000, 9000, rows).astype(np.int32)
    multipliers = np.full(rows, 2e-3, np.float32)
    scales: dict[str, Any] = {"x_scale": 1.0, "y_scale": 1.0, "values_scale": multipliers}
    channels = 5
    layer = _CONV | {"in_channels": channels, "out_channels": rows}
    conv = _random_integers(rng, rows, 11, channels * 9)
    for isa in _native.supported_isas():
        gemm = _native.PackedQuantizedGemm(**arrays, in_features=width, out_features=rows, isa=isa)
        for batch in (1, 5, 64):
            # Both types, of the same bits.
            drawn = rng.integers(0, 256, (batch, width)).astype(np.uint8)
            for x, zero in ((drawn, np.uint8(0)), (drawn.view(np.int8), np.int8(0))):
                got = gemm.run(
                    x, multipliers=multipliers, y_type=x.dtype.name, x_zero_point=3, bias=bias
                )
                want = reference_quantized.qlinear_condensed_gemm(
                    x,
                    **arrays,
                    **scales,
                    bias=bias,
                    x_zero_point=3,
                    y_zero_point=zero,
                    in_features=width,
                    out_features=rows,
                )
                _compare_bits(got, want, f"the {isa} 8-bit kernel for batch {batch}")
        packed = _native.PackedQuantizedConv(**conv, **layer, isa=isa)
        for last in (False, True):
            shape = (2, 9, 11, channels) if last else (2, channels, 9, 11)
            image = rng.integers(0, 256, shape).astype(np.uint8)
            got = packed.run(
                image,
                multipliers=multipliers,
                y_type="uint8",
                x_zero_point=3,
                bias=bias,
                channels_last=last,
            )
            want = reference_quantized.qlinear_condensed_conv(
                image,
                **conv,
                **scales,
                bias=bias,
                x_zero_point=3,
                y_zero_point=np.uint8(0),
                channels_last=last,
                **layer,
            )
            _compare_bits(got, want, f"the {isa} 8-bit convolution kernel")
    return _names([*ort_ops.quantized_kernel_table(), *ort_ops.quantized_conv_kernel_table()])


def _random_integers(
    rng: np.random.Generator, rows: int, fan_in: int, width: int
) -> dict[str, Any]:
    arrays = _random_rows(rng, rows, fan_in, width)
    del arrays["bias"]
    return arrays | {"values": rng.integers(-128, 128, (rows, fan_in)).astype(np.int8)}


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


def _compare_bits(got: np.ndarray, want: np.ndarray, what: str) -> None:
    wrong = int(np.count_nonzero(got != want))
    if wrong:
        raise FindingError(f"{what} gives {wrong} of {want.size} outputs wrong", _REMEDY)


def _names(table: Sequence[_Row]) -> str:
    names = dict.fromkeys(row.name for row in table if row.supported)
    return f"correct on every instruction set of this CPU: {', '.join(names)}"
