"""Runs of the CUDA kernels that are emulated on the host, and random calls of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fanin.ort_ops import _cuda_emulation

from ._conv_layer import ConvLayer
from ._cuda_backends import kernel_of
from ._cuda_convs import arguments, images
from ._cuda_layers import TYPES, Layer, bits, poisoned
from ._random_convs import OPEN_GATE

# Shared memory that a block can have on compute capability 7.5, 8.6, 8.0 and 9.0.
SHARED_BYTES = [65536, 101376, 166912, 232448]


def run(
    layout: str,
    layer: Layer,
    x: np.ndarray,
    residual: np.ndarray | None = None,
    clip_min: float = -np.inf,
    clip_max: float = np.inf,
    **device: Any,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Run a linear layer; returns Y and the report of the launch."""
    y = poisoned(len(x), layer.out_features, x.dtype.name)
    report = _cuda_emulation.run(
        kernel=kernel_of(layout, x.dtype.name),
        **layer.arrays(),
        in_features=layer.in_features,
        x=bits(x),
        activations=x.dtype.name,
        residual=None if residual is None else bits(residual),
        y=bits(y),
        clip_min=clip_min,
        clip_max=clip_max,
        **device,
    )
    return y, report


def run_conv(
    layer: ConvLayer,
    x: np.ndarray,
    residual: np.ndarray | None = None,
    clip_min: float = -np.inf,
    clip_max: float = np.inf,
    gate: tuple[float, float] = OPEN_GATE,
    **more: Any,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Run a convolution; returns Y and the report of the launch."""
    y = np.full(layer.y_shape(x), np.nan, x.dtype)
    report = _cuda_emulation.run_conv(
        **arguments(layer),
        x=images(x),
        activations=x.dtype.name,
        residual=None if residual is None else images(residual),
        y=images(y),
        clip_min=clip_min,
        clip_max=clip_max,
        gate_scale=gate[0],
        gate_shift=gate[1],
        **more,
    )
    return y, report


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same numbers, one element past an aligned address."""
    room = np.empty(array.size + 64, array.dtype)
    start = (-room.ctypes.data // array.itemsize) % 16 + 1
    view = room[start : start + array.size].reshape(array.shape)
    view[...] = array
    return view


def assert_close(y: np.ndarray, want: np.ndarray, allowed: np.ndarray) -> None:
    assert (np.abs(y.astype(np.float64) - want) <= allowed).all()


def random_call(
    rng: np.random.Generator,
    layer: Layer,
    batch: int,
    kind: str,
    *,
    unaligned_share: float = 0.2,
    clusters: bool = True,
) -> tuple[np.ndarray, np.ndarray | None, tuple[float, float], dict[str, int]]:
    """X (perhaps unaligned), perhaps a residual and bounds, and a device, for ``run``."""
    x = rng.standard_normal((batch, layer.in_features)).astype(TYPES[kind])
    if rng.random() < unaligned_share:
        x = unaligned(x)
    residual = None
    if rng.random() < 0.5:
        residual = rng.standard_normal((batch, layer.out_features)).astype(TYPES[kind])
    clip = (-0.5, 1.5) if rng.random() < 0.4 else (-np.inf, np.inf)
    device = {
        "multiprocessors": int(rng.choice([1, 2, 5, 132])),
        "shared_bytes": int(rng.choice(SHARED_BYTES)),
    }
    if clusters:
        device["cluster"] = int(rng.choice([1, 2, 8]))
    return x, residual, clip, device
