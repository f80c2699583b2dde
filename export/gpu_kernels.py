"""How long a linear layer takes on a GPU, dense and by each kernel that the dispatch may take.

One row of :data:`KERNELS` is one family of kernels: its formula, where the coefficients come from,
and by how much its speed-up over dense has been predicted too high. Coefficients are fitted to one
H200: docs/results/gpu-h200.json (layers in its L2), docs/results/gpu-h200-large.json (layers that
are read from memory). Other GPUs follow by multiprocessors, clock and bandwidth.

Every layer is between two cases. *Hot*: the dense weight has under a quarter of the L2, both forms
are read from there. *Cold*: over half of the L2, both are read from memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .gpus import DENSE, MEASURED, Gpu, known_gpus

_TO_MICROSECONDS = 1e6

# Bytes of the L2 for each clock of a multiprocessor, by dense layers and by the stream kernel.
_DENSE_L2_RATE, _STREAM_L2_RATE = 48.0, 35.5
_HOT, _COLD = 0.25, 0.5  # shares of the L2

# Dense: a launch, and what a cold layer takes beside its bytes, in half types. From 33 rows on
# cuBLAS starts faster. From the second row on it leaves its kernel for vectors, which costs TF32
# 2.4 µs by 8 rows. Reading is faster than the copy that the bandwidth is measured by.
_DENSE_LAUNCH = 3.2
_COLD_START, _COLD_START_MANY, _MANY = 2.8, 1.5, 33
_READING = 1.127
_TF32_ROWS, _TF32_FULL = 2.4, 8

# Stream: a launch, a cold layer's outputs, its packed bytes, and for each further row its products
# and columns.
_STREAM_LAUNCH = 3.0
_COLD_OUTPUTS = 0.28e-3  # µs for each output
_COLD_PACKED = 1.235  # times the packed bytes over the bandwidth
_INDEX_BYTES = 2
_PRODUCTS = 0.265  # µs for a million entries
_PADDING = 0.132  # share of the dense weight that rows of few entries cost beside them
_STAGED = 0.193e-3  # µs for each column that is staged in shared memory
_OUTPUTS = 0.0233e-3  # µs for each output
_CROWDED, _CROWDED_SHARE = 1.84, 0.44
_SAMPLES = 8  # rows that are staged at once

# Expand, as a sketch of it was measured: a launch, packed bytes, and for each million entries of
# the dense weight its image, and what each sample of a tile takes.
_EXPAND_LAUNCH = 4.685
_EXPAND_BYTES = 4.1  # for each stored entry
_IMAGE = 0.1254
_TILE_ENTRIES, _TILE_ENDS = 0.00086, 0.00479e-3
_TILES = (8, 16, 32, 64, 128)
_EXPAND_SHARED, _SAMPLE_SHARED = 35_000, 750  # bytes of a block, and for each sample


@dataclass(frozen=True)
class Layer:
    """A linear layer and what it meets.

    Attributes:
        rows: of X.
        out_features: rows of the weight.
        in_features: columns of it.
        stored: entries that are stored, padding included; at least 1.
        dtype: of the activations: float32, float16 or bfloat16.

    """

    rows: int
    out_features: int
    in_features: int
    stored: int
    dtype: str

    @property
    def weights(self) -> int:
        """Entries of the dense weight."""
        return self.out_features * self.in_features

    @property
    def item_bytes(self) -> int:
        """Bytes of an activation, and of a weight in its type."""
        return 4 if self.dtype == "float32" else 2


@dataclass(frozen=True)
class KernelCost:
    """A family of kernels.

    Attributes:
        seconds: of a layer on a GPU, without the factor of a calibration.
        measured: whether the kernels themselves were measured.
        source: where the coefficients come from.
        error: factor by which a speed-up over dense may be predicted too high, on the GPU that the
            coefficients are from.

    """

    seconds: Callable[[Gpu, Layer], float]
    measured: bool
    source: str
    error: float

    def margin(self, gpu: Gpu, family: str) -> float:
        """Return how much faster than dense a layer must be predicted to be on a GPU.

        On a GPU that was not measured both forms are scaled, each with an error as large.
        """
        if family in gpu.factors:
            return _MEASURED_ERROR
        return self.error if _is_measured_card(gpu) else self.error * SCALED_ERROR

    def origin(self, gpu: Gpu, family: str) -> str:
        """Say where the seconds on a GPU come from."""
        if family in gpu.factors:
            return f"measured on {gpu.name}"
        scaled = f", scaled to {gpu.name} by multiprocessors, bandwidth and clock"
        return f"estimated from {self.source}" + ("" if _is_measured_card(gpu) else scaled)


def family_of(kernel: str) -> str:
    """Return the family of a kernel: "gemm-panel" of "f16-gemm-panel64-cuda"."""
    name = kernel.partition("-")[2].removesuffix("-cuda")
    return re.sub(r"-panel\d+$", "-panel", name)


def dense_seconds(gpu: Gpu, layer: Layer) -> float:
    """Predict cuBLAS, rather too fast than too slow; stored entries do not matter."""
    nbytes = layer.weights * layer.item_bytes
    cold = _coldness(gpu, layer)
    is_half = layer.dtype != "float32"
    computing = layer.rows * layer.weights / (gpu.half_macs if is_half else gpu.float32_macs)
    fixed, start = _DENSE_LAUNCH, 0.0
    if is_half:
        start = _COLD_START if layer.rows < _MANY else _COLD_START_MANY
    else:
        fixed += _TF32_ROWS * (min(layer.rows, _TF32_FULL) - 1) / (_TF32_FULL - 1)
    from_l2 = nbytes / (_DENSE_L2_RATE * gpu.multiprocessors * gpu.hertz) + computing
    reading = start / _TO_MICROSECONDS + nbytes / (_READING * gpu.bytes_per_second)
    seconds = fixed / _TO_MICROSECONDS + (1 - cold) * from_l2 + cold * max(reading, computing)
    return gpu.factor(DENSE) * seconds


def _stream(gpu: Gpu, layer: Layer) -> float:
    """Predict the kernel that gathers, fitted up to 16 rows."""
    cold, slower = _coldness(gpu, layer), _slower(gpu)
    packed = layer.stored * (layer.item_bytes + _INDEX_BYTES)
    from_l2 = packed / (_STREAM_L2_RATE * gpu.multiprocessors * gpu.hertz)
    reading = _COLD_PACKED * packed / gpu.bytes_per_second
    reading += slower * _COLD_OUTPUTS * layer.out_features / _TO_MICROSECONDS
    entries = (layer.stored + _PADDING * layer.weights) / 1e6
    row = _PRODUCTS * entries + _STAGED * layer.in_features + _OUTPUTS * layer.out_features
    staged = min(layer.rows, _SAMPLES) * layer.in_features * layer.item_bytes
    if staged > _CROWDED_SHARE * gpu.shared_bytes:
        row *= _CROWDED  # then one block fills a multiprocessor
    fixed = _STREAM_LAUNCH + (layer.rows - 1) * row * slower
    return fixed / _TO_MICROSECONDS + (1 - cold) * from_l2 + cold * reading


def _panel(gpu: Gpu, layer: Layer) -> float:
    """Predict the kernel for batches, never faster than dense.

    On tensor cores no layer was, but for a few that cuBLAS is slow at.
    """
    return max(_stream(gpu, layer), dense_seconds(gpu, layer))


def _expand(gpu: Gpu, layer: Layer) -> float:
    """Predict the kernel for tensor cores as a sketch with other instructions was measured."""
    fitting = [
        tile for tile in _TILES if _EXPAND_SHARED + _SAMPLE_SHARED * tile <= gpu.shared_bytes
    ]
    tile = min((t for t in fitting if t >= layer.rows), default=max(fitting, default=_TILES[0]))
    passes = math.ceil(layer.rows / tile)
    weights = layer.weights / 1e6
    ends = _TILE_ENDS * (layer.in_features + layer.out_features)
    computing = _IMAGE * weights + tile * (_TILE_ENTRIES * weights + ends)
    reading = _EXPAND_BYTES * layer.stored / gpu.bytes_per_second
    fixed = _EXPAND_LAUNCH + passes * computing * _slower(gpu)
    return fixed / _TO_MICROSECONDS + passes * reading


def _coldness(gpu: Gpu, layer: Layer) -> float:
    share = layer.weights * layer.item_bytes / gpu.l2_bytes
    return min(1.0, max(0.0, (share - _HOT) / (_COLD - _HOT)))


def _slower(gpu: Gpu) -> float:
    """Return how many times longer than the measured GPU one takes to compute."""
    measured = known_gpus()[MEASURED]
    return measured.multiprocessors * measured.hertz / (gpu.multiprocessors * gpu.hertz)


def _is_measured_card(gpu: Gpu) -> bool:
    return gpu == known_gpus()[MEASURED]


_MEASURED_ERROR = 1.05
"""What the fit to the measured layers errs by: 1.042 for one of 66 layers, less for all others."""

SCALED_ERROR = 1.25
"""What another GPU may add: without one of the five measured shapes, the fit was up to 1.24 times
too fast on that shape, and no other GPU was measured."""

_SKETCH_ERROR = 1.75
"""The fit to the sketch errs by 1.09, and with the kernel's own instructions the sketch took up to
1.6 times as long."""

_DELTA_ERROR = 1.5
"""Counted as the stream kernel, of whose bytes it reads fewer; nothing is known of its speed."""

_H200 = "measurements on NVIDIA H200"

KERNELS: Mapping[str, KernelCost] = {
    "gemm-stream": KernelCost(_stream, True, _H200, _MEASURED_ERROR),
    "gemm-delta": KernelCost(_stream, False, f"the stream kernel's {_H200}", _DELTA_ERROR),
    "gemm-panel": KernelCost(_panel, True, _H200, _MEASURED_ERROR),
    "gemm-expand": KernelCost(_expand, False, f"a sketch's {_H200}", _SKETCH_ERROR),
}
"""By the name of a family. A kernel without a row is never counted on: its layers stay dense."""
