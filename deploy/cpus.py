"""The number of CPUs that this process may use."""

from __future__ import annotations

import os

MAX_THREADS = 1024
"""Most threads that a session may ask for; ONNX Runtime would start any number."""


def available_cpus() -> int:
    """Count the CPUs in the affinity mask (taskset, cgroup cpusets), at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
