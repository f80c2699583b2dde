"""Results of trials, so that the workers together try each set of files only once."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from .versions import Version

_LOCK, _FILE = "trials.lock", "trials.json"
_MAX_ENTRIES = 1000  # the oldest are dropped
_POLL_SECONDS = 0.1

# By path: the files' stamp, and why they cannot be opened, or "" if they can.
_Entries = dict[str, list[str]]


class TrialResults:
    """Trial results by version; with a folder, shared by all workers that use it.

    The folder only saves work: if it cannot be read or written, each worker tries by itself.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._own: _Entries = {}

    @contextlib.contextmanager
    def turn(self, stopped: threading.Event) -> Iterator[None]:
        """Hold the lock that lets one worker try a version at a time, to bound memory.

        Proceeds without the lock if the file system has none, or once ``stopped`` is set.
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
                    stopped.wait(_POLL_SECONDS)
                except OSError:  # the file system has no locks
                    break
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def find(self, version: Version) -> str | None:
        """Return why these files cannot be opened, "" if they can, None if it is not known."""
        for entries in (self._own, self._read()):
            stamp, reason = entries.get(str(version.path), ("", ""))
            if stamp == json.dumps(version.stamp):
                return reason
        return None

    def add(self, version: Version, reason: str) -> None:
        """Record a result."""
        entry = {str(version.path): [json.dumps(version.stamp), reason]}
        self._own.update(entry)
        if self._folder is not None:
            entries = self._read()
            entries.pop(str(version.path), None)
            kept = dict(list((entries | entry).items())[-_MAX_ENTRIES:])
            beside = self._folder / f"{_FILE}.new"
            with contextlib.suppress(OSError):
                beside.write_text(json.dumps(kept))
                beside.replace(self._folder / _FILE)

    def forget(self) -> None:
        """Forget the results of this process, so that the same files are tried again."""
        self._own = {}

    def _read(self) -> _Entries:
        if self._folder is not None:
            with contextlib.suppress(OSError, ValueError):
                entries: _Entries = json.loads((self._folder / _FILE).read_text())
                return entries
        return {}
