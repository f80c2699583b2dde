"""The doctor's checks of CPUs: how many, and what keeps a session's threads from using them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from .cpus import ROOT, available_cpus, cpu_quota, default_threads, read_system_file
from .doctor_probe import Finding

# Variables that make an OpenMP runtime bind threads to CPUs, the one that loads it included.
_BINDING = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_UNBOUND = ("", "false", "none", "disabled")

_CPUS = "sys/devices/system/cpu"


def threads(root: Path = ROOT) -> Finding:
    """Tell how many CPUs may be used, and how many threads a session gets by default."""
    detail = f"{available_cpus()} of {os.cpu_count()} CPUs may be used"
    quota = cpu_quota(root)
    if quota is not None:
        number = default_threads(root)
        detail += f", with a CPU quota of {quota:g}: open_session takes {number} unless told"
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        if name in os.environ:
            detail += f"; {name}={os.environ[name]} (onnxruntime does not read it)"
    detail += "; open_session(threads=…) sets the number of threads of a session"
    if quota is not None and quota < 1:
        return detail, (
            f"The quota is less than one CPU: even one thread is stopped after {100 * quota:.0f} "
            "ms of work in 100 ms. Raise the container's CPU limit."
        )
    return detail


def affinity(mask: Collection[int], environment: Mapping[str, str], root: Path = ROOT) -> Finding:
    """Tell what narrows the affinity mask.

    Args:
        mask: CPUs of the calling thread's affinity mask.
        environment: Variables of the process.
        root: Folder that holds ``proc``.

    """
    bound = [
        f"{name}={environment[name]}"
        for name in _BINDING
        if environment.get(name, "").lower() not in _UNBOUND
    ]
    parent = _parent_mask(root)
    details, remedies = [], []
    if parent - set(mask):
        details.append(
            f"only {len(mask)} of the {len(parent)} CPUs of the process that started this one "
            f"({ranges(mask)} of {ranges(parent)})"
        )
        remedies.append("Unless this is intended, omit taskset or numactl.")
    if bound:
        details.append(
            f"{', '.join(bound)} makes OpenMP libraries (torch, for example) bind threads"
        )
        remedies.append(
            "A session that is opened after such a library has bound the calling thread may use "
            f"only that thread's CPU: unset {', '.join(name.partition('=')[0] for name in bound)}, "
            "or open sessions before importing it."
        )
    if not details:
        return "not narrowed"
    return "; ".join(details), " ".join(remedies)


def core_types(mask: Collection[int], root: Path = ROOT) -> Finding:
    """Tell whether the CPUs of the mask are of several speeds, and which are the fast ones."""
    groups = [(name, cpus & set(mask)) for name, cpus in _core_types(root)]
    groups = [(name, cpus) for name, cpus in groups if cpus]
    if len(groups) < 2:
        return "all alike, as far as the system tells"
    detail = "; ".join(f"{name}: {ranges(cpus)}" for name, cpus in groups)
    fast = groups[0][1]
    return detail, (
        "Long runs are balanced between fast and slow cores, short ones wait for the slowest: for "
        f"the lowest latency use the fast ones only (taskset -c {ranges(fast)}, threads="
        f"{len(fast)})."
    )


def numa_nodes(mask: Collection[int], root: Path = ROOT) -> Finding:
    """Tell whether the CPUs of the mask are on several NUMA nodes."""
    nodes = {
        int(folder.name.removeprefix("node")): _cpu_list(folder / "cpulist") & set(mask)
        for folder in root.glob("sys/devices/system/node/node[0-9]*")
    }
    used = {node: cpus for node, cpus in sorted(nodes.items()) if cpus}
    if len(used) < 2:
        return "1"
    detail = "; ".join(f"{node}: CPUs {ranges(cpus)}" for node, cpus in used.items())
    first, cpus = next(iter(used.items()))
    return f"{len(used)}, {detail}", (
        "Keep each session on one node, with a process for each: "
        f"numactl --cpunodebind={first} --membind={first}, threads={len(cpus)} or fewer."
    )


def ranges(cpus: Collection[int]) -> str:
    """Write numbers as Linux does: 0-3,8."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1][1:] = [cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)


def parse_ranges(text: str) -> set[int]:
    """Read such a list; empty for what is none."""
    found: set[int] = set()
    for part in text.strip().split(","):
        ends = part.split("-")
        if len(ends) > 2 or not all(end.isdecimal() for end in ends):
            return set()
        found.update(range(int(ends[0]), int(ends[-1]) + 1))
    return found


def _own_mask() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _parent_mask(root: Path) -> set[int]:
    parent = _status(root / "proc/self/status", "PPid")
    return parse_ranges(_status(root / "proc" / (parent or "0") / "status", "Cpus_allowed_list"))


def _status(path: Path, key: str) -> str:
    for line in read_system_file(path).splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return value.strip()
    return ""


def _core_types(root: Path) -> list[tuple[str, set[int]]]:
    """List the kinds of cores, the fastest first; empty or one if they are alike."""
    fast = _cpu_list(root / "sys/devices/cpu_core/cpus")  # hybrid x86
    slow = _cpu_list(root / "sys/devices/cpu_atom/cpus")
    if fast and slow:
        return [("performance cores", fast), ("efficiency cores", slow)]
    capacities: dict[int, set[int]] = {}  # Arm: 1024 is the fastest core of the system
    for path in (root / _CPUS).glob("cpu[0-9]*/cpu_capacity"):
        capacity, cpu = read_system_file(path).strip(), path.parent.name.removeprefix("cpu")
        if capacity.isdecimal() and cpu.isdecimal():
            capacities.setdefault(int(capacity), set()).add(int(cpu))
    ordered = sorted(capacities.items(), reverse=True)
    return [(f"cores of capacity {capacity}", cpus) for capacity, cpus in ordered]


def _cpu_list(path: Path) -> set[int]:
    return parse_ranges(read_system_file(path))


CHECKS: tuple[tuple[str, Callable[[], Finding]], ...] = (
    ("CPUs and threads", threads),
    ("CPU affinity", lambda: affinity(_own_mask(), os.environ)),
    ("core types", lambda: core_types(_own_mask())),
    ("NUMA nodes", lambda: numa_nodes(_own_mask())),
)
