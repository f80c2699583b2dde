"""The compiled kernels for NumPy arrays: what the tests and the kernel benches call.

What takes more than three arguments takes them by name, but for the x of a run.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

_T = TypeVar("_T", np.float32, np.float16)

class KernelRow:
    """One row of the dispatch table. None as a maximum stands for no limit."""

    @property
    def name(self) -> str: ...
    @property
    def isa(self) -> str: ...
    @property
    def weights(self) -> str:
        """Type of the packed weights. A kernel of float32 takes 16-bit values, too: widened."""
    @property
    def supported(self) -> bool:
        """Whether this CPU can run it."""
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
        """Of fan-in / in_features."""
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
        """Whether it takes depthwise convolutions only, with a weight at each place."""
    @property
    def condition(self) -> str:
        """What else a layer has to be for it to be chosen, in words; empty for nothing."""
    @property
    def min_pixels(self) -> int:
        """Of an image: smaller ones take a later row."""
    @property
    def min_group_outputs(self) -> int: ...
    @property
    def max_taps(self) -> int | None:
        """Of the window in one channel; None for no limit."""
    @property
    def min_density(self) -> float:
        """Of fan-in / in_features, the window of a group."""

class CudaKernelRow:
    """One row of the dispatch table of the CUDA kernels, which a build without CUDA has, too."""

    @property
    def name(self) -> str: ...
    @property
    def op(self) -> str:
        """``CondensedGemm`` or ``CondensedConv``."""
    @property
    def layout(self) -> str:
        """``stream``, ``panel`` or ``direct``."""
    @property
    def activations(self) -> str:
        """Type of X, residual and Y."""
    @property
    def min_batch(self) -> int: ...
    @property
    def max_batch(self) -> int | None: ...
    @property
    def shared_samples(self) -> int:
        """Samples of X that must fit the shared memory of a block; 0 for none.

        Where fewer fit, the row serves only as many samples as fit, and at least one.
        """

class PackedInfo:
    """What packing did for one range of batches, or for images of one range of sizes."""

    @property
    def kernel(self) -> str: ...
    @property
    def min_batch(self) -> int: ...
    @property
    def max_batch(self) -> int | None: ...
    @property
    def min_pixels(self) -> int:
        """Of an image of a convolution."""
    @property
    def max_pixels(self) -> int | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def padding(self) -> float:
        """Stored lanes / true weights."""
    @property
    def remainder(self) -> float:
        """Share of the weights outside the vector layout."""
    @property
    def shared(self) -> bool:
        """Whether a living PackedGemm held the same weights in this layout, so none was packed."""
    @property
    def seconds(self) -> float:
        """What packing took; where it is shared, making sure that the weights are the same."""

class WorkPlan:
    """How a run is shared between threads. Times are estimates in microseconds."""

    @property
    def begins(self) -> list[int]:
        """The first unit of work of each part, and the number of units at the end.

        A unit is a block of rows for a tile of samples. Each thread has as many parts in a row.
        """
    @property
    def threads(self) -> int:
        """As many as end first, at most those that were asked for."""
    @property
    def tile_width(self) -> int:
        """Samples or pixels of a tile; 0 where units are no tiles."""
    @property
    def microseconds(self) -> float:
        """Of all units on one thread."""
    @property
    def longest(self) -> float:
        """Of the units of the thread that has most to do."""
    @property
    def dispatch(self) -> float:
        """Of starting and joining the threads."""
    @property
    def imbalance(self) -> float:
        """The longest time over the mean of the threads, at least 1."""

class PackedGemm:
    """A condensed layer, packed once.

    `isa` is a name of `supported_isas()` or "auto" (what FANIN_ISA asks for, else the best);
    `kernel` forces one row of `kernel_table()` instead; `threads` pack it. `values` is float32,
    float16 or the bfloat16 of ml_dtypes. Raises ValueError for arrays that break the format, with
    the place and the values.
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

        Sums are float32 in either type of x; float16 results are rounded once, at the end.
        Returns ``out`` when it is given, else a new array.
        """
    def info(self) -> list[PackedInfo]: ...
    def plan(self, batch: int, threads: int, dispatch: tuple[float, float] = ...) -> WorkPlan:
        """How a run of a batch would be shared; a dispatch costs a fixed time, and one a thread."""
    def holds(
        self,
        *,
        values: npt.NDArray[np.generic],
        indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        bias: npt.NDArray[np.float32],
    ) -> bool:
        """Whether it was packed from these arrays: what its layouts hold is compared with them."""

class PackedConv:
    """A condensed convolution, packed once.

    Attributes are those of ONNX, 2-d: `pads` is top, left, bottom, right. Images of every size run.
    The other arguments are those of PackedGemm. Raises ValueError for arrays and attributes that
    are unsound, with the place and the values.
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

        Returns ``out`` when it is given, else a new array.
        """
    def info(self) -> list[PackedInfo]: ...
    def plan(
        self, size: tuple[int, int, int], threads: int, dispatch: tuple[float, float] = ...
    ) -> WorkPlan:
        """As PackedGemm.plan, for inputs of so many images, rows and columns."""
    def holds(
        self,
        *,
        values: npt.NDArray[np.generic],
        indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        bias: npt.NDArray[np.float32],
    ) -> bool:
        """Whether it was packed from these arrays: what its layout holds is compared with them."""

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
    """Run the scalar oracle of convolutions: sums in float32 in the order of the entries."""

def conv_kernel_table() -> list[ConvKernelRow]:
    """Return the rows for every convolution kernel of this build, the preferred first."""

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
) -> npt.NDArray[_T]:
    """Run the scalar oracle: sums in float32 in the order of the stored entries."""

def content_hash(
    *,
    values: npt.NDArray[np.generic],
    indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
    bias: npt.NDArray[np.float32],
    in_features: int,
    out_features: int,
) -> int:
    """Return the hash under which packed copies are looked up before their weights are compared."""

def kernel_table() -> list[KernelRow]:
    """Return every kernel of this build, the preferred first."""

def cuda_kernel_table() -> list[CudaKernelRow]:
    """Return every CUDA kernel, the preferred first."""

def supported_isas() -> list[str]:
    """Return the instruction sets that this CPU has, "scalar" first."""

def cpu_quota(root: str = "") -> float | None:
    """Return the CPUs worth of time that this process's control group grants it, or None.

    What a container's or Kubernetes' CPU limit becomes. Reads ``/proc`` and ``/sys`` below root.
    """

def select_isa() -> str:
    """Return what FANIN_ISA asks for, else the best; ValueError for one that the CPU lacks."""

def clock_hertz() -> float:
    """Measure the cycles per second of this core, by a chain of dependent additions."""

def peak_macs_per_second() -> float:
    """Measure the float32 multiply-adds per second of this core with its widest vectors."""

def read_once(buffer: npt.NDArray[np.generic]) -> int:
    """Read all of a contiguous buffer with the widest vectors; returns the OR of what it holds."""

def cuda_library(folder: str) -> tuple[str, str, int]:
    """Load the CUDA library of a folder.

    Returns "loaded", "not built", "no driver" or "broken", the problem as a sentence, and the CUDA
    version that the library was built with (13000 for 13.0; 0 unless it is loaded).
    """

def cuda_devices() -> tuple[str, int, list[str]]:
    """Ask the NVIDIA driver: the problem (empty if none), its CUDA version, the devices' names."""
