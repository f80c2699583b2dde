"""Conditions of runs, for the benchmark and worker.py.

The worker runs by path under Pythons that lack fanin, so this imports NumPy at most and works from
Python 3.8 on.
"""

from __future__ import annotations

import glob
import random
import time
from concurrent.futures import ThreadPoolExecutor

CONDITIONS = ("cold", "paced")
"""Conditions of a run other than hot caches and no pause.

``cold``: the caches hold nothing of the process. ``paced``: the run follows a pause (see PAUSES),
in which CPUs and thread pools go to sleep.
"""

PAUSES = (0.005, 0.05)
"""Seconds; each pause is drawn uniformly between them."""

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
    """Bytes of each level of the first CPU's data caches; empty where they are unknown."""
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
    """Establishes a condition before a run, for engines with this many threads."""

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
        """Read and write twice the largest cache, split among the cores to reach all caches."""
        import numpy as np

        if not self._parts:
            size = max(_LEAST_FLUSH, 2 * max(cache_sizes().values(), default=0))
            self._parts = np.array_split(np.zeros(size // 8, np.int64), self._threads)
            self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None
        if self._pool is None:
            self._parts[0] += 1
        else:
            list(self._pool.map(lambda part: np.add(part, 1, out=part), self._parts))
