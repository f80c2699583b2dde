"""The files in which several workers count: one folder, KIND_PID.db, written by prometheus_client.

A dead worker's counts go on: they are added up in one file, so that a place whose worker dies again
and again does not fill the disk.
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

# Kinds that are sums over all workers that ever were. They are mapped; as large as it is at least.
_SUMMED = ("counter", "histogram")
_LEAST = 1 << 16
_LOCK = "lock"


def prepare(folder: Path) -> None:
    """Make the file that is locked, while there is room for it."""
    (folder / _LOCK).touch()


def collect(folder: Path) -> list[Metric]:
    """Add up all files, while none is folded."""
    with _locked(folder, fcntl.LOCK_SH):
        return list(MultiProcessCollector(None, str(folder)).collect())


def fold(folder: Path, process_id: int) -> None:
    """Move a dead worker's counts to those of all the dead, and forget its gauges.

    OSError, and its files are left where they are, when the disk has no room or a scrape is under
    way.
    """
    mark_process_dead(process_id, str(folder))
    with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
        for kind in _SUMMED:
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
            size = max(_LEAST, 2 * sum(len(key.encode()) + 32 for key in sums))
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
