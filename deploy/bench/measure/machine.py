"""The conditions of a measurement, which a reader needs to judge or to repeat it."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ...._base.cpu_name import cpu_fields, cpu_name
from ...cpus import available_cpus
from ...runtime import installed_distributions

# Variables that change thread counts or kernels of some engine.
_VARIABLES = (
    "FANIN_ISA",
    "FANIN_CUDA_UNPROVEN",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)
_FLAGS = ("avx", "fma", "f16c", "avx2", "avx512", "amx", "asimd", "sve")


def describe_machine() -> dict[str, Any]:
    """Describe the CPU, versions, kernels and current settings, without paths and user names.

    Values that the system does not provide are None.
    """
    info = cpu_fields()
    return {
        "command": _command(),
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "cpu_flags": [flag for flag in info.get("flags", "").split() if flag.startswith(_FLAGS)],
        "cpus": os.cpu_count(),
        "cpus_available": available_cpus(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load_average": load_average(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "fanin": metadata.version("fanin"),
        "onnxruntime": installed_distributions(),
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "kernels": _kernels(),
    }


def _command() -> str | None:
    """Return fanin's command line, with names of files only; None under another program."""
    program, *arguments = sys.argv or [""]
    if Path(program).name not in ("fanin", "__main__.py"):
        return None
    return shlex.join(["fanin", *(one.rpartition("/")[2] or one for one in arguments)])


def load_average() -> list[float] | None:
    """Return the load averages over 1, 5 and 15 minutes, which indicate noise."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def _kernels() -> dict[str, Any]:
    from ....ort_ops import _native, kernel_table

    return {
        "isas": list(_native.supported_isas()),
        "isa_in_force": _native.select_isa(),
        "table": [row.name for row in kernel_table() if row.supported],
    }


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
