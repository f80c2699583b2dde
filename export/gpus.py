"""What GPUs can do: those that are known, those that were measured, and the one in this machine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib import resources
from pathlib import Path

from .._base.local_paths import is_file
from .._base.names import near_matches
from .._base.user_folders import user_calibration_path
from ..ort_ops import CudaDeviceFacts
from .calibration_files import read_table, versioned, write_table

CUDA = "cuda"

DENSE = "dense"
"""The key of cuBLAS and cuDNN among the factors of a GPU."""

MEASURED = "h200"
"""The known GPU that layers were measured on."""

BFLOAT16_CAPABILITY = 80
"""Compute capability, times ten, from which on bfloat16 and TF32 are there."""

_SHIPPED = "gpus.json"

# Multiply-adds of tensor cores for each clock of a multiprocessor, float32 sums, by capability; the
# faster cards of a capability where they differ, since dense is rather to be predicted too fast.
_HALF_MACS = {75: 512, 80: 1024, 86: 512, 87: 1024, 89: 512, 90: 2048, 100: 4096, 120: 512}

_CUDA_CORE_MACS = 64  # float32 without TF32

# Two transfers for each clock of the memory; a share of that is reached.
_TRANSFERS = 2
_REACHED = 0.9


@dataclass(frozen=True)
class Gpu:
    """What a GPU can do.

    Attributes:
        name: its name.
        capability: ten times the major version of its compute capability, and the minor one.
        multiprocessors: how many it has.
        hertz: its highest clock.
        bytes_per_second: of its memory.
        l2_bytes: of its L2 cache.
        shared_bytes: of shared memory that a block can have.
        float32_macs: dense multiply-adds in a second of a float32 graph: in TF32 where it has that.
        half_macs: the same in float16, and in bfloat16 where it has that.
        factors: measured over predicted seconds of what was measured on it, by the name of a kernel
            family (:data:`.gpu_kernels.KERNELS`) or "dense".
        source: where the other numbers come from.

    """

    name: str
    capability: int
    multiprocessors: int
    hertz: float
    bytes_per_second: float
    l2_bytes: int
    shared_bytes: int
    float32_macs: float
    half_macs: float
    factors: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.factors, Mapping):
            raise ValueError("factors is no table")
        numbers = {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if entry.name not in ("name", "factors", "source")
        }
        for name, value in (numbers | dict(self.factors)).items():
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ValueError(f"{name} is {value!r}, it must be a positive number")

    @property
    def has_bfloat16(self) -> bool:
        """Whether it computes in bfloat16, and float32 graphs in TF32."""
        return self.capability >= BFLOAT16_CAPABILITY

    def factor(self, family: str) -> float:
        """Return what predicted seconds are multiplied by; 1 where nothing was measured."""
        return self.factors.get(family, 1.0)


@cache
def known_gpus() -> Mapping[str, Gpu]:
    """Read the GPUs that come with fanin, by short name; one was measured."""
    text = resources.files(__package__).joinpath(_SHIPPED).read_text()
    return {name: Gpu(**facts) for name, facts in json.loads(text).items()}


def queried_gpu(name: str, facts: CudaDeviceFacts) -> Gpu | None:
    """Make a GPU of what the driver says of a device; None where it does not say enough."""
    bandwidth = _REACHED * _TRANSFERS * facts.memory_clock_hertz * facts.memory_bus_bits / 8
    older = [macs for capability, macs in _HALF_MACS.items() if capability <= facts.capability]
    if not older:
        return None
    clocks = float(facts.multiprocessors) * facts.hertz
    half = _HALF_MACS.get(facts.capability, max(older)) * clocks
    tf32 = facts.capability >= BFLOAT16_CAPABILITY
    try:
        return Gpu(
            name=name,
            capability=facts.capability,
            multiprocessors=facts.multiprocessors,
            hertz=facts.hertz,
            bytes_per_second=bandwidth,
            l2_bytes=facts.l2_bytes,
            shared_bytes=facts.shared_bytes,
            float32_macs=half / 2 if tf32 else _CUDA_CORE_MACS * clocks,
            half_macs=half,
            source="the driver",
        )
    except ValueError:
        return None


def gpu_table_path(calibration: Path) -> Path:
    """Name the file of the GPU beside the calibration of the CPU."""
    return calibration.with_name(f"{calibration.stem}.cuda.json")


def save_gpu(gpu: Gpu, path: Path) -> None:
    """Write a GPU as JSON; raises OSError with what to do."""
    write_table(path, json.dumps(versioned(asdict(gpu)), indent=1))


def load_gpu(path: Path) -> Gpu:
    """Read a GPU; raises ExportError with the remedy."""
    return read_table(path, lambda fields: Gpu(**fields), " --device cuda")


def find_gpu(
    name: str, devices: Sequence[str], facts: Sequence[CudaDeviceFacts] = ()
) -> tuple[Gpu, str]:
    """Find the GPU that layers are chosen for.

    Args:
        name: short name of a known one; empty for the calibrated one, else the one in this machine,
            else the measured one.
        devices: names of the GPUs in this machine, as the driver gives them.
        facts: what it says of each.

    Returns:
        The GPU, and what the report says about it beside where times come from; often nothing.

    Raises:
        ExportError: the calibration cannot be read.
        ValueError: no GPU of that name is known.

    """
    known = known_gpus()
    if name:
        if name.lower() not in known:
            hint = near_matches(name.lower(), known)
            raise ValueError(
                f"no GPU {name!r} is known; there are {', '.join(known)}.{hint} On the machine "
                "that has it, --device cuda asks the driver, and fanin calibrate --device cuda "
                "measures it."
            )
        return known[name.lower()], ""
    calibration = user_calibration_path()
    path = None if calibration is None else gpu_table_path(calibration)
    if path is not None and is_file(path):
        return load_gpu(path), ""
    for position, device in enumerate(devices):
        words = set(device.lower().replace("-", " ").split())
        found = [short for short in known if set(short.split("-")) <= words]
        if found:
            return known[max(found, key=len)], ""
        queried = queried_gpu(device, facts[position]) if position < len(facts) else None
        if queried:
            return queried, "what it can do is what the driver says"
    gpu = known[MEASURED]
    if devices:
        return gpu, f"{devices[0]} is not known: run fanin calibrate --device cuda on it"
    return gpu, "this machine has no GPU; another one is named with --device cuda:NAME"


def device_of(device: str) -> tuple[str, str]:
    """Split a device into "cpu" or "cuda" and the short name of a GPU, which may be empty.

    Raises:
        ValueError: it is neither.

    """
    kind, _, name = device.partition(":")
    if device == "cpu" or (kind == CUDA and (name or not device.endswith(":"))):
        return kind, name
    raise ValueError(f"device is {device!r}, it must be cpu, cuda or cuda:NAME of a GPU")
