"""Whether the CUDA kernels can be used on this machine, and if not, why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .library import get_library_path


def takes_unproven_kernels() -> bool:
    """Return whether sessions take kernels that have not run on a GPU yet.

    The environment variable FANIN_CUDA_UNPROVEN says so: "on", or "off" (the default).

    Raises:
        ValueError: it says something else.

    """
    from . import _native

    return _native.cuda_unproven_requested()


@dataclass(frozen=True)
class CudaDeviceFacts:
    """What the driver says of a GPU; 0 where it does not say.

    Attributes:
        capability: ten times the major version of its compute capability, and the minor one.
        multiprocessors: how many it has.
        hertz: its highest clock.
        memory_clock_hertz: that of its memory.
        memory_bus_bits: width of the bus to it.
        l2_bytes: of its L2 cache.
        shared_bytes: of shared memory that a block can have.

    """

    capability: int
    multiprocessors: int
    hertz: float
    memory_clock_hertz: float
    memory_bus_bits: int
    l2_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class CudaStatus:
    """CUDA support of this machine and this build of fanin, without ONNX Runtime's provider.

    Attributes:
        library: the CUDA library, beside the op library or of the package fanin-cuda; None without.
        library_problem: why it cannot be used; empty if it can, or if only the driver is missing.
        toolkit: CUDA version of the build, such as ``(13, 0)``; None if it could not be loaded.
        driver: the CUDA version that the NVIDIA driver supports; None without a driver.
        devices: the GPUs with their compute capability, such as ``"NVIDIA H100 (9.0)"``.
        device_problem: why there is no device; empty if there is one.
        remedy: what to do about the first problem; empty if there is none.
        facts: of each of the devices.

    """

    library: Path | None
    library_problem: str
    toolkit: tuple[int, int] | None
    driver: tuple[int, int] | None
    devices: tuple[str, ...]
    device_problem: str
    remedy: str
    facts: tuple[CudaDeviceFacts, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether a CUDA session can run fanin's kernels."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Why a CUDA session cannot run fanin's kernels, in one sentence; empty if it can."""
        return self.library_problem or self.device_problem


def cuda_status() -> CudaStatus:
    """Look for the CUDA library, the NVIDIA driver and its devices; if missing, raise nothing.

    Initializes the driver in this process, after which CUDA does not work in a forked child.

    Raises:
        MissingBindingError: this installation has no binding for this Python.

    """
    from . import _native

    device_problem, driver_number, devices, facts = _native.cuda_devices()
    driver = _version(driver_number)
    try:
        folder = get_library_path().parent
    except FileNotFoundError as error:
        state, problem, toolkit_number = "broken", str(error), 0
        library = None
    else:
        state, problem, toolkit_number, path = _native.cuda_library(str(folder))
        library = Path(path).resolve() if path else None
    toolkit = _version(toolkit_number)

    remedy = ""
    if state == "not built":
        remedy = (
            "Install fanin-cuda of the same release beside fanin, or build fanin from source with "
            "CUDA 12.8 or newer: pip install . -C cmake.define.FANIN_CUDA=ON"
        )
    elif state == "broken":
        remedy = (
            "Install fanin again, and fanin-cuda of the same release if it is installed "
            "(pip install --force-reinstall)."
        )
    elif driver is None:
        problem, remedy = "", "Install NVIDIA's driver, and let containers see it (--gpus all)."
    elif toolkit is not None and driver[0] < toolkit[0]:
        problem = (
            f"the NVIDIA driver supports CUDA {driver[0]}.{driver[1]}, and the kernels are built "
            f"with CUDA {toolkit[0]}.{toolkit[1]}"
        )
        remedy = f"Install a driver for CUDA {toolkit[0]}."
    elif device_problem:
        remedy = "See what nvidia-smi says; CUDA_VISIBLE_DEVICES may hide the device."
    return CudaStatus(
        library,
        problem,
        toolkit,
        driver,
        tuple(devices),
        device_problem,
        remedy,
        tuple(map(_facts, facts)),
    )


def _facts(found: dict[str, int]) -> CudaDeviceFacts:
    return CudaDeviceFacts(
        capability=found["capability"],
        multiprocessors=found["multiprocessors"],
        hertz=1e3 * found["clock_khz"],
        memory_clock_hertz=1e3 * found["memory_clock_khz"],
        memory_bus_bits=found["memory_bus_bits"],
        l2_bytes=found["l2_bytes"],
        shared_bytes=found["shared_bytes"],
    )


def _version(number: int) -> tuple[int, int] | None:
    return (number // 1000, number % 1000 // 10) if number else None
