"""How long a layer takes on a GPU in each form: a function of the GPU, the layer, rows and type.

The coefficients are fitted to what was measured on one H200 (docs/results/gpu-h200.json, and layers
that do not fit into its L2): 66 layers of up to 16 rows, root mean square error 9 %, largest 32 %.
Other GPUs follow by their multiprocessors, bandwidth and clock, which is an estimate. Dense
float32 is TF32, which ONNX Runtime's CUDA provider computes in by default.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path

from .._base.names import near_matches
from .._base.user_folders import user_calibration_path
from ..ort_ops.format.conv_geometry import ConvGeometry
from .calibration_files import read_table, versioned, write_table

CUDA = "cuda"

MOST_ROWS = 16
"""Rows of X up to which the kernel runs that reads each weight once; above, tensor cores win."""

_SHIPPED = "gpus.json"
_MEASURED = "h200"

_TO_MICROSECONDS = 1e6

# Dense: a launch; from the second row on cuBLAS leaves its kernel for vectors, which costs TF32
# 2.4 µs by batch 8. Weights of under a quarter of the L2 are read three times as fast.
_DENSE_LAUNCH = 3.2
_TF32_ROWS, _TF32_FULL = 2.4, 8
_L2_SHARE, _L2_SPEED = 0.25, 3.0

# Condensed: a launch, the packed weights, and for each further row its products and columns.
_LAUNCH = 2.98
_PACKED = 1.68  # times the packed bytes over the bandwidth: 60 % of it is reached
_PACKED_L2 = 0.2
_INDEX_BYTES = 2
_PRODUCTS = 0.311  # µs for a million entries
_PADDING = 0.12  # share of the dense weight that rows of few entries cost beside them
_STAGED = 0.153e-3  # µs for each column that is staged in shared memory
_OUTPUTS = 0.0232e-3  # µs for each output
_CROWDED, _CROWDED_SHARE = 1.8, 0.44
_SAMPLES = 8  # rows that are staged at once

_CONV_RATIO = {1: 0.9, 8: 0.26, 32: 0.18}
"""Speed of condensed convolutions as a share of cuDNN's, by images: ResNet-50, 90 % sparse."""


@dataclass(frozen=True)
class Gpu:
    """What a GPU can do.

    Attributes:
        name: its name.
        multiprocessors: how many it has.
        hertz: its highest clock.
        bytes_per_second: of its memory.
        l2_bytes: of its L2 cache.
        shared_bytes: of shared memory that a block can have.
        tf32_macs: dense multiply-adds in a second in TF32.
        half_macs: the same in float16 and bfloat16.
        measured: whether the times of layers were measured on it.
        dense_factor: what dense times are multiplied by, from a calibration.
        condensed_factor: the same for condensed times.

    """

    name: str
    multiprocessors: int
    hertz: float
    bytes_per_second: float
    l2_bytes: int
    shared_bytes: int
    tf32_macs: float
    half_macs: float
    measured: bool = False
    dense_factor: float = 1.0
    condensed_factor: float = 1.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            number = entry.name not in ("name", "measured")
            if number and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ValueError(f"{entry.name} is {value!r}, it must be a positive number")


@cache
def known_gpus() -> Mapping[str, Gpu]:
    """Read the GPUs that come with fanin, by short name; one was measured."""
    text = resources.files(__package__).joinpath(_SHIPPED).read_text()
    return {name: Gpu(**facts) for name, facts in json.loads(text).items()}


def dense_seconds(gpu: Gpu, rows: int, out_features: int, in_features: int, dtype: str) -> float:
    """Predict cuBLAS, rather too fast than too slow."""
    weights = out_features * in_features
    nbytes = weights * _bytes(dtype)
    is_half = dtype != "float32"
    reading = nbytes / gpu.bytes_per_second
    if nbytes < _L2_SHARE * gpu.l2_bytes:
        reading /= _L2_SPEED
    computing = rows * weights / (gpu.half_macs if is_half else gpu.tf32_macs)
    fixed = _DENSE_LAUNCH
    if not is_half:
        fixed += _TF32_ROWS * (min(rows, _TF32_FULL) - 1) / (_TF32_FULL - 1)
    return gpu.dense_factor * (fixed / _TO_MICROSECONDS + reading + computing)


def condensed_seconds(
    gpu: Gpu, rows: int, out_features: int, in_features: int, stored: int, dtype: str
) -> float:
    """Predict the kernel that gathers; it is fitted up to :data:`MOST_ROWS` rows."""
    nbytes = _bytes(dtype)
    packed = stored * (nbytes + _INDEX_BYTES) * _PACKED / gpu.bytes_per_second
    if out_features * in_features * nbytes < _L2_SHARE * gpu.l2_bytes:
        packed *= _PACKED_L2
    entries = (stored + _PADDING * out_features * in_features) / 1e6
    row = _PRODUCTS * entries + _STAGED * in_features
    if min(rows, _SAMPLES) * in_features * nbytes > _CROWDED_SHARE * gpu.shared_bytes:
        row *= _CROWDED  # then one block fills a multiprocessor
    row += _OUTPUTS * out_features
    measured = known_gpus()[_MEASURED]
    slower = measured.multiprocessors * measured.hertz / (gpu.multiprocessors * gpu.hertz)
    fixed = _LAUNCH + (rows - 1) * row * slower
    return gpu.condensed_factor * (fixed / _TO_MICROSECONDS + packed)


def _bytes(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def gpu_table_path(calibration: Path) -> Path:
    """Name the file of the GPU beside the calibration of the CPU."""
    return calibration.with_name(f"{calibration.stem}.cuda.json")


def save_gpu(gpu: Gpu, path: Path) -> None:
    """Write a GPU as JSON; raises OSError with what to do."""
    write_table(path, json.dumps(versioned(asdict(gpu)), indent=1))


def load_gpu(path: Path) -> Gpu:
    """Read a GPU; raises ExportError with the remedy."""
    return read_table(path, lambda fields: Gpu(**fields), " --device cuda")


def find_gpu(name: str, devices: Sequence[str]) -> tuple[Gpu, str]:
    """Find the GPU that layers are chosen for.

    Args:
        name: short name of a known one; empty for the calibrated one, else the one in this machine,
            else the measured one.
        devices: names of the GPUs in this machine, as the driver gives them.

    Returns:
        The GPU, and where its times come from, as "measured on NVIDIA H200".

    Raises:
        ExportError: the calibration cannot be read.
        ValueError: no GPU of that name is known.

    """
    known = known_gpus()
    if name:
        if name.lower() not in known:
            hint = near_matches(name.lower(), known)
            raise ValueError(f"no GPU {name!r} is known; there are {', '.join(known)}.{hint}")
        return known[name.lower()], _origin(known[name.lower()])
    calibration = user_calibration_path()
    path = None if calibration is None else gpu_table_path(calibration)
    if path is not None and path.is_file():
        gpu = load_gpu(path)
        return gpu, f"measured on {gpu.name} by fanin calibrate"
    for device in devices:
        words = set(device.lower().replace("-", " ").split())
        found = next((gpu for short, gpu in known.items() if set(short.split("-")) <= words), None)
        if found:
            return found, _origin(found)
    gpu = known[_MEASURED]
    if devices:
        why = f"{devices[0]} is not known: run fanin calibrate --device cuda on it"
    else:
        why = "this machine has no GPU; another one is named with --device cuda:NAME"
    return gpu, f"{_origin(gpu)}; {why}"


def _origin(gpu: Gpu) -> str:
    if gpu.measured:
        return f"measured on {gpu.name}"
    return (
        f"estimated for {gpu.name} from those measured on "
        f"{known_gpus()[_MEASURED].name}, by multiprocessors, bandwidth and clock"
    )


@dataclass(frozen=True)
class GpuConvCosts:
    """Convolutions: cuDNN is faster at everything that was measured."""

    gpu: Gpu
    dtype: str
    reorder: float = 0.0

    def dense(self, geometry: ConvGeometry, batch: int, sizes: Sequence[int]) -> float:
        """Predict cuDNN."""
        return self._dense(geometry, batch, sizes, geometry.out_channels)

    def condensed(
        self,
        geometry: ConvGeometry,
        batch: int,
        sizes: Sequence[int],
        stored: int,  # noqa: ARG002, as of other machines
    ) -> float:
        """Predict the direct kernel by the share of cuDNN's speed that it had in ResNet-50."""
        ratio = next(r for most, r in reversed(_CONV_RATIO.items()) if batch >= most)
        return self.dense(geometry, batch, sizes) / ratio

    def structured(
        self, geometry: ConvGeometry, batch: int, sizes: Sequence[int], active: int
    ) -> float:
        """Predict the active filters, and a launch that puts their channels in their places."""
        launch = self.gpu.dense_factor * _DENSE_LAUNCH / _TO_MICROSECONDS
        return self._dense(geometry, batch, sizes, max(active, 1)) + launch

    def _dense(
        self, geometry: ConvGeometry, batch: int, sizes: Sequence[int], channels: int
    ) -> float:
        pixels = math.prod(geometry.output_sizes(tuple(sizes)))
        return dense_seconds(self.gpu, batch * pixels, channels, geometry.in_features, self.dtype)


@dataclass(frozen=True)
class GpuCostModel:
    """Predicted seconds of a layer on a GPU, under the names that a CostModel has.

    Attributes:
        gpu: whose times they are.
        dtype: what the graph computes in: float32 (TF32), float16 or bfloat16.
        source: where the times come from.
        convolutions: those of convolutions.

    """

    gpu: Gpu
    dtype: str
    source: str
    convolutions: GpuConvCosts = field(init=False)

    threads = 1
    measured_threads = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "convolutions", GpuConvCosts(self.gpu, self.dtype))

    @property
    def origin(self) -> str:
        """Say in a few words where the times come from."""
        return f"times in {'TF32' if self.dtype == 'float32' else self.dtype} {self.source}"

    @property
    def machine(self) -> str:
        """What reports name as what decided."""
        return self.origin

    @property
    def min_gain(self) -> float:
        """How much faster than dense a form must be predicted to be; estimates need more."""
        return 1.1 if self.gpu.measured else 1.25

    def dense(self, batch: int, out_features: int, in_features: int) -> float:
        """Predict a dense Gemm."""
        return dense_seconds(self.gpu, batch, out_features, in_features, self.dtype)

    def condensed(self, batch: int, out_features: int, in_features: int, stored: int) -> float:
        """Predict a condensed node; over :data:`MOST_ROWS` rows none is as fast as dense."""
        size = (batch, out_features, in_features)
        seconds = condensed_seconds(self.gpu, *size, max(stored, 1), self.dtype)
        return seconds if batch <= MOST_ROWS else max(seconds, self.dense(*size))

    def structured(self, batch: int, out_features: int, in_features: int, active: int) -> float:
        """Predict a dense Gemm of the active rows, and a launch that puts them in their places."""
        gemm = self.dense(batch, max(active, 1), in_features)
        if active == out_features:
            return gemm
        moved = 2 * batch * out_features * _bytes(self.dtype) / self.gpu.bytes_per_second
        return gemm + self.gpu.dense_factor * _DENSE_LAUNCH / _TO_MICROSECONDS + moved

    def in_precision(self, dtype: str) -> GpuCostModel:
        """Return the costs of a graph that computes in another type."""
        return replace(self, dtype=dtype)


def device_of(device: str) -> tuple[str, str]:
    """Split a device into "cpu" or "cuda" and the short name of a GPU, which may be empty.

    Raises:
        ValueError: it is neither.

    """
    kind, _, name = device.partition(":")
    if device == "cpu" or (kind == CUDA and (name or not device.endswith(":"))):
        return kind, name
    raise ValueError(f"device is {device!r}, it must be cpu, cuda or cuda:NAME of a GPU")
