"""Metrics of several workers, in files named KIND_PID.db that prometheus_client writes.

The counts of dead workers are summed up in one file per kind, so that a worker that keeps dying
does not fill the disk.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

# Kinds that are summed over all workers, living and dead; their files are memory-mapped.
_SUMMED_KINDS = ("counter", "histogram", "summary")
_MIN_FILE_SIZE = 1 << 16
_LOCK = "lock"


def prepare(folder: Path) -> None:
    """Create the lock file while the disk has room for it."""
    (folder / _LOCK).touch()


def collect(folder: Path) -> list[Metric]:
    """Sum up all files, while none is being merged."""
    with _locked(folder, fcntl.LOCK_SH):
        return list(MultiProcessCollector(None, str(folder)).collect())


def merge_dead_worker(folder: Path, process_id: int) -> None:
    """Add a dead worker's counts to those of all dead workers, and drop its gauges.

    Args:
        folder: The shared folder.
        process_id: The dead worker's.

    Raises:
        OSError: If the disk is full or a scrape is in progress; the files are left as they are.

    """
    mark_process_dead(process_id, str(folder))
    with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
        for kind in _SUMMED_KINDS:
            own, dead = folder / f"{kind}_{process_id}.db", folder / f"{kind}_dead.db"
            if own.exists():
                _add(own, dead)


def _add(own: Path, dead: Path) -> None:
    sums: dict[str, float] = {}
    for path in (dead, own):
        if path.exists():
            for key, value, *_ in MmapedDict.read_all_values_from_file(str(path)):
                sums[key] = sums.get(key, 0.0) + value
    if sums:
        # The name's end keeps it out of the sums until it is whole.
        beside = dead.with_suffix(".new")
        with beside.open("wb") as file:
            # Without holes: writing to a mapped one on a full disk would end the process.
            size = max(_MIN_FILE_SIZE, 2 * sum(len(key.encode()) + 32 for key in sums))
            os.posix_fallocate(file.fileno(), 0, size)
        written = MmapedDict(str(beside))
        for key, value in sums.items():
            written.write_value(key, value, 0.0)
        written.close()
        beside.replace(dead)
    own.unlink()


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    with (folder / _LOCK).open("rb") as file:
        fcntl.flock(file, how)
        yield
