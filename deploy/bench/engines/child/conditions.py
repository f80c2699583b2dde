"""What the benchmark and worker.py both do around runs.

The worker runs by path under Pythons that lack fanin, so this imports NumPy at most and works from
Python 3.8 on.
"""

from __future__ import annotations

import glob
import random
import time
from concurrent.futures import ThreadPoolExecutor

CONDITIONS = ("cold", "paced")
"""What a run may meet besides hot caches and no pause.

``cold``: nothing of the process is in the caches any more. ``paced``: a pause of PAUSES before the
run, in which CPUs and pools go to sleep.
"""

PAUSES = (0.005, 0.05)
"""Seconds; each pause is drawn between them, all equally likely."""

_LEAST_FLUSH = 64 << 20


def wait_until_quiet(limit: float = 0.5, step: float = 0.005) -> None:
    """Sleep until this process uses hardly any CPU, at most ``limit`` seconds.

    Pool threads spin for tens of milliseconds after a run; on a machine with as many threads as
    CPUs they would take a CPU from the next engine.
    """
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        start, used = time.perf_counter(), time.process_time()
        time.sleep(step)
        if time.process_time() - used < 0.2 * (time.perf_counter() - start):
            return


def cache_sizes() -> dict[int, int]:
    """Bytes of each level of the first CPU's caches for data; empty where the system is silent."""
    found = {}
    for folder in glob.glob("/sys/devices/system/cpu/cpu0/cache/index*"):
        level, kind, size = (_read(folder, name) for name in ("level", "type", "size"))
        if kind in ("Data", "Unified") and size[:-1].isdigit():
            found[int(level)] = int(size[:-1]) << {"K": 10, "M": 20}.get(size[-1], 0)
    return dict(sorted(found.items()))


def _read(folder: str, name: str) -> str:
    try:
        with open(f"{folder}/{name}") as file:
            return file.read().strip()
    except OSError:
        return ""


class Conditions:
    """Brings a condition about before a run, for engines of so many threads."""

    def __init__(self, threads: int, seed: int = 0) -> None:
        self._threads = threads
        self._random = random.Random(seed)
        self._parts = []

    def prepare(self, condition: str) -> None:
        """Flush the caches or pause."""
        if condition == "paced":
            time.sleep(self._random.uniform(*PAUSES))
        elif condition == "cold":
            self._flush()

    def _flush(self) -> None:
        """Read and write twice the largest cache, each core its share, so that its own go too."""
        import numpy as np

        if not self._parts:
            size = max(_LEAST_FLUSH, 2 * max(cache_sizes().values(), default=0))
            self._parts = np.array_split(np.zeros(size // 8, np.int64), self._threads)
            self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None
        if self._pool is None:
            self._parts[0] += 1
        else:
            list(self._pool.map(lambda part: np.add(part, 1, out=part), self._parts))
