"""Trials: a process of its own opens a version and runs it once, before the server opens it.

What ends that process (a crash in the runtime or in a kernel, memory that runs out), or never ends
in it, would have taken the server along. What it merely refuses, the server finds out and tells.
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
from pathlib import Path

from ..errors import SessionError
from . import shared_folder
from .outcomes import Outcomes
from .settings import TOKEN_VARIABLE
from .signals import name_of
from .sources import Version

_LOOK = 0.1  # seconds between looks whether the server stops

# What a process sends itself by what it does. The others come from outside, and may not come again.
_CRASHES = (
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV),
    *(signal.SIGSYS, signal.SIGTRAP, signal.SIGXCPU, signal.SIGXFSZ),
)
_REMEDY = "Export it again, or serve another version."


class Trial:
    """Tries versions one at a time; its methods may be called from any thread.

    ``timeout`` is the time in seconds that each may take, ``threads`` that of its session.
    ``folder`` is what several workers share: one of them tries a version for all.
    """

    def __init__(self, timeout: float, threads: int, folder: Path | None = None):
        self._timeout = timeout
        self._threads = threads
        self._outcomes = Outcomes(folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def passes(self, version: Version) -> bool:
        """Try the version, unless it is known what comes of it. False when the server stops.

        Raises SessionError when it ends the process or takes too long, OSError when there is no
        process to be had.
        """
        with self._lock, self._outcomes.turn(self._stopped):
            reason = self._outcomes.find(version)
            if reason is None:
                reason = self._try(version)
                if reason is None:
                    return False
                self._outcomes.add(version, reason)
        if reason:
            raise SessionError(reason, _REMEDY, model=version.path)
        return True

    def forget(self) -> None:
        """Try again what has been tried."""
        self._outcomes.forget()

    def end(self) -> None:
        """End the process, which waits for more versions, unless another thread needs it."""
        if self._lock.acquire(blocking=False):
            try:
                self._kill()
            finally:
                self._lock.release()

    def stop(self) -> None:
        """Break off what is being tried, and try nothing more."""
        self._stopped.set()

    def _try(self, version: Version) -> str | None:
        """Return why it cannot be opened, "" where it can, None when the server stops."""
        if self._process is None:
            self._process = _start()
        try:
            return self._ask(self._process, version)
        except BaseException:  # the end of this process, too
            self._kill()
            raise

    def _ask(self, process: subprocess.Popen[bytes], version: Version) -> str | None:
        assert process.stdin is not None
        assert process.stdout is not None
        question = {"path": str(version.path), "threads": self._threads}
        with contextlib.suppress(BrokenPipeError):  # its status tells
            process.stdin.write(f"{json.dumps(question)}\n".encode())
        end = time.monotonic() + self._timeout
        answer = select.poll()
        answer.register(process.stdout, select.POLLIN)
        while not answer.poll(_LOOK * 1000):
            if self._stopped.is_set():
                self._kill()
                return None
            if time.monotonic() > end:
                self._kill()
                return (
                    f"it was not opened and run once within {self._timeout:g} s, which "
                    "--trial-timeout sets"
                )
        if os.read(process.stdout.fileno(), 1):
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):  # it ends, and may write a core first
            process.wait(max(1.0, end - time.monotonic()))
        status = self._kill()
        if status >= 0:
            return f"the process that tried it ended with status {status}"
        if -status in _CRASHES:
            return f"the process that opened it and ran it once crashed with {name_of(-status)}"
        raise _of_the_moment(-status, version)

    def _kill(self) -> int:
        """End the process; returns its exit status, or less than 0 for a signal."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return process.wait()


def _start() -> subprocess.Popen[bytes]:
    environment = shared_folder.environment(None)
    environment.pop(TOKEN_VARIABLE, None)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fanin.deploy.serve.trial_process", str(os.getpid())],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the server, which ends it
    )


def _of_the_moment(number: int, version: Version) -> SessionError:
    if number == signal.SIGKILL:
        problem = "the process that tried it was killed (SIGKILL), as by a system out of memory"
        error = SessionError(problem, "Free memory, or allow it more.", model=version.path)
    else:
        problem = f"the process that tried it was ended from outside ({name_of(number)})"
        error = SessionError(problem, "Load it again.", model=version.path)
    error.__cause__ = InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
    return error
