"""Several worker processes behind one listening socket.

Workers are started, not forked: threads of ONNX Runtime do not survive a fork. They get the
settings on their standard input, so that a token stands in no command line and no environment.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from .logs import event
from .settings import ServeSettings

_log = logging.getLogger("fanin.serve")

_LOOK = 0.1  # seconds between looks at the workers
_PAUSE = 1.0  # seconds before a worker that died takes its place again


def supervise(settings: ServeSettings, listener: socket.socket) -> int:
    """Run the workers until SIGTERM or SIGINT; returns the exit status.

    A worker that dies is replaced. One that cannot even start ends the server: the others would
    fail alike.
    """
    metrics = tempfile.mkdtemp(prefix="fanin-metrics-")
    try:
        return _Supervisor(settings, listener, metrics).run()
    finally:
        shutil.rmtree(metrics, ignore_errors=True)


class _Supervisor:
    def __init__(self, settings: ServeSettings, listener: socket.socket, metrics: str):
        self._settings = settings
        self._listener = listener
        self._metrics = metrics
        self._workers: list[subprocess.Popen] = []
        self._started: dict[int, float] = {}
        self._signal = 0

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        self._workers = [self._start() for _ in range(self._settings.workers)]
        while not self._signal:
            time.sleep(_LOOK)
            if not self._replace_dead():
                self._stop(signal.SIGTERM)
                return 1
        self._listener.close()
        self._stop(self._signal)
        return 0

    def _note(self, number: int, _frame: object) -> None:
        self._signal = self._signal or number

    def _start(self) -> subprocess.Popen:
        descriptor = self._listener.fileno()
        worker = subprocess.Popen(
            [sys.executable, "-m", "fanin.deploy.serve.server", str(descriptor)],
            stdin=subprocess.PIPE,
            pass_fds=[descriptor],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": self._metrics},
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which tells the workers
        )
        assert worker.stdin is not None
        try:
            worker.stdin.write(self._settings.to_json().encode())
            worker.stdin.close()
        except BrokenPipeError:  # it died already: the next look finds out
            pass
        self._started[worker.pid] = time.monotonic()
        return worker

    def _replace_dead(self) -> bool:
        for place, worker in enumerate(self._workers):
            status = worker.poll()
            if status is None:
                continue
            if status == 1:  # its own word that it cannot start
                return False
            event(_log, "a worker died", logging.ERROR, pid=worker.pid, status=status)
            self._forget(worker)
            if time.monotonic() - self._started.pop(worker.pid) < _PAUSE:
                time.sleep(_PAUSE)
            self._workers[place] = self._start()
        return True

    def _forget(self, worker: subprocess.Popen) -> None:
        """Take a dead worker's gauges out of the sums."""
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = self._metrics
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(worker.pid)

    def _stop(self, number: int) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                worker.send_signal(number)
        end = time.monotonic() + self._settings.drain_delay + self._settings.drain_timeout + 10
        for worker in self._workers:
            try:
                worker.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                event(_log, "a worker does not stop", logging.ERROR, pid=worker.pid)
                worker.kill()
                worker.wait()
