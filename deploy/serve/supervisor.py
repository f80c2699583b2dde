"""Several worker processes behind one listening socket.

Workers are spawned, not forked, because ONNX Runtime's threads do not survive a fork. They receive
the settings on stdin, which keeps the token out of command lines and environments, and they end
when the supervisor does, for whatever reason.

No existing process manager does all of this. After SIGKILL, those of uvicorn 0.54, granian 2.8 and
circus 0.19 leave their workers running; gunicorn 27 forks its workers, and not all of its worker
types notice at once. None distinguishes a transient failure from a model that does not open.
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
from .settings import ServeSettings, SettingsError
from .signals import name_of, on_stop

_log = logging.getLogger("fanin.serve")

_POLL_SECONDS = 0.1
_RESTART_DELAY = 1.0  # seconds before a worker that died soon after its start is replaced
_RETRY_DELAY = 5.0  # the same, for one that could not start; each attempt costs seconds of CPU time

# Exit statuses of a worker that could not start: because of its files, or because of a transient
# failure such as too little memory (EX_TEMPFAIL of sysexits.h).
EXIT_FAILED, EXIT_TEMPFAIL = 1, 75


def supervise(settings: ServeSettings, listener: socket.socket) -> int:
    """Run the workers until a signal stops the server.

    A worker that dies is replaced. If the replacement cannot start, older workers go on serving
    what they have loaded and the start is retried; with no older worker left the server ends, since
    any other would fail alike. After a transient failure it is retried while any worker lives.
    Folders left by killed servers are removed.

    Args:
        settings: All options.
        listener: The listening socket.

    Returns:
        The exit status.

    Raises:
        SettingsError: If the folder that the workers share cannot be created.

    """
    for abandoned in shared_folder.remove_stale():
        event(_log, "removed stale folder of a killed server", folder=str(abandoned))
    try:
        folder, lock = shared_folder.create()
    except OSError as error:
        raise SettingsError(
            f"several workers share their metrics in a temporary folder: {error}. "
            "Point TMPDIR to a writable folder, or use --workers 1"
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
        self._lock = lock  # of the folder; the workers inherit it
        # Nothing is written to this pipe; workers see its end when this process exits.
        self._lifeline, self._lifeline_writer = os.pipe()
        self._workers: list[subprocess.Popen[bytes] | None] = [None] * settings.workers
        self._started: dict[int, float] = {}
        self._restart_at: dict[int, float] = {}  # by slot without a worker
        self._signal = 0
        self._unmerged: set[int] = set()  # dead workers with metrics files of their own

    def run(self) -> int:
        on_stop(self._on_signal)
        for slot in range(self._settings.workers):
            self._start(slot)
        if not any(self._workers):
            return EXIT_TEMPFAIL
        while not self._signal:
            time.sleep(_POLL_SECONDS)
            self._reap_orphans()
            self._merge_metrics()
            status = self._replace_dead_workers()
            if status:
                self._stop(signal.SIGTERM)
                return status
        self._listener.close()
        self._stop(self._signal)
        return 0

    def close(self) -> None:
        """Release the workers; any that still live end."""
        for descriptor in (self._lifeline_writer, self._lifeline, self._lock):
            os.close(descriptor)

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._signal:  # a repeated signal makes the workers stop at once
            for worker in self._workers:
                if worker is not None:
                    worker.send_signal(number)
        self._signal = self._signal or number

    def _start(self, slot: int) -> None:
        """Start a worker; if the system cannot, leave the slot for later."""
        try:
            self._workers[slot] = self._spawn()
        except OSError as error:
            self._restart_at[slot] = time.monotonic() + _RETRY_DELAY
            event(_log, "worker start failed", logging.ERROR, reason=str(error))

    def _spawn(self) -> subprocess.Popen[bytes]:
        descriptors = [self._listener.fileno(), self._lifeline]
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "fanin.deploy.serve.server", *map(str, descriptors)],
            stdin=subprocess.PIPE,
            pass_fds=[*descriptors, self._lock],
            env=shared_folder.environment(self._folder),
            start_new_session=True,  # Ctrl-C reaches only the supervisor, which tells the workers
        )
        assert worker.stdin is not None
        with contextlib.suppress(BrokenPipeError), worker.stdin:  # a dead worker is noticed later
            worker.stdin.write(self._settings.to_json().encode())
        self._started[worker.pid] = time.monotonic()
        return worker

    def _replace_dead_workers(self) -> int:
        """Refill the slots of dead workers; return the status to exit with, or 0."""
        for slot, worker in enumerate(self._workers):
            if worker is not None:
                status = worker.poll()
                if status is None:
                    continue
                cannot_start = status in (EXIT_FAILED, EXIT_TEMPFAIL)
                if cannot_start and not self._others_serve(worker, status):
                    return status
                event(
                    _log,
                    "worker died",
                    logging.ERROR,
                    pid=worker.pid,
                    status=status,
                    signal=name_of(-status) if status < 0 else None,
                )
                self._workers[slot] = None
                self._unmerged.add(worker.pid)
                now = time.monotonic()
                brief = now - self._started.pop(worker.pid) < _RESTART_DELAY
                self._restart_at[slot] = now + (
                    _RETRY_DELAY if cannot_start else _RESTART_DELAY if brief else 0
                )
            if time.monotonic() >= self._restart_at[slot]:
                self._start(slot)
        return 0

    def _merge_metrics(self) -> None:
        # Imported late because of shared_folder.forget_inherited().
        from .shared_metrics import merge_dead_worker

        # If a new worker has got a dead one's process id, the files belong to the new one.
        self._unmerged -= {worker.pid for worker in self._workers if worker is not None}
        for process_id in sorted(self._unmerged):
            try:
                merge_dead_worker(self._folder, process_id)
            except OSError:  # a scrape is in progress or the disk is full; retried at the next poll
                return
            self._unmerged.remove(process_id)

    def _reap_orphans(self) -> None:
        """As a container's init process, reap orphans that a killed worker left behind."""
        workers = {worker.pid for worker in self._workers if worker is not None}
        while os.getpid() == 1:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid in workers:  # workers are reaped by poll()
                return
            os.waitpid(ended.si_pid, 0)

    def _others_serve(self, worker: subprocess.Popen[bytes], status: int) -> bool:
        """Return whether other workers are alive that need not fail in the same way.

        Those that started earlier may have found other files, and any may have found more memory.
        """
        started = self._started[worker.pid]
        return any(
            other.poll() is None and (status == EXIT_TEMPFAIL or self._started[other.pid] < started)
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
                event(_log, "worker did not stop", logging.ERROR, pid=worker.pid)
                worker.kill()
                worker.wait()
