"""Trials: a separate process opens a version and runs it once before the server opens it.

A version that crashes that process (in the runtime or a kernel, or out of memory) or hangs in it
would have done so in the server. Ordinary errors are not reported: the server meets them itself.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import SessionError
from . import shared_folder
from .signals import name_of
from .trial_results import TrialResults
from .versions import Version

_POLL_SECONDS = 0.1

# Signals raised by what a process does itself; others come from outside and may not recur.
_CRASHES = (
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV),
    *(signal.SIGSYS, signal.SIGTRAP, signal.SIGXCPU, signal.SIGXFSZ),
)
_REMEDY = "Export it again, or serve another version."


class Trial:
    """Tries versions one at a time. Thread-safe."""

    def __init__(
        self,
        timeout: float,
        threads: int,
        folder: Path | None = None,
        libraries: Sequence[str] = (),
    ):
        """Prepare trials; no process is started yet.

        Args:
            timeout: Seconds that each trial may take.
            threads: Intra-op threads of each session.
            folder: Folder of several workers, which share the results.
            libraries: Paths of other custom-op libraries.

        """
        self._timeout = timeout
        self._threads = threads
        self._libraries = list(libraries)
        self._results = TrialResults(folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def passes(self, version: Version) -> bool:
        """Try a version, unless the result for its files is known.

        Args:
            version: The version.

        Returns:
            True if the server may open the version, False if the server is stopping.

        Raises:
            SessionError: If the version crashed the process or took too long.
            OSError: If no process can be started.

        """
        with self._lock, self._results.turn(self._stopped):
            reason = self._results.find(version)
            if reason is None:
                reason = self._try(version)
                if reason is None:
                    return False
                self._results.add(version, reason)
        if reason:
            raise SessionError(reason, _REMEDY, model=version.path)
        return True

    def forget(self) -> None:
        """Forget all results, so that the same files are tried again."""
        self._results.forget()

    def end(self) -> None:
        """End the idle process, unless another thread is using it."""
        if self._lock.acquire(blocking=False):
            try:
                self._kill()
            finally:
                self._lock.release()

    def stop(self) -> None:
        """Interrupt the current trial and start no more."""
        self._stopped.set()

    def _try(self, version: Version) -> str | None:
        """Return why it cannot be opened, "" if it can, None if the server is stopping."""
        if self._process is None:
            self._process = _start()
        try:
            return self._ask(self._process, version)
        except BaseException:  # even the end of this process
            self._kill()
            raise

    def _ask(self, process: subprocess.Popen[bytes], version: Version) -> str | None:
        assert process.stdin is not None
        assert process.stdout is not None
        request = {
            "path": str(version.path),
            "threads": self._threads,
            "libraries": self._libraries,
        }
        with contextlib.suppress(BrokenPipeError):  # the exit status will tell
            process.stdin.write(f"{json.dumps(request)}\n".encode())
        end = time.monotonic() + self._timeout
        response = select.poll()
        response.register(process.stdout, select.POLLIN)
        while not response.poll(_POLL_SECONDS * 1000):
            if self._stopped.is_set():
                self._kill()
                return None
            if time.monotonic() > end:
                self._kill()
                return f"its trial did not finish within {self._timeout:g} s (--trial-timeout)"
        if os.read(process.stdout.fileno(), 1):
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may be writing a core dump
            process.wait(max(1.0, end - time.monotonic()))
        status = self._kill()
        if status >= 0:
            return f"its trial process exited with status {status}"
        if -status in _CRASHES:
            return f"its trial process crashed with {name_of(-status)}"
        raise _killed_from_outside(-status, version)

    def _kill(self) -> int:
        """End the process and return its exit status, negative for a signal."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return process.wait()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fanin.deploy.serve.trial_process", str(os.getpid())],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=shared_folder.environment(None),
        start_new_session=True,  # Ctrl-C is for the server, which ends this process
    )


def _killed_from_outside(number: int, version: Version) -> SessionError:
    if number == signal.SIGKILL:
        problem = "its trial process was killed (SIGKILL), as by a system that is out of memory"
        error = SessionError(problem, "Free memory, or allow more of it.", model=version.path)
    else:
        problem = f"its trial process was ended from outside ({name_of(number)})"
        error = SessionError(problem, "Load it again.", model=version.path)
    error.__cause__ = InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
    return error
