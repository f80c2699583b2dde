"""The float operators' definition in float64 NumPy, the reference for their kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .contract import COMPUTE_BFLOAT16, COMPUTE_FLOAT32

# Products in memory at once, about 64 MB.
_BLOCK = 1 << 23


def condensed_gemm(
    x: ArrayLike,
    values: ArrayLike,
    indices: ArrayLike,
    bias: ArrayLike,
    rows: ArrayLike,
    residual: ArrayLike | None = None,
    *,
    in_features: int,
    out_features: int,
    clip_min: float = -np.inf,
    clip_max: float = np.inf,
    compute: int = COMPUTE_FLOAT32,
) -> NDArray[np.float64]:
    """Compute ``ai.fanin::CondensedGemm`` version 1 in float64.

    ``y[..., r] = clip(bias[r] + sum_j values[i, j] * x[..., indices[i, j]] + residual[..., r])``
    with ``r = rows[i]``, and ``clip(bias + residual)`` for the outputs that ``rows`` does not list.
    Only true entries enter the sum: padding (an index equal to its predecessor in the row) is
    skipped, so that a NaN or Inf in ``x`` reaches exactly the outputs that have a weight in its
    column. NaN passes through the clip.

    Arrays may have any float type, including ml_dtypes' bfloat16; all are widened to float64.

    Args:
        x: ``[..., in_features]``, at least one dimension.
        values: ``[active, fan_in]``.
        indices: ``[active, fan_in]`` integers, increasing over the true entries of a row.
        bias: ``[out_features]``.
        rows: ``[active]`` integers, strictly increasing.
        residual: the shape of the result, or None.
        in_features: size of the last dimension of ``x``.
        out_features: size of the last dimension of the result.
        clip_min: lower bound of the result.
        clip_max: upper bound of the result.
        compute: with COMPUTE_BFLOAT16 ``x`` is rounded to bfloat16 first.

    Returns:
        ``[..., out_features]``.

    Raises:
        ValueError: shapes that do not fit each other.

    """
    if compute == COMPUTE_BFLOAT16:
        x = round_bfloat16(np.asarray(x, np.float32))
    x = np.asarray(x, np.float64)
    values = np.asarray(values, np.float64)
    indices = np.asarray(indices).astype(np.int64)
    bias = np.asarray(bias, np.float64)
    rows = np.asarray(rows).astype(np.int64)
    _check_shapes(x, values, indices, bias, rows, in_features, out_features)

    flat = x.reshape(-1, in_features)
    true_entry = _true_entries(indices)

    y = np.tile(bias, (len(flat), 1))
    active, fan_in = values.shape
    step = max(1, _BLOCK // max(1, len(flat) * fan_in))
    for start in range(0, active, step):
        block = slice(start, start + step)
        # Inf and NaN in x are legitimate; products of padding are replaced by 0.
        with np.errstate(invalid="ignore"):
            products = np.where(true_entry[block], values[block] * flat[:, indices[block]], 0.0)
            y[:, rows[block]] += products.sum(axis=-1)
    return _epilogue(y.reshape(*x.shape[:-1], out_features), residual, clip_min, clip_max)


def round_bfloat16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to the nearest bfloat16, ties to even, beyond the largest one to infinity."""
    bits = x.view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return np.where(np.isnan(x), x, nearest.astype(np.uint32).view(np.float32))


def condensed_conv(
    x: ArrayLike,
    values: ArrayLike,
    indices: ArrayLike,
    bias: ArrayLike,
    rows: ArrayLike,
    residual: ArrayLike | None = None,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    group: int,
    in_channels: int,
    out_channels: int,
    clip_min: float = -np.inf,
    clip_max: float = np.inf,
    gate_scale: float = 0.0,
    gate_shift: float = 1.0,
) -> NDArray[np.float64]:
    """Compute ``ai.fanin::CondensedConv`` version 1 in float64.

    An index is a position in the receptive field ``[in_channels / group, *kernel_shape]`` of the
    row's own group: one channel and one tap. Output pixel ``p`` of row ``r = rows[i]`` is
    ``clip(bias[r] + sum_j values[i, j] * x[n, channel_j, place_j] + residual)`` with ``place_j = p
    * strides + tap_j * dilations - begin_pads``; positions outside ``x`` read 0. A gate other than
    (0, 1) then turns each result v into ``v * clip(gate_scale * v + gate_shift, 0, 1)``. A NaN or
    Inf in ``x`` reaches exactly the outputs that have a weight there. Padding of a row (an index
    equal to its predecessor) is skipped.

    Args:
        x: ``[N, in_channels, H, W]`` or ``[N, in_channels, L]``.
        values: ``[active, fan_in]``.
        indices: ``[active, fan_in]`` integers, increasing over the true entries of a row.
        bias: ``[out_channels]``.
        rows: ``[active]`` integers, strictly increasing.
        residual: the shape of the result, or None.
        kernel_shape: ``(kh, kw)`` or ``(kl,)``.
        strides: one for each spatial axis.
        pads: the beginnings of all spatial axes, then their ends.
        dilations: one for each spatial axis.
        group: number of groups of channels.
        in_channels: channels of ``x``.
        out_channels: channels of the result.
        clip_min: lower bound of the sum.
        clip_max: upper bound of the sum.
        gate_scale: factor of the clipped sum in the gate.
        gate_shift: summand of the gate.

    Returns:
        ``[N, out_channels, ...]`` with the lengths that ONNX's Conv gives.

    Raises:
        ValueError: shapes that do not fit each other, or a kernel longer than the padded ``x``.

    """
    x = np.asarray(x, np.float64)
    values = np.asarray(values, np.float64)
    indices = np.asarray(indices).astype(np.int64)
    bias = np.asarray(bias, np.float64)
    rows = np.asarray(rows).astype(np.int64)
    axes = len(kernel_shape)
    if x.ndim != 2 + axes or x.shape[1] != in_channels:
        raise ValueError(f"x has shape {x.shape}, it must be [N, {in_channels}] and {axes} more")
    window = (in_channels // group, *kernel_shape)
    _check_weights(values, indices, bias, rows, out_channels)

    padded, sizes = _pad_image(x, 0.0, kernel_shape, strides, pads, dilations)
    y = np.tile(bias[:, None], (len(x), 1, math.prod(sizes)))
    y = y.reshape(len(x), out_channels, *sizes)
    true_entry = _true_entries(indices)
    with np.errstate(invalid="ignore"):
        for i, row in enumerate(rows):
            first_channel = row // (out_channels // group) * window[0]
            for j in np.flatnonzero(true_entry[i]):
                channel, *tap = np.unravel_index(indices[i, j], window)
                seen = _seen_by_tap(tap, strides, dilations, sizes)
                y[:, row] += values[i, j] * padded[(slice(None), first_channel + channel, *seen)]
    y = _epilogue(y, residual, clip_min, clip_max)
    if (gate_scale, gate_shift) == (0, 1):
        return y
    with np.errstate(invalid="ignore"):
        return y * np.clip(gate_scale * y + gate_shift, 0, 1)


def _pad_image(
    x: NDArray[Any],
    border: float,
    kernel_shape: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> tuple[NDArray[Any], list[int]]:
    """Return ``x`` ``[N, C, ...]`` with its pads, and the output's size along each axis."""
    axes = len(kernel_shape)
    margins = list(zip(pads[:axes], pads[axes:], strict=True))
    padded = np.pad(x, [(0, 0), (0, 0), *margins], constant_values=border)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
    sizes = [
        (length - extent) // stride + 1
        for length, extent, stride in zip(padded.shape[2:], reach, strides, strict=True)
    ]
    if min(sizes) < 1:
        raise ValueError(f"x has shape {x.shape}, too small for the kernel {tuple(kernel_shape)}")
    return padded, sizes


def _seen_by_tap(
    tap: Sequence[np.intp], strides: Sequence[int], dilations: Sequence[int], sizes: Sequence[int]
) -> tuple[slice, ...]:
    """Return where the pixels of a padded image are that one tap meets."""
    return tuple(
        slice(t * d, t * d + s * (size - 1) + 1, s)
        for t, d, s, size in zip(tap, dilations, strides, sizes, strict=True)
    )


def _true_entries(indices: NDArray[np.int64]) -> NDArray[np.bool_]:
    true_entry = np.ones(indices.shape, bool)
    true_entry[:, 1:] = indices[:, 1:] != indices[:, :-1]
    return true_entry


def _epilogue(
    y: NDArray[np.float64], residual: ArrayLike | None, clip_min: float, clip_max: float
) -> NDArray[np.float64]:
    if residual is not None:
        residual = np.asarray(residual, np.float64)
        if residual.shape != y.shape:
            raise ValueError(f"residual has shape {residual.shape}, the result has {y.shape}")
        y = y + residual
    y = np.where(y < clip_min, clip_min, y)
    return np.where(y > clip_max, clip_max, y)


def _check_shapes(
    x: NDArray[Any],
    values: NDArray[Any],
    indices: NDArray[np.int64],
    bias: NDArray[Any],
    rows: NDArray[np.int64],
    in_features: int,
    out_features: int,
) -> None:
    if x.ndim == 0 or x.shape[-1] != in_features:
        raise ValueError(f"x has shape {x.shape}, it must be [..., {in_features}]")
    _check_weights(values, indices, bias, rows, out_features)


def _check_weights(
    values: NDArray[Any],
    indices: NDArray[np.int64],
    bias: NDArray[Any],
    rows: NDArray[np.int64],
    out_features: int,
) -> None:
    if values.ndim != 2 or indices.shape != values.shape:
        raise ValueError(
            f"values has shape {values.shape} and indices {indices.shape}; "
            "both must be [active, fan_in]"
        )
    if rows.shape != values.shape[:1]:
        raise ValueError(f"rows has shape {rows.shape}, it must be {values.shape[:1]}")
    if bias.shape != (out_features,):
        raise ValueError(f"bias has shape {bias.shape}, it must be ({out_features},)")
