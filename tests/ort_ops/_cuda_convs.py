"""Arguments of the CUDA bindings for a convolution, and the error bound of its float32 sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._conv_layer import ConvLayer
from ._cuda_layers import ROUNDING, TF32_PRODUCT, bits
from ._random_convs import OPEN_GATE, gated


def arguments(layer: ConvLayer) -> dict[str, Any]:
    """Arguments of the bindings; a convolution with one axis has height 1."""
    geometry = layer.geometry
    line = geometry.axes == 1

    def pair(sizes: tuple[int, ...], first: int) -> list[int]:
        return [first, *sizes] if line else list(sizes)

    pads = geometry.pads
    return {
        "values": bits(layer.values),
        "value_type": layer.values.dtype.name,
        "indices": layer.indices,
        "rows": layer.rows,
        "bias": layer.bias,
        "in_features": geometry.in_features,
        "in_channels": geometry.in_channels,
        "group": geometry.group,
        "kernel": pair(geometry.kernel_shape, 1),
        "strides": pair(geometry.strides, 1),
        "pads": [0, pads[0], 0, pads[1]] if line else list(pads),
        "dilations": pair(geometry.dilations, 1),
    }


def images(array: np.ndarray) -> np.ndarray:
    """Bits of ``[N, C, H, W]``; the height of ``[N, C, L]`` is 1."""
    shape = array.shape if array.ndim == 4 else (*array.shape[:2], 1, array.shape[2])
    return bits(array).reshape(shape)


def expect(
    layer: ConvLayer,
    x: np.ndarray,
    residual: np.ndarray | None = None,
    clip_min: float = -np.inf,
    clip_max: float = np.inf,
    gate: tuple[float, float] = OPEN_GATE,
    *,
    tensor_cores: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The result in float64, and the error bound of a float32 sum rounded to x's type.

    With ``tensor_cores`` that of their sums, and in float32 of TF32 operands: see Layer.expect.
    """
    want = layer.expected(x, residual, clip_min=clip_min, clip_max=clip_max)
    terms = (layer.values.shape[1] + 3) * (4 if tensor_cores else 1)
    relative_sum = terms * 2.0**-24
    if tensor_cores and x.dtype == np.float32:
        relative_sum += TF32_PRODUCT
    allowed = relative_sum * layer.magnitude(x, residual)
    want, allowed = gated(want, allowed, gate)
    if x.dtype != np.float32:
        relative, smallest = ROUNDING[x.dtype.name]
        allowed = allowed + relative * (np.abs(want) + allowed) + smallest
    return want, allowed
