"""Workers end when their supervisor exits, for whatever reason, and leave nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from .._waiting import PATIENCE, wait_until
from ._crashing import HANGS, HANGS_ABOVE_0, model_of
from ._serving import (
    INFER,
    Server,
    binary_body,
    call,
    gain,
    requires_serving,
    save,
)

requires_serving()

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def lives(pid):
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids):
    wait_until(lambda: not any(map(lives, pids)), "all processes have ended")


def worker_pids(server, count=2):
    return [event["pid"] for event in server.wait_for("serving", count)]


@pytest.fixture
def workers(start, model, tmp_path):
    """Create a server with two workers and temporary files in the test's folder."""
    # If the tests run under nohup, their children would ignore SIGHUP.
    previous = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGQUIT)}

    def make(*arguments, versions=model.parent.parent):
        for number in previous:
            signal.signal(number, signal.SIG_DFL)
        try:
            return start(
                *(versions, "--workers", 2, "--threads", 1, "--drain-delay", 0, *arguments),
                env={"TMPDIR": str(tmp_path)},
            )
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    return make


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGHUP, 0),
        (signal.SIGQUIT, 0),
        (signal.SIGKILL, -signal.SIGKILL),
        (signal.SIGSEGV, -signal.SIGSEGV),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "",
)
def test_nothing_is_left_of_a_server_whose_supervisor_ends(workers, tmp_path, number, status):
    with workers() as server:
        pids = worker_pids(server)
        start = time.monotonic()
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == status
        wait_until_gone(pids)
        assert not list(tmp_path.glob("fanin-workers-*"))
        print(f"{number.name}: nothing left after {time.monotonic() - start:.2f} s")
        port = server.port
        gone = server.events("supervisor exited")
        assert {event["pid"] for event in gone} == (set() if status == 0 else set(pids))
    if number == signal.SIGKILL:
        # The helper passes --port 0 first; the last option counts.
        with workers("--port", port) as again:
            assert (again.port, gain(again)) == (port, 3)


@pytest.mark.usefixtures("preloaded")
def test_requests_in_progress_are_answered_when_the_supervisor_is_killed(workers, tmp_path):
    """The request's run would never end."""
    versions = tmp_path / "slow" / "m"
    save(model_of(HANGS_ABOVE_0), versions / "1" / "model.onnx")
    body, headers = binary_body(np.ones((1, 4), np.float32))
    with workers(versions=versions) as server:
        pids = worker_pids(server)
        answers = []
        client = threading.Thread(
            target=lambda: answers.append(call(server, "POST", INFER, body, headers))
        )
        client.start()
        line = b"fanin_in_flight_requests 1.0"
        wait_until(lambda: line in call(server, "GET", "/metrics")[1], "the request is running")
        server.process.kill()
        client.join(PATIENCE)
        wait_until_gone(pids)
    ((status, answer),) = answers
    assert status == 503
    assert "try again" in json.loads(answer)["error"]


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("wait", [0, 2])
def test_starting_workers_end_with_their_supervisor(tmp_path, wait):
    """At first they are still starting; later they are in a run that never ends."""
    path = save(model_of(HANGS), tmp_path / "m.onnx")
    environment = {"TMPDIR": str(tmp_path)}
    server = Server(path, "--workers", 2, env=environment, log=tmp_path / "log")
    wait_until(lambda: len(children(server.process.pid)) == 2, "both workers are started")
    pids = children(server.process.pid)
    time.sleep(wait)
    assert all(map(lives, pids))
    server.process.kill()
    server.process.wait(PATIENCE)
    wait_until_gone(pids)
    assert not list(tmp_path.glob("fanin-workers-*"))


def test_a_stopped_worker_ends_with_its_supervisor_and_a_stopped_supervisor_ends_nothing(workers):
    with workers() as server:
        pids = worker_pids(server)
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        assert gain(server) == 3
        assert all(map(lives, pids))
        server.process.send_signal(signal.SIGCONT)
        os.kill(pids[0], signal.SIGKILL)
        pids = worker_pids(server, 3)[1:]
        os.kill(pids[0], signal.SIGSTOP)
        server.process.kill()
        wait_until_gone(pids)


def test_a_server_of_one_process_drains_when_its_terminal_closes(start, model):
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        server = start(model, "--drain-delay", 0.1)
    finally:
        signal.signal(signal.SIGHUP, previous)
    with server:
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(PATIENCE) == 0
    assert server.events("draining")
    assert server.events("stopped")


def test_a_server_under_nohup_continues_when_its_terminal_closes(tmp_path, model):
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = Server(model.parent.parent, "--workers", 2, log=tmp_path / "log")
    finally:
        signal.signal(signal.SIGHUP, previous)
    with server:
        pids = worker_pids(server)
        for pid in (server.process.pid, *pids):
            os.kill(pid, signal.SIGHUP)
        time.sleep(0.5)
        assert gain(server) == 3
        assert not server.events("draining")


def test_the_init_process_of_a_container_reaps_orphans(model, tmp_path):
    """`unshare` makes a process the init process of a namespace, as in a container."""
    command = ["unshare", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"]).returncode:
        pytest.skip("may not make a namespace of processes")
    log = tmp_path / "log"
    # The shell is replaced by the server, which inherits an unknown child.
    script = 'sh -c "sleep 0.1; exit 7" & exec "$@"'
    serve = [sys.executable, "-m", "fanin", "serve", model, "--workers", 2, "--port", 0]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "sh", "-c", script, "sh", *map(str, serve)], stderr=stderr
        )
    try:
        wait_until(lambda: log.read_text().count('"serving"') == 2, "both workers serve")
        (first,) = children(process.pid)
        # A zombie is still a child.
        wait_until(lambda: len(children(first)) == 2, "the other child has been reaped")
        assert "worker died" not in log.read_text()
    finally:
        process.kill()
        process.wait(PATIENCE)


def children(pid):
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
