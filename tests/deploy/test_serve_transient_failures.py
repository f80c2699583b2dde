"""Loads that fail for lack of memory, descriptors, threads or disk space are retried."""

import errno
import os
import resource
import signal
import subprocess
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest

from fanin.deploy import SessionError, model_check, open_session
from fanin.deploy.serve import ModelSource, ServeSettings, load_failure, loaded_model, versions
from fanin.deploy.serve.errors import RequestError
from fanin.deploy.serve.repository import Repository
from fanin.deploy.serve.scheduler import Scheduler
from fanin.deploy.transient import is_transient

from .._waiting import PATIENCE
from ._serving import Server, gain_model, requires_serving, save


@pytest.fixture
def clock(monkeypatch):
    """A clock for the intervals between attempts, moved by the test."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(load_failure, "time", clock)
    return clock


@pytest.fixture
def serving(tmp_path):
    """An open repository of m.onnx (gain 1), its path, and the failures passed to the observer."""
    path = save(gain_model(1), tmp_path / "m.onnx")
    told = []
    found = Repository(
        ServeSettings((ModelSource("m", path),), threads=1), lambda *seen: told.append(seen[2])
    )
    found.open()
    yield found, path, told
    found.close()


def gain(repository):
    job = repository.find("m").scheduler.submit({"x": np.ones((1, 4), np.float32)}, ["y"])
    return job.future.result(PATIENCE)[0][0, 0]


def look_twice(repository):
    repository.refresh()
    repository.refresh()


def failing(monkeypatch, error):
    """Make every load raise ``error``; return the list of attempts."""
    attempts = []

    def fails(*_, **__):
        attempts.append(error)
        raise error

    monkeypatch.setattr(loaded_model, "open_session", fails)
    return attempts


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        OSError(errno.ENFILE, "in words that are not the system's"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        InterruptedError(errno.EINTR, "Interrupted system call"),
        RuntimeError("can't start new thread"),
        SessionError("Exception during initialization: std::bad_alloc", "", model=None),
        SessionError("pthread_create failed, error code: 11", "", model=None),
    ],
    ids=str,
)
def test_a_transient_failure_is_retried_at_growing_intervals(serving, clock, monkeypatch, error):
    found, path, told = serving
    save(gain_model(2), path)
    with monkeypatch.context() as patch:
        attempts = failing(patch, error)
        look_twice(found)
        for done, delay in enumerate((1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300), 1):
            assert len(attempts) == done
            (row,) = found.index()
            assert f"(failed {done} times; next attempt in {delay} s)" in row["reason"]
            assert row["state"] == "READY"
            clock.now += delay - 0.01
            look_twice(found)
            assert len(attempts) == done
            clock.now += 0.02
            look_twice(found)
    assert gain(found) == 1
    clock.now += 301
    found.refresh()
    assert gain(found) == 2
    assert found.index()[0]["reason"] == ""
    assert told[0] is told[-1] is None
    assert [failure.attempts for failure in told[1:-1]] == list(range(1, 13))


def test_a_failure_that_is_the_files_own_waits_for_another_file(serving, clock):
    found, path, told = serving
    path.write_bytes(b"garbage")
    look_twice(found)
    for _ in range(5):
        clock.now += 10_000
        look_twice(found)
    (failure,) = told[1:]
    assert (failure.delay, "next try" in str(failure)) == (None, False)


def test_changed_files_are_tried_at_once_and_restart_the_intervals(serving, clock, monkeypatch):
    found, path, told = serving
    save(gain_model(2), path)
    attempts = failing(monkeypatch, MemoryError())
    for _ in range(4):
        look_twice(found)
        clock.now += 100
    save(gain_model(4), path)
    look_twice(found)
    assert (len(attempts), told[-1].attempts, told[-1].delay) == (5, 1, 1)


@pytest.mark.usefixtures("clock")
def test_an_explicit_load_does_not_wait_and_reports_a_transient_failure(serving, monkeypatch):
    found, path, _ = serving
    save(gain_model(2), path)
    with monkeypatch.context() as patch:
        failing(patch, MemoryError())
        look_twice(found)
        with pytest.raises(RequestError, match="version 1 is still served") as caught:
            found.load("m")
        assert caught.value.status == 503
    found.load("m")
    assert gain(found) == 2
    path.write_bytes(b"garbage")
    with pytest.raises(RequestError) as caught:
        found.load("m")
    assert caught.value.status == 400


@pytest.fixture
def no_descriptors():
    """Exhaust this process's file descriptors; return a function that undoes it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []

    def restore():
        while held:
            os.close(held.pop())
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def take():
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, limits[1]))
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            assert error.errno == errno.EMFILE  # noqa: PT017
        return restore

    yield take
    restore()


def test_a_process_without_descriptors_loads_the_new_file_once_it_has_some(
    serving, clock, no_descriptors
):
    found, path, told = serving
    save(gain_model(2), path)
    restore = no_descriptors()
    look_twice(found)
    restore()
    assert "Too many open files" in told[-1].reason
    assert gain(found) == 1
    clock.now += 2
    look_twice(found)
    assert gain(found) == 2


def test_data_files_are_found_once_the_model_file_can_be_read(tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    onnx.save(gain_model(1), path, save_as_external_data=True, location="data", size_threshold=0)
    finder = versions.VersionFinder(ModelSource("m", path))

    def fails(_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(versions, "read_model_file", fails)
        assert len(finder.find()[0].stamp) == 1
    assert [os.path.basename(name) for name, *_ in finder.find()[0].stamp] == ["m.onnx", "data"]


def test_a_model_that_cannot_be_read_for_its_check_is_not_opened_unchecked(tmp_path, monkeypatch):
    path = save(gain_model(1), tmp_path / "m.onnx")

    def fails(_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(model_check, "read_checked", fails)
    with pytest.raises(SessionError, match=r"cannot be read \(Too many open files\)") as caught:
        open_session(path, threads=1)
    assert is_transient(caught.value)


def test_a_model_too_large_for_memory_is_a_transient_failure(tmp_path):
    """Runs in a separate process with limited address space."""
    path = save(gain_model(1, width=20_000_000), tmp_path / "m.onnx")
    program = """
import resource, sys
from fanin.deploy import SessionError, open_session
from fanin.deploy.transient import is_transient
import onnxruntime
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
try:
    open_session(sys.argv[1], threads=1)
except SessionError as error:
    print(is_transient(error), error.remedy)
"""
    command = [os.sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.startswith("True Free memory"), done.stderr


def test_threads_that_cannot_be_started_leave_none_behind(monkeypatch):
    start, started = threading.Thread.start, []

    def scarce(thread):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    with pytest.raises(RuntimeError, match="can't start") as caught:
        Scheduler("m", lambda *_: [], concurrency=4, limit=1, timeout=1)
    assert is_transient(caught.value)
    assert not any(thread.is_alive() for thread in started)


def test_the_causes_of_an_error_are_examined():
    outer = SessionError("it does not open", "")
    outer.__cause__ = OSError(errno.ENFILE, "odd")
    assert is_transient(outer)
    assert not is_transient(SessionError("this is not an ONNX file: it is cut off", ""))
    assert not is_transient(FileNotFoundError(errno.ENOENT, "No such file or directory"))


def scripted(monkeypatch, *commands):
    """A supervisor whose workers are these programs, one after the other; then it is stopped.

    An exception instead of a program is raised when it is started.
    """
    requires_serving()
    from fanin.deploy.serve import supervisor

    settings = ServeSettings.from_dict({"models": ["m.onnx"], "workers": 2})
    listener = type("Listener", (), {"close": lambda _: None})()
    lock = os.open(os.devnull, os.O_RDONLY)
    made = supervisor._Supervisor(settings, listener, Path("/nonexistent"), lock)
    left, pids = list(commands), []

    def start():
        command = left.pop(0)
        if not left:
            made._signal = signal.SIGTERM
        if isinstance(command, Exception):
            raise command
        worker = subprocess.Popen(["sh", "-c", command], stdin=subprocess.DEVNULL)
        made._started[worker.pid] = supervisor.time.monotonic()
        pids.append(worker.pid)
        return worker

    monkeypatch.setattr(made, "_spawn", start)
    monkeypatch.setattr(supervisor, "_RETRY_DELAY", 0.1)
    stopping = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    previous = [signal.getsignal(number) for number in stopping]
    try:
        return made.run(), left
    finally:
        made.close()
        for number, handler in zip(stopping, previous, strict=True):
            signal.signal(number, handler)
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


NO_PROCESS = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
LIVES = "exec sleep 60"


@pytest.mark.parametrize(
    ("commands", "status"),
    [
        ([NO_PROCESS, LIVES, NO_PROCESS, LIVES], 0),
        ([LIVES, "exit 9", NO_PROCESS, NO_PROCESS, LIVES], 0),
        ([NO_PROCESS, NO_PROCESS, LIVES], 75),  # no worker at all
        (["exit 75", LIVES, "exit 75", LIVES], 0),  # the younger one found more memory
        (["exit 1", LIVES, LIVES], 1),  # the younger one reads the same files
    ],
)
def test_a_worker_that_cannot_be_started_is_retried_while_another_lives(
    monkeypatch, commands, status
):
    ended, left = scripted(monkeypatch, *commands)
    assert ended == status
    assert bool(left) == bool(status)


def test_a_supervisor_without_descriptors_keeps_its_workers_and_replaces_the_dead_later(tmp_path):
    requires_serving()
    path = save(gain_model(3), tmp_path / "m.onnx")
    server = Server(path, "--workers", 2, "--threads", 1, log=tmp_path / "log")
    with server:
        first, second = (event["pid"] for event in server.wait_for("serving", 2))
        pid = server.process.pid
        _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, most))
        os.kill(first, signal.SIGKILL)
        told = server.wait_for("worker start failed")[0]  # it is tried again every few seconds
        assert "Too many open files" in told["reason"]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, most))
        assert server.wait_for("serving", 3)[2]["pid"] not in (first, second)
        os.kill(second, 0)
