"""Several worker processes behind one listening socket.

Workers are started, not forked: threads of ONNX Runtime do not survive a fork. They get the
settings on their standard input, so that a token stands in no command line and no environment.
They end with the supervisor, whatever that dies of.

No other process manager was found to do all of this. Killed by SIGKILL, those of uvicorn 0.54,
granian 2.8 and circus 0.19 leave their workers running; gunicorn 27 forks its workers, and not all
of its kinds notice at once. None tells a shortage from a file that does not open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from . import shared_folder
from .logs import event
from .settings import TOKEN_VARIABLE, ServeSettings, SettingsError
from .signals import name_of, on_stop

_log = logging.getLogger("fanin.serve")

_LOOK = 0.1  # seconds between looks at the workers
_PAUSE = 1.0  # seconds before the place of a worker that died at once is taken again
_RETRY = 5.0  # the same, of one that could not start: a look at the files costs seconds of a CPU

# Exit statuses of a worker that could not start: because of its files, or for want of memory,
# descriptors and the like (EX_TEMPFAIL of sysexits.h).
CANNOT_START, CANNOT_START_NOW = 1, 75


def supervise(settings: ServeSettings, listener: socket.socket) -> int:
    """Run the workers until a signal stops it; returns the exit status.

    A worker that dies is replaced. When one cannot start and no worker that is older lives, the
    server ends: all would fail alike. Where an older one lives it serves what the files held
    before, and goes on; the place is tried again. So it is when there was no memory, process or
    descriptor for a worker, as long as any other lives. Raises SettingsError when there is no
    folder for the metrics that the workers share. Those that killed servers left are removed.
    """
    for abandoned in shared_folder.remove_abandoned():
        event(_log, "removed the folder of a server that was killed", folder=str(abandoned))
    try:
        folder, lock = shared_folder.create()
    except OSError as error:
        raise SettingsError(
            f"several workers share their metrics in a temporary folder: {error}. "
            "Point TMPDIR to one, or take --workers 1"
        ) from error
    supervisor = _Supervisor(settings, listener, folder, lock)
    try:
        return supervisor.run()
    finally:
        supervisor.close()
        shared_folder.remove(folder)


class _Supervisor:
    def __init__(self, settings: ServeSettings, listener: socket.socket, folder: Path, lock: int):
        self._settings = settings
        self._listener = listener
        self._folder = folder
        self._lock = lock  # of the folder; workers hold it by inheriting it
        # Nothing is ever written to it: its read end ends when this process does.
        self._lifeline, self._alive = os.pipe()
        self._workers: list[subprocess.Popen[bytes] | None] = [None] * settings.workers
        self._started: dict[int, float] = {}
        self._due: dict[int, float] = {}  # of places without a worker: when to fill them
        self._signal = 0
        self._unfolded: set[int] = set()  # dead workers whose metrics are still files of their own

    def run(self) -> int:
        on_stop(self._note)
        for place in range(self._settings.workers):
            self._start(place)
        if not any(self._workers):
            return CANNOT_START_NOW
        while not self._signal:
            time.sleep(_LOOK)
            self._reap_strangers()
            self._fold_metrics()
            status = self._replace_dead()
            if status:
                self._stop(signal.SIGTERM)
                return status
        self._listener.close()
        self._stop(self._signal)
        return 0

    def close(self) -> None:
        """Let go of the workers: those that still live end."""
        for descriptor in (self._alive, self._lifeline, self._lock):
            os.close(descriptor)

    def _note(self, number: int, _frame: object) -> None:
        if self._signal:  # one more: the workers cut short what they are at
            for worker in self._workers:
                if worker is not None:
                    worker.send_signal(number)
        self._signal = self._signal or number

    def _start(self, place: int) -> None:
        """Start a worker; where the system has no process for it, leave the place for later."""
        try:
            self._workers[place] = self._open()
        except OSError as error:
            self._due[place] = time.monotonic() + _RETRY
            event(_log, "a worker cannot be started", logging.ERROR, reason=str(error))

    def _open(self) -> subprocess.Popen[bytes]:
        descriptors = [self._listener.fileno(), self._lifeline]
        environment = shared_folder.environment(self._folder)
        environment.pop(TOKEN_VARIABLE, None)
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "fanin.deploy.serve.server", *map(str, descriptors)],
            stdin=subprocess.PIPE,
            pass_fds=[*descriptors, self._lock],
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which tells the workers
        )
        assert worker.stdin is not None
        with contextlib.suppress(BrokenPipeError), worker.stdin:  # if it died, the next look tells
            worker.stdin.write(self._settings.to_json().encode())
        self._started[worker.pid] = time.monotonic()
        return worker

    def _replace_dead(self) -> int:
        """Fill the places of dead workers; returns the status to end with, 0 to go on."""
        for place, worker in enumerate(self._workers):
            if worker is not None:
                status = worker.poll()
                if status is None:
                    continue
                cannot_start = status in (CANNOT_START, CANNOT_START_NOW)  # its own word
                if cannot_start and not self._others_live(worker, status):
                    return status
                event(
                    _log,
                    "a worker died",
                    logging.ERROR,
                    pid=worker.pid,
                    status=status,
                    signal=name_of(-status) if status < 0 else None,
                )
                self._workers[place] = None
                self._unfolded.add(worker.pid)
                now = time.monotonic()
                brief = now - self._started.pop(worker.pid) < _PAUSE
                self._due[place] = now + (_RETRY if cannot_start else _PAUSE if brief else 0)
            if time.monotonic() >= self._due[place]:
                self._start(place)
        return 0

    def _fold_metrics(self) -> None:
        from .shared_metrics import fold  # prometheus_client: see shared_folder.forget_inherited

        # Should the system have given a dead one's number to a new one, the files are that one's.
        self._unfolded -= {worker.pid for worker in self._workers if worker is not None}
        for process_id in sorted(self._unfolded):
            try:
                fold(self._folder, process_id)
            except OSError:  # a scrape is under way, or the disk is full: the next look does it
                return
            self._unfolded.remove(process_id)

    def _reap_strangers(self) -> None:
        """As a container's first process, wait for the children that a killed worker left to it."""
        workers = {worker.pid for worker in self._workers if worker is not None}
        while os.getpid() == 1:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid in workers:  # the worker is waited for as such
                return
            os.waitpid(ended.si_pid, 0)

    def _others_live(self, worker: subprocess.Popen[bytes], status: int) -> bool:
        """Whether others live that need not end the way that this one did.

        Of those that found the same files, all would; not of those that found more memory.
        """
        started = self._started[worker.pid]
        return any(
            other.poll() is None
            and (status == CANNOT_START_NOW or self._started[other.pid] < started)
            for other in self._workers
            if other is not None and other is not worker
        )

    def _stop(self, number: int) -> None:
        workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(number)
        end = time.monotonic() + self._settings.drain_delay + self._settings.drain_timeout + 10
        for worker in workers:
            try:
                worker.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                event(_log, "a worker does not stop", logging.ERROR, pid=worker.pid)
                worker.kill()
                worker.wait()
