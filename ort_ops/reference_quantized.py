"""The definition of the operators on 8-bit integers in NumPy, the reference for their kernels.

Sums are exact integers. What follows is computed in float32 with every operation rounded on its
own, so that each kernel gives these very bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .reference import _check_shapes, _check_weights, _pad_image, _seen_by_tap

# Products in memory at once, about 64 MB.
_BLOCK = 1 << 23

_Float32 = NDArray[np.float32]


def qlinear_condensed_gemm(
    x: ArrayLike,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike,
    values: ArrayLike,
    values_scale: ArrayLike,
    indices: ArrayLike,
    bias: ArrayLike,
    rows: ArrayLike,
    y_scale: ArrayLike,
    y_zero_point: ArrayLike,
    residual: ArrayLike | None = None,
    residual_scale: ArrayLike = 1.0,
    residual_zero_point: ArrayLike = 0,
    *,
    in_features: int,
    out_features: int,
    clip_min: float = -np.inf,
    clip_max: float = np.inf,
) -> NDArray[Any]:
    """Compute ``ai.fanin::QLinearCondensedGemm`` version 1.

    With ``r = rows[i]``, ``sum = bias[r] + sum_j values[i, j] * (x[..., indices[i, j]] -
    x_zero_point)`` in int32, and ``m[r] = (x_scale * values_scale[r]) / y_scale``::

        v = sum * m[r] + (residual - residual_zero_point) * (residual_scale / y_scale)
        y = saturate(round(clip(v, clip_min / y_scale, clip_max / y_scale)) + y_zero_point)

    Rounding is to nearest even. Outputs that ``rows`` does not list have the sum ``bias[r]``.

    Args:
        x: uint8 or int8 ``[..., in_features]``, at least one dimension.
        x_scale: the real value of a unit of ``x``.
        x_zero_point: the number in ``x`` that stands for 0.
        values: int8 ``[active, fan_in]``.
        values_scale: the real value of a unit of each output's weights, ``[out_features]`` or
            ``[1]``.
        indices: ``[active, fan_in]`` integers, increasing over the true entries of a row.
        bias: int32 ``[out_features]`` in units of ``x_scale * values_scale``; the addition wraps.
        rows: ``[active]`` integers, strictly increasing.
        y_scale: the real value of a unit of the result.
        y_zero_point: the number in the result that stands for 0; an array, or a NumPy scalar, of
            the result's type.
        residual: the shape of the result, or None.
        residual_scale: the real value of a unit of ``residual``.
        residual_zero_point: the number in ``residual`` that stands for 0.
        in_features: size of the last dimension of ``x``.
        out_features: size of the last dimension of the result.
        clip_min: lower bound of the result, as a real number.
        clip_max: upper bound of the result, as a real number.

    Returns:
        ``[..., out_features]``, uint8 or int8.

    Raises:
        ValueError: shapes that do not fit each other.

    """
    sums = _gemm_sums(x, x_zero_point, values, indices, rows, in_features, out_features)
    return _requantize(
        sums + _integers(bias, out_features),
        _multipliers(x_scale, values_scale) / _scalar(y_scale),
        _scalar(y_scale),
        np.asarray(y_zero_point),
        _residual_units(residual, sums.shape, residual_scale, residual_zero_point, y_scale),
        (clip_min, clip_max),
    )


def qlinear_condensed_conv(
    x: ArrayLike,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike,
    values: ArrayLike,
    values_scale: ArrayLike,
    indices: ArrayLike,
    bias: ArrayLike,
    rows: ArrayLike,
    y_scale: ArrayLike,
    y_zero_point: ArrayLike,
    residual: ArrayLike | None = None,
    residual_scale: ArrayLike = 1.0,
    residual_zero_point: ArrayLike = 0,
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
    channels_last: int = 0,
) -> NDArray[Any]:
    """Compute ``ai.fanin::QLinearCondensedConv`` version 1.

    The sums are those of ``CondensedConv`` over ``x - x_zero_point``, with 0 outside ``x``; the
    rest is that of :func:`qlinear_condensed_gemm`, where the arguments are described.

    Args:
        x: uint8 or int8 ``[N, in_channels, ...]`` with one or two spatial axes; with
            ``channels_last`` ``[N, ..., in_channels]``, as are ``residual`` and the result.
        x_scale: a number.
        x_zero_point: a number.
        values: int8 ``[active, fan_in]``.
        values_scale: ``[out_channels]`` or ``[1]``.
        indices: ``[active, fan_in]``, places in ``[in_channels / group, *kernel_shape]``.
        bias: int32 ``[out_channels]``.
        rows: ``[active]``.
        y_scale: a number.
        y_zero_point: a number of the result's type.
        residual: the shape of the result, or None.
        residual_scale: a number.
        residual_zero_point: a number.
        kernel_shape: ``(kh, kw)`` or ``(kl,)``.
        strides: one for each spatial axis.
        pads: the beginnings of all spatial axes, then their ends.
        dilations: one for each spatial axis.
        group: number of groups of channels.
        in_channels: channels of ``x``.
        out_channels: channels of the result.
        clip_min: lower bound of the result, as a real number.
        clip_max: upper bound of the result, as a real number.
        channels_last: 1 if channels are the last axis instead of the second.

    Returns:
        uint8 or int8, of the lengths that ONNX's Conv gives.

    Raises:
        ValueError: shapes that do not fit each other, or a kernel longer than the padded ``x``.

    """
    x = np.asarray(x).astype(np.int64) - _integer(x_zero_point)
    values = np.asarray(values).astype(np.int64)
    indices = np.asarray(indices).astype(np.int64)
    rows = np.asarray(rows).astype(np.int64)
    axes = len(kernel_shape)
    if channels_last and x.ndim > 1:
        x = np.moveaxis(x, -1, 1)
    if x.ndim != 2 + axes or x.shape[1] != in_channels:
        raise ValueError(f"x has {x.ndim} axes and shape {x.shape} with channels as the second")
    bias = _integers(bias, out_channels)
    _check_weights(values, indices, bias, rows, out_channels)
    window = (in_channels // group, *kernel_shape)

    padded, sizes = _pad_image(x, 0, kernel_shape, strides, pads, dilations)
    sums = np.zeros((len(x), out_channels, *sizes), np.int64)
    for i, row in enumerate(rows):
        first_channel = row // (out_channels // group) * window[0]
        for index, value in zip(indices[i], values[i], strict=True):
            channel, *tap = np.unravel_index(index, window)
            seen = _seen_by_tap(tap, strides, dilations, sizes)
            sums[:, row] += value * padded[(slice(None), first_channel + channel, *seen)]
    # Outputs last, as the scales and biases of the outputs broadcast.
    sums = np.moveaxis(sums, 1, -1)
    if residual is not None and not channels_last:
        residual = np.moveaxis(np.asarray(residual), 1, -1)
    y = _requantize(
        sums + bias,
        _multipliers(x_scale, values_scale) / _scalar(y_scale),
        _scalar(y_scale),
        np.asarray(y_zero_point),
        _residual_units(residual, sums.shape, residual_scale, residual_zero_point, y_scale),
        (clip_min, clip_max),
    )
    return y if channels_last else np.ascontiguousarray(np.moveaxis(y, -1, 1))


def condensed_gemm_integer_to_float(
    x: ArrayLike,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike,
    values: ArrayLike,
    values_scale: ArrayLike,
    indices: ArrayLike,
    bias: ArrayLike,
    rows: ArrayLike,
    residual: ArrayLike | None = None,
    *,
    in_features: int,
    out_features: int,
    clip_min: float = -np.inf,
    clip_max: float = np.inf,
) -> _Float32:
    """Compute ``ai.fanin::CondensedGemmIntegerToFloat`` version 1.

    With ``r = rows[i]`` and ``sum = sum_j values[i, j] * (x[..., indices[i, j]] - x_zero_point)``,
    ``y = clip(sum * (x_scale * values_scale[r]) + bias[r] + residual)``, from left to right.

    Args:
        x: uint8 or int8 ``[..., in_features]``, at least one dimension.
        x_scale: the real value of a unit of ``x``.
        x_zero_point: the number in ``x`` that stands for 0.
        values: int8 ``[active, fan_in]``.
        values_scale: ``[out_features]`` or ``[1]``.
        indices: ``[active, fan_in]`` integers, increasing over the true entries of a row.
        bias: float32 ``[out_features]``.
        rows: ``[active]`` integers, strictly increasing.
        residual: float32 of the shape of the result, or None.
        in_features: size of the last dimension of ``x``.
        out_features: size of the last dimension of the result.
        clip_min: lower bound of the result.
        clip_max: upper bound of the result.

    Returns:
        float32 ``[..., out_features]``.

    Raises:
        ValueError: shapes that do not fit each other.

    """
    sums = _gemm_sums(x, x_zero_point, values, indices, rows, in_features, out_features)
    return _dequantize(
        sums, _multipliers(x_scale, values_scale), bias, residual, (clip_min, clip_max)
    )


def dynamic_quantize_condensed_gemm(
    x: ArrayLike,
    values: ArrayLike,
    values_scale: ArrayLike,
    indices: ArrayLike,
    bias: ArrayLike,
    rows: ArrayLike,
    residual: ArrayLike | None = None,
    *,
    in_features: int,
    out_features: int,
    clip_min: float = -np.inf,
    clip_max: float = np.inf,
    per_row: int = 0,
) -> _Float32:
    """Compute ``ai.fanin::DynamicQuantizeCondensedGemm`` version 1.

    ``x`` is quantized to uint8 by :func:`dynamic_quantize`; then as
    :func:`condensed_gemm_integer_to_float`. Where ``x`` holds a NaN or an infinity, every output
    of that row (``per_row``) or of the whole tensor is NaN.

    Args:
        x: float32 ``[..., in_features]``, at least one dimension.
        values: int8 ``[active, fan_in]``.
        values_scale: ``[out_features]`` or ``[1]``.
        indices: ``[active, fan_in]`` integers, increasing over the true entries of a row.
        bias: float32 ``[out_features]``.
        rows: ``[active]`` integers, strictly increasing.
        residual: float32 of the shape of the result, or None.
        in_features: size of the last dimension of ``x``.
        out_features: size of the last dimension of the result.
        clip_min: lower bound of the result.
        clip_max: upper bound of the result.
        per_row: 1 for one scale for each row ``[..., :]`` of ``x``, 0 for one for all.

    Returns:
        float32 ``[..., out_features]``.

    Raises:
        ValueError: shapes that do not fit each other.

    """
    x = np.asarray(x, np.float32)
    quantized, scale, zero_point = dynamic_quantize(x, per_row)
    centered = quantized.astype(np.int64) - zero_point
    sums = _gemm_sums(centered, 0, values, indices, rows, in_features, out_features)
    with np.errstate(invalid="ignore", over="ignore"):
        return _dequantize(
            sums, scale * _vector(values_scale), bias, residual, (clip_min, clip_max)
        )


def dynamic_quantize(
    x: ArrayLike, per_row: int = 0
) -> tuple[NDArray[np.uint8], _Float32, NDArray[np.uint8]]:
    """Quantize as ONNX's DynamicQuantizeLinear, or each row ``[..., :]`` for itself.

    ``scale = (max(x, 0) - min(x, 0)) / 255``, 1 if that is 0; ``zero_point = round(saturate(
    -min(x, 0) / scale))``; ``quantized = saturate(round(x / scale) + zero_point)``, all rounded to
    nearest even.

    Args:
        x: float32, at least one dimension.
        per_row: 1 for one scale for each row, 0 for one for all.

    Returns:
        The quantized ``x``; scales and zero points ``[..., 1]`` for rows, otherwise ``[1]``. The
        scale is NaN for rows, or an ``x``, with a NaN or an infinity.

    """
    x = np.asarray(x, np.float32)
    rows = x if per_row else x.reshape(1, -1)
    low, high = (
        end(rows, axis=-1, keepdims=True, initial=np.float32(0)) for end in (np.min, np.max)
    )
    with np.errstate(invalid="ignore", over="ignore"):
        scale = (high - low) / np.float32(255)
        scale = np.where(scale == 0, np.float32(1), scale)
        finite = np.isfinite(rows).all(axis=-1, keepdims=True)
        scale = np.where(finite, scale, np.float32(np.nan))
        zero_point = np.rint(np.clip(-low / scale, 0, 255))
        quantized = np.clip(np.rint(rows / scale) + zero_point, 0, 255)
    # What stands for NaN does not matter: the scale makes NaN of it.
    zero_point, quantized = (
        np.nan_to_num(array).astype(np.uint8) for array in (zero_point, quantized)
    )
    if not per_row:
        scale, zero_point = scale.reshape(1), zero_point.reshape(1)
    return quantized.reshape(x.shape), scale, zero_point


def _gemm_sums(
    x: ArrayLike,
    zero_point: ArrayLike,
    values: ArrayLike,
    indices: ArrayLike,
    rows: ArrayLike,
    in_features: int,
    out_features: int,
) -> NDArray[np.int64]:
    """Return the exact sums ``[..., out_features]``; padding adds 0, as its values are 0."""
    x = np.asarray(x).astype(np.int64) - _integer(zero_point)
    values = np.asarray(values).astype(np.int64)
    indices = np.asarray(indices).astype(np.int64)
    rows = np.asarray(rows).astype(np.int64)
    _check_shapes(x, values, indices, np.zeros(out_features), rows, in_features, out_features)

    flat = x.reshape(-1, in_features)
    sums = np.zeros((len(flat), out_features), np.int64)
    active, fan_in = values.shape
    step = max(1, _BLOCK // max(1, len(flat) * fan_in))
    for start in range(0, active, step):
        block = slice(start, start + step)
        sums[:, rows[block]] = (values[block] * flat[:, indices[block]]).sum(axis=-1)
    return sums.reshape(*x.shape[:-1], out_features)


def _requantize(
    sums: NDArray[np.int64],
    multipliers: _Float32,
    y_scale: np.float32,
    y_zero_point: NDArray[Any],
    residual: _Float32 | None,
    clip: tuple[float, float],
) -> NDArray[Any]:
    """Return the 8-bit result of sums ``[..., outputs]``, which wrap to int32."""
    v = sums.astype(np.int32).astype(np.float32) * multipliers
    if residual is not None:
        v = v + residual
    with np.errstate(over="ignore"):
        low, high = (np.float32(bound) / y_scale for bound in clip)
    v = _clipped(v, low, high)
    limits = np.iinfo(y_zero_point.dtype)
    units = np.rint(v).astype(np.float64) + _integer(y_zero_point)
    return np.clip(units, limits.min, limits.max).astype(y_zero_point.dtype)


def _dequantize(
    sums: NDArray[np.int64],
    multipliers: _Float32,
    bias: ArrayLike,
    residual: ArrayLike | None,
    clip: tuple[float, float],
) -> _Float32:
    bias = np.asarray(bias, np.float32)
    if bias.shape != sums.shape[-1:]:
        raise ValueError(f"bias has shape {bias.shape}, it must be {sums.shape[-1:]}")
    y = sums.astype(np.float32) * multipliers + bias
    if residual is not None:
        residual = np.asarray(residual, np.float32)
        _check_residual(residual, sums.shape)
        y = y + residual
    return _clipped(y, np.float32(clip[0]), np.float32(clip[1]))


def _residual_units(
    residual: ArrayLike | None,
    shape: tuple[int, ...],
    scale: ArrayLike,
    zero_point: ArrayLike,
    y_scale: ArrayLike,
) -> _Float32 | None:
    """Return the residual in units of Y."""
    if residual is None:
        return None
    residual = np.asarray(residual).astype(np.int32) - _integer(zero_point)
    _check_residual(residual, shape)
    return residual.astype(np.float32) * (_scalar(scale) / _scalar(y_scale))


def _check_residual(residual: NDArray[Any], shape: tuple[int, ...]) -> None:
    if residual.shape != shape:
        raise ValueError(f"residual has shape {residual.shape}, the result has {shape}")


def _clipped(v: _Float32, low: np.float32, high: np.float32) -> _Float32:
    v = np.where(v < low, low, v)
    return np.where(v > high, high, v)


def _multipliers(x_scale: ArrayLike, values_scale: ArrayLike) -> _Float32:
    return _scalar(x_scale) * _vector(values_scale)


def _vector(values_scale: ArrayLike) -> _Float32:
    return np.asarray(values_scale, np.float32).reshape(-1)


def _scalar(number: ArrayLike) -> np.float32:
    return np.float32(np.asarray(number, np.float32).item())


def _integer(number: ArrayLike) -> int:
    return int(np.asarray(number).item())


def _integers(bias: ArrayLike, outputs: int) -> NDArray[np.int64]:
    bias = np.asarray(bias)
    if bias.shape != (outputs,):
        raise ValueError(f"bias has shape {bias.shape}, it must be ({outputs},)")
    return bias.astype(np.int64)
