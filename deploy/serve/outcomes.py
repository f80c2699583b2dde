"""What became of trials, so that the same files are tried once, whichever worker comes first."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from .sources import Version

_LOCK, _FILE = "trials.lock", "trials.json"
_MOST = 1000  # entries of the file; the oldest go first
_LOOK = 0.1  # seconds between looks whether it is this process's turn

# By path: the stamp of the files, and why they cannot be opened; empty where they can.
_Entries = dict[str, list[str]]


class Outcomes:
    """Outcomes by version; with a folder, those of all workers that share it.

    The folder only saves work: where it cannot be read or written, each worker tries by itself.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._own: _Entries = {}

    @contextlib.contextmanager
    def turn(self, stopped: threading.Event) -> Iterator[None]:
        """Wait until no other worker tries a version, and keep them waiting meanwhile.

        So that memory is needed for one trial at a time. Goes on without, once ``stopped`` is set.
        """
        descriptor = None
        try:
            if self._folder is not None:
                with contextlib.suppress(OSError):
                    descriptor = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            while descriptor is not None and not stopped.is_set():
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    stopped.wait(_LOOK)
                except OSError:  # no locks here
                    break
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def find(self, version: Version) -> str | None:
        """Return why these files cannot be opened, "" where they can, None where nobody knows."""
        for entries in (self._own, self._read()):
            stamp, reason = entries.get(str(version.path), ("", ""))
            if stamp == json.dumps(version.stamp):
                return reason
        return None

    def add(self, version: Version, reason: str) -> None:
        """Keep an outcome."""
        entry = {str(version.path): [json.dumps(version.stamp), reason]}
        self._own.update(entry)
        if self._folder is not None:
            entries = self._read()
            entries.pop(str(version.path), None)
            kept = dict(list((entries | entry).items())[-_MOST:])
            beside = self._folder / f"{_FILE}.new"
            with contextlib.suppress(OSError):
                beside.write_text(json.dumps(kept))
                beside.replace(self._folder / _FILE)

    def forget(self) -> None:
        """Forget what this process has found, so that the same files are tried again."""
        self._own = {}

    def _read(self) -> _Entries:
        if self._folder is not None:
            with contextlib.suppress(OSError, ValueError):
                entries: _Entries = json.loads((self._folder / _FILE).read_text())
                return entries
        return {}
