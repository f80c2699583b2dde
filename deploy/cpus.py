"""The CPUs that this process may use: how many, and how much of their time."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

MAX_THREADS = 1024
"""Most threads that a session may ask for; ONNX Runtime would start any number."""

ROOT = Path("/")
"""Where ``/proc`` and ``/sys`` are."""


def available_cpus() -> int:
    """Count the CPUs in the affinity mask (taskset, cgroup cpusets), at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def default_threads(root: Path = ROOT) -> int:
    """Count the threads that use all CPU time that this process is granted.

    One for each CPU of the affinity mask or, where a quota grants less, for each whole CPU of the
    quota; at least 1.
    """
    quota = cpu_quota(root)
    cpus = available_cpus()
    return cpus if quota is None else max(1, min(cpus, int(quota)))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Read the CPU quota of this process's control group (CFS bandwidth), as a number of CPUs.

    What a container's ``--cpus`` and a Kubernetes CPU limit become: ``cpu.max`` of version 2,
    ``cpu.cfs_quota_us`` over ``cpu.cfs_period_us`` of version 1. The kernel stops the threads of a
    group that has used up its quota until the next period, typically 100 ms.

    Args:
        root: Folder that holds ``proc`` and ``sys``.

    Returns:
        The smallest quota of the group and those around it, in CPUs (1.5 is one and a half CPUs'
        worth of time); None if there is none, or nothing can be read.

    """
    found = [
        quota
        for folder, is_v2 in _group_folders(root)
        if (quota := _quota_v2(folder) if is_v2 else _quota_v1(folder)) is not None
    ]
    return min(found, default=None)


def _group_folders(root: Path) -> Iterator[tuple[str, bool]]:
    """Yield the folders of the process's group and those around it; true for version 2."""
    mount = f"{root}/sys/fs/cgroup"
    # "0::/user.slice/..." of version 2, "4:cpu,cpuacct:/docker/..." of version 1.
    for line in read_system_file(f"{root}/proc/self/cgroup").split("\n"):
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Within a container, the path may be the host's; only the mount's root is there.
        path = path.rstrip("/")
        while True:
            yield f"{mount}{'/cpu' if controllers else ''}{path}", not controllers
            if "/" not in path:
                break
            path = path.rpartition("/")[0]


def _quota_v2(folder: str) -> float | None:
    limit = read_system_file(f"{folder}/cpu.max").split()  # "200000 100000" or "max 100000"
    return _share(*limit[:2]) if len(limit) >= 2 else None


def _quota_v1(folder: str) -> float | None:
    return _share(
        read_system_file(f"{folder}/cpu.cfs_quota_us"),
        read_system_file(f"{folder}/cpu.cfs_period_us"),
    )


def _share(quota: str, period: str) -> float | None:
    """Divide two positive numbers of microseconds; anything else ("max", -1) is no limit."""
    times = [int(text) for text in (quota.strip(), period.strip()) if re.fullmatch("[0-9]+", text)]
    return times[0] / times[1] if len(times) == 2 and min(times) > 0 else None


def read_system_file(path: str | Path) -> str:
    """Read a small file of ``/proc`` or ``/sys``; empty if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):
        return ""
