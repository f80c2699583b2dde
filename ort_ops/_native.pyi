"""The compiled kernels for NumPy arrays, for tests and kernel benchmarks.

Functions of more than three arguments take them by keyword, except x in ``run``.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

_T = TypeVar("_T", np.float32, np.float16)

class KernelRow:
    """One row of the dispatch table. A maximum of None means no limit."""

    @property
    def name(self) -> str: ...
    @property
    def isa(self) -> str: ...
    @property
    def weights(self) -> str:
        """Type of the packed weights. A float32 kernel also takes 16-bit values and widens them."""
    @property
    def compute(self) -> str:
        """What it multiplies in; a bfloat16 kernel rounds x, and serves only layers that do so."""
    @property
    def supported(self) -> bool:
        """Whether this CPU can run it."""
    @property
    def suits_cpu(self) -> bool:
        """Whether it may be chosen on this CPU; otherwise it runs only if forced by name."""
    @property
    def min_batch(self) -> int: ...
    @property
    def max_batch(self) -> int | None: ...
    @property
    def min_fan_in(self) -> int: ...
    @property
    def max_fan_in(self) -> int | None: ...
    @property
    def min_density(self) -> float:
        """Least fan-in / in_features."""
    @property
    def max_density(self) -> float: ...

class ConvKernelRow:
    """One row of the dispatch table of convolutions."""

    @property
    def name(self) -> str: ...
    @property
    def isa(self) -> str: ...
    @property
    def supported(self) -> bool:
        """Whether this CPU can run it."""
    @property
    def whole_depthwise(self) -> bool:
        """Whether it serves only depthwise convolutions without pruned positions."""
    @property
    def condition(self) -> str:
        """Further condition on the layer or the CPU, in words; empty for none."""
    @property
    def min_pixels(self) -> int:
        """Least pixels of an image; smaller images use a later row."""
    @property
    def min_group_outputs(self) -> int: ...
    @property
    def max_taps(self) -> int | None:
        """Most taps of the kernel window in one channel; None for no limit."""
    @property
    def min_density(self) -> float:
        """Least fan-in / in_features, where in_features is the size of the receptive field."""

class QuantizedKernelRow:
    """One row of the dispatch table of int8 layers."""

    @property
    def name(self) -> str: ...
    @property
    def isa(self) -> str: ...
    @property
    def supported(self) -> bool:
        """Whether this CPU can run it."""
    @property
    def suits_cpu(self) -> bool:
        """Whether it may be chosen on this CPU; otherwise it runs only if forced by name."""
    @property
    def fixed_batch(self) -> bool:
        """Whether it is chosen only for layers that serve a single batch."""
    @property
    def min_batch(self) -> int: ...
    @property
    def max_batch(self) -> int | None: ...
    @property
    def min_weights(self) -> int:
        """Least stored entries of the layer."""
    @property
    def min_density(self) -> float:
        """Least fan-in / in_features."""

class QuantizedConvKernelRow:
    """One row of the dispatch table of convolutions of int8 weights."""

    @property
    def name(self) -> str: ...
    @property
    def isa(self) -> str: ...
    @property
    def supported(self) -> bool:
        """Whether this CPU can run it."""

class CudaKernelRow:
    """One row of the dispatch table of CUDA kernels; builds without CUDA have it as well."""

    @property
    def name(self) -> str: ...
    @property
    def op(self) -> str:
        """``CondensedGemm`` or ``CondensedConv``."""
    @property
    def layout(self) -> str:
        """``expand``, ``delta``, ``stream``, ``panel`` or ``direct``."""
    @property
    def activations(self) -> str:
        """Type of X, residual and Y."""
    @property
    def min_batch(self) -> int: ...
    @property
    def max_batch(self) -> int | None: ...
    @property
    def shared_samples(self) -> int:
        """Samples of X that must fit into a block's shared memory; 0 for none.

        If fewer fit, the row serves only as many samples as fit, but at least one.
        """
    @property
    def proven(self) -> bool:
        """Whether it has run on a GPU; others are taken only with ``FANIN_CUDA_UNPROVEN=on``."""

class PackedInfo:
    """The packed layout for one range of batches, or of image sizes."""

    @property
    def kernel(self) -> str: ...
    @property
    def min_batch(self) -> int: ...
    @property
    def max_batch(self) -> int | None: ...
    @property
    def min_pixels(self) -> int:
        """Least pixels of an image, for convolutions."""
    @property
    def max_pixels(self) -> int | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def padding(self) -> float:
        """Stored lanes / true weights."""
    @property
    def remainder(self) -> float:
        """Share of the weights in the remainder, outside the vector layout."""
    @property
    def shared(self) -> bool:
        """Whether another live object had the same weights in this layout, so none was packed."""
    @property
    def seconds(self) -> float:
        """Time of packing or, if shared, of checking that the weights are equal."""

class WorkPlan:
    """How a run is shared between threads. Times are estimates in microseconds."""

    @property
    def begins(self) -> list[int]:
        """The first unit of work of each part, followed by the number of units.

        A unit is a block of rows for a tile of samples. Every thread has the same number of parts.
        """
    @property
    def threads(self) -> int:
        """The number of threads that finishes first, at most the number requested."""
    @property
    def tile_width(self) -> int:
        """Samples or pixels of a tile; 0 where units are no tiles."""
    @property
    def microseconds(self) -> float:
        """Time of all units on one thread."""
    @property
    def longest(self) -> float:
        """Time of the units of the thread with the most work."""
    @property
    def dispatch(self) -> float:
        """Time of starting and joining the threads."""
    @property
    def imbalance(self) -> float:
        """The longest time over the mean of all threads, at least 1."""

class PackedGemm:
    """A condensed layer, packed once.

    `isa` is a name of `supported_isas()` or "auto" (FANIN_ISA if set, otherwise the best); `kernel`
    forces one row of `kernel_table()` instead; `threads` is the number of threads for packing.
    `values` is float32, float16 or ml_dtypes' bfloat16. With `compute` "bfloat16", which takes such
    values only, x is rounded to bfloat16 before it is multiplied. Raises ValueError for arrays that
    break the format, with the place and the values.
    """

    def __init__(
        self,
        *,
        values: npt.NDArray[np.generic],
        indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        bias: npt.NDArray[np.float32],
        in_features: int,
        out_features: int,
        isa: str = "auto",
        min_batch: int = 1,
        max_batch: int | None = None,
        kernel: str | None = None,
        threads: int = 1,
        compute: str = "float32",
    ) -> None: ...
    def run(
        self,
        x: npt.NDArray[_T],
        *,
        residual: npt.NDArray[_T] | None = None,
        clip_min: float = ...,
        clip_max: float = ...,
        threads: int = 1,
        out: npt.NDArray[_T] | None = None,
    ) -> npt.NDArray[_T]:
        """y[batch, out_features] = clip(bias + sums + residual), for x[batch, in_features].

        Sums are float32 for both types of x; float16 results are rounded once, at the end. Returns
        ``out`` if given, otherwise a new array.
        """
    def info(self) -> list[PackedInfo]: ...
    def plan(self, batch: int, threads: int, dispatch: tuple[float, float] = ...) -> WorkPlan:
        """How threads would share a run; dispatch is its fixed and its per-thread cost in µs."""
    def holds(
        self,
        *,
        values: npt.NDArray[np.generic],
        indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        bias: npt.NDArray[np.float32],
    ) -> bool:
        """Whether its layouts contain exactly these arrays."""

class PackedConv:
    """A condensed convolution, packed once.

    Attributes are those of ONNX, for two axes: `pads` is top, left, bottom, right. The size of
    images may differ from run to run. The other arguments are those of PackedGemm. Raises
    ValueError for invalid arrays and attributes, with the place and the values.
    """

    def __init__(
        self,
        *,
        values: npt.NDArray[np.generic],
        indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        bias: npt.NDArray[np.float32],
        in_channels: int,
        out_channels: int,
        kernel_shape: tuple[int, int],
        strides: tuple[int, int] = (1, 1),
        pads: tuple[int, int, int, int] = (0, 0, 0, 0),
        dilations: tuple[int, int] = (1, 1),
        group: int = 1,
        isa: str = "auto",
        kernel: str | None = None,
        threads: int = 1,
    ) -> None: ...
    def run(
        self,
        x: npt.NDArray[np.float32],
        *,
        residual: npt.NDArray[np.float32] | None = None,
        clip_min: float = ...,
        clip_max: float = ...,
        gate_scale: float = 0.0,
        gate_shift: float = 1.0,
        threads: int = 1,
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """y[batch, out_channels, ...] = gate(clip(convolution + bias + residual)), x[N, C, H, W].

        Returns ``out`` if given, otherwise a new array.
        """
    def info(self) -> list[PackedInfo]: ...
    def plan(
        self, size: tuple[int, int, int], threads: int, dispatch: tuple[float, float] = ...
    ) -> WorkPlan:
        """As PackedGemm.plan; size is images, rows and columns of the input."""
    def holds(
        self,
        *,
        values: npt.NDArray[np.generic],
        indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        bias: npt.NDArray[np.float32],
    ) -> bool:
        """Whether its layout contains exactly these arrays."""

class PackedQuantizedGemm:
    """A condensed layer of int8 weights, packed once.

    `kernel` is a row of `quantized_kernel_table()`; the other arguments are those of PackedGemm.
    Raises ValueError for arrays that break the format, with the place and the values.
    """

    def __init__(
        self,
        *,
        values: npt.NDArray[np.int8],
        indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        in_features: int,
        out_features: int,
        isa: str = "auto",
        min_batch: int = 1,
        max_batch: int | None = None,
        kernel: str | None = None,
        threads: int = 1,
    ) -> None: ...
    def run(
        self,
        x: npt.NDArray[np.uint8] | npt.NDArray[np.int8],
        *,
        multipliers: npt.NDArray[np.float32],
        y_type: str,
        x_zero_point: int | npt.NDArray[np.int32] = 0,
        sample_multipliers: npt.NDArray[np.float32] | None = None,
        bias: npt.NDArray[np.int32] | None = None,
        float_bias: npt.NDArray[np.float32] | None = None,
        residual: npt.NDArray[np.generic] | None = None,
        residual_multiplier: float = 1.0,
        residual_zero_point: int = 0,
        clip_min: float = ...,
        clip_max: float = ...,
        y_zero_point: int = 0,
        threads: int = 1,
        out: npt.NDArray[np.generic] | None = None,
    ) -> npt.NDArray[np.generic]:
        """y[batch, out_features] of `y_type` (uint8, int8 or float32), for x[batch, in_features].

        value = (bias + sums) * (sample_multipliers * multipliers) + float_bias + residual, clipped;
        y is the value, or, for uint8 and int8, saturate(round_half_even(value) + y_zero_point),
        with (residual - residual_zero_point) * residual_multiplier in place of residual. Sums are
        those of values * (x - x_zero_point), one zero point for all samples or an array [batch].
        Every operation is rounded to float32 on its own. Returns ``out`` if given, otherwise a new
        array.
        """
    def info(self) -> list[PackedInfo]: ...
    def kernel(self, batch: int) -> str:
        """Name of the kernel that runs a batch."""
    def plan(self, batch: int, threads: int, dispatch: tuple[float, float] = ...) -> WorkPlan:
        """As PackedGemm.plan."""
    def holds(
        self,
        *,
        values: npt.NDArray[np.int8],
        indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
    ) -> bool:
        """Whether its layouts contain exactly these arrays."""

def run_plain_quantized(
    *,
    values: npt.NDArray[np.int8],
    indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
    in_features: int,
    out_features: int,
    x: npt.NDArray[np.uint8] | npt.NDArray[np.int8],
    multipliers: npt.NDArray[np.float32],
    y_type: str,
    x_zero_point: int | npt.NDArray[np.int32] = 0,
    sample_multipliers: npt.NDArray[np.float32] | None = None,
    bias: npt.NDArray[np.int32] | None = None,
    float_bias: npt.NDArray[np.float32] | None = None,
    residual: npt.NDArray[np.generic] | None = None,
    residual_multiplier: float = 1.0,
    residual_zero_point: int = 0,
    clip_min: float = ...,
    clip_max: float = ...,
    y_zero_point: int = 0,
) -> npt.NDArray[np.generic]:
    """Run the plain kernel of int8 layers, with the arguments of PackedQuantizedGemm."""

class PackedQuantizedConv:
    """A condensed convolution of int8 weights, packed once.

    `kernel` is a row of `quantized_conv_kernel_table()`; the other arguments are those of
    PackedConv. Raises ValueError for arrays that break the format, with the place and the values.
    """

    def __init__(
        self,
        *,
        values: npt.NDArray[np.int8],
        indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        in_channels: int,
        out_channels: int,
        kernel_shape: tuple[int, int],
        strides: tuple[int, int] = ...,
        pads: tuple[int, int, int, int] = ...,
        dilations: tuple[int, int] = ...,
        group: int = 1,
        isa: str = "auto",
        kernel: str | None = None,
        threads: int = 1,
    ) -> None: ...
    def run(
        self,
        x: npt.NDArray[np.uint8] | npt.NDArray[np.int8],
        *,
        multipliers: npt.NDArray[np.float32],
        y_type: str,
        x_zero_point: int = 0,
        bias: npt.NDArray[np.int32] | None = None,
        residual: npt.NDArray[np.generic] | None = None,
        residual_multiplier: float = 1.0,
        residual_zero_point: int = 0,
        clip_min: float = ...,
        clip_max: float = ...,
        y_zero_point: int = 0,
        channels_last: bool = False,
        threads: int = 1,
    ) -> npt.NDArray[np.generic]:
        """y[N, out_channels, H', W'] of `y_type` for x[N, in_channels, H, W].

        With `channels_last`, x, residual and y have their channels as the last axis. Pads read
        `x_zero_point`. The rest is that of PackedQuantizedGemm.run, for every output pixel.
        """
    def info(self) -> list[PackedInfo]: ...
    def plan(
        self, size: tuple[int, int, int], threads: int, dispatch: tuple[float, float] = ...
    ) -> WorkPlan:
        """As PackedConv.plan."""
    def holds(
        self,
        *,
        values: npt.NDArray[np.int8],
        indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
    ) -> bool:
        """Whether its layout contains exactly these arrays."""

def run_plain_quantized_conv(
    *,
    values: npt.NDArray[np.int8],
    indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
    in_channels: int,
    out_channels: int,
    kernel_shape: tuple[int, int],
    strides: tuple[int, int] = ...,
    pads: tuple[int, int, int, int] = ...,
    dilations: tuple[int, int] = ...,
    group: int = 1,
    x: npt.NDArray[np.uint8] | npt.NDArray[np.int8],
    multipliers: npt.NDArray[np.float32],
    y_type: str,
    x_zero_point: int = 0,
    bias: npt.NDArray[np.int32] | None = None,
    residual: npt.NDArray[np.generic] | None = None,
    residual_multiplier: float = 1.0,
    residual_zero_point: int = 0,
    clip_min: float = ...,
    clip_max: float = ...,
    y_zero_point: int = 0,
    channels_last: bool = False,
) -> npt.NDArray[np.generic]:
    """Run the plain kernel of convolutions, with the arguments of PackedQuantizedConv."""

def quantized_conv_kernel_table() -> list[QuantizedConvKernelRow]:
    """Return the rows of every kernel of convolutions of int8 weights, in order of preference."""

def quantized_kernel_table() -> list[QuantizedKernelRow]:
    """Return the rows of every kernel of int8 layers of this build, in order of preference."""

def run_plain_conv(
    *,
    values: npt.NDArray[np.generic],
    indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
    bias: npt.NDArray[np.float32],
    x: npt.NDArray[np.float32],
    residual: npt.NDArray[np.float32] | None = None,
    clip_min: float = ...,
    clip_max: float = ...,
    gate_scale: float = 0.0,
    gate_shift: float = 1.0,
    in_channels: int,
    out_channels: int,
    kernel_shape: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilations: tuple[int, int] = (1, 1),
    group: int = 1,
) -> npt.NDArray[np.float32]:
    """Run the plain kernel of convolutions: sums in float32 in the order of the entries."""

def conv_kernel_table() -> list[ConvKernelRow]:
    """Return the rows of every convolution kernel of this build, in order of preference."""

def run_plain(
    *,
    values: npt.NDArray[np.generic],
    indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
    bias: npt.NDArray[np.float32],
    in_features: int,
    out_features: int,
    x: npt.NDArray[_T],
    residual: npt.NDArray[_T] | None = None,
    clip_min: float = ...,
    clip_max: float = ...,
    compute: str = "float32",
) -> npt.NDArray[_T]:
    """Run the plain kernel: sums in float32 in the order of the stored entries."""

def content_hash(
    *,
    values: npt.NDArray[np.generic],
    indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
    bias: npt.NDArray[np.float32],
    in_features: int,
    out_features: int,
) -> int:
    """Return the hash that finds candidates for sharing, before their weights are compared."""

def kernel_table() -> list[KernelRow]:
    """Return the rows of every kernel of this build, in order of preference."""

def cuda_kernel_table() -> list[CudaKernelRow]:
    """Return the rows of every CUDA kernel, in order of preference."""

def cuda_unproven_requested() -> bool:
    """Return what FANIN_CUDA_UNPROVEN says; ValueError unless it is on, off or not set."""

def cuda_kernel_serving(
    *,
    activations: str,
    in_features: int,
    out_features: int,
    weights: int,
    batch: int,
    multiprocessors: int,
    shared_bytes: int,
    capability: int,
    unproven: bool,
) -> CudaKernelRow:
    """Return the row that serves a batch of a CondensedGemm on a GPU of these limits.

    ``weights`` are stored ones, numbers of the type of the activations; ``capability`` is 90 for
    9.0; ``unproven``: whether kernels that have not run on a GPU may be taken.
    """

def supported_isas() -> list[str]:
    """Return the instruction sets that this CPU has, "scalar" first."""

def cpu_quota(root: str = "") -> float | None:
    """Return the CPU quota of this process's control group in CPUs, or None if there is none.

    CPU limits of containers and Kubernetes set it. Reads ``/proc`` and ``/sys`` below ``root``.
    """

def select_isa() -> str:
    """Return FANIN_ISA if set, otherwise the best; ValueError if the CPU lacks it."""

def clock_hertz() -> float:
    """Measure the cycles per second of this core, by a chain of dependent additions."""

def peak_macs_per_second() -> float:
    """Measure the float32 multiply-adds per second of this core with its widest vectors."""

def read_once(buffer: npt.NDArray[np.generic]) -> int:
    """Read a contiguous buffer with the widest vectors; returns the OR of its contents."""

def cuda_library(folder: str) -> tuple[str, str, int, str]:
    """Load the CUDA library that belongs to the op library of a folder.

    Returns "loaded", "not built", "no driver" or "broken"; the problem as a sentence; the CUDA
    version of the library's build (13000 for 13.0; 0 unless it is loaded); and its path, empty if
    there is none.
    """

def cuda_devices() -> tuple[str, int, list[str], list[dict[str, int]]]:
    """Query the NVIDIA driver: the problem (empty if none), its CUDA version, names, facts.

    Facts of a device: capability (90 for 9.0), multiprocessors, clock_khz, memory_clock_khz,
    memory_bus_bits, l2_bytes, shared_bytes (of a block); 0 where the driver does not say.
    """
