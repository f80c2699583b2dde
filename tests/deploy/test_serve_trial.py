"""A version that crashes on opening never ends the server: a separate process tries it first."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from fanin.deploy import SessionError
from fanin.deploy.serve import ModelSource, ServeSettings, trial
from fanin.deploy.serve.errors import RequestError
from fanin.deploy.serve.repository import Repository
from fanin.deploy.serve.trial import Trial
from fanin.deploy.serve.versions import VersionFinder
from fanin.deploy.transient import is_transient

from .._waiting import PATIENCE, wait_until
from ._crashing import CRASHES, HANGS, IS_KILLED, model_of
from ._serving import Server, call, gain, gain_model, requires_serving, save

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="preloads a library")

TRIALS = ("--poll", 0.1, "--trial-timeout", 600)


def save_version(folder, number, model):
    return save(model, folder / "m" / str(number) / "model.onnx")


def versions(folder):
    """The versions on disk, by name."""
    return {item.name: item for item in VersionFinder(ModelSource("m", folder / "m")).find()}


@pytest.fixture
def tries(monkeypatch):
    """All processes that trials start."""
    start, started = trial._start, []

    def counted():
        started.append(start())
        return started[-1]

    monkeypatch.setattr(trial, "_start", counted)
    yield started
    for process in started:
        assert process.returncode is not None  # reaped, not left as a zombie


@pytest.mark.usefixtures("preloaded")
def test_a_crashing_version_is_reported_with_its_signal_and_the_next_one_is_tried(tmp_path, tries):
    save_version(tmp_path, 1, gain_model(1))
    save_version(tmp_path, 2, model_of(CRASHES))
    save_version(tmp_path, 3, gain_model(3))
    found = versions(tmp_path)
    made = Trial(PATIENCE, 1)
    assert made.passes(found["1"])
    with pytest.raises(SessionError, match=r"2/model\.onnx: .* crashed with SIGFPE") as caught:
        made.passes(found["2"])
    assert not is_transient(caught.value)
    assert made.passes(found["3"])
    made.end()
    assert [process.returncode for process in tries] == [-signal.SIGFPE, -signal.SIGKILL]


def test_an_ordinary_error_is_left_to_the_server(tmp_path):
    path = save_version(tmp_path, 1, gain_model(1))
    path.write_bytes(b"garbage")
    made = Trial(PATIENCE, 1)
    assert made.passes(versions(tmp_path)["1"])
    made.end()


@pytest.mark.usefixtures("preloaded")
def test_a_version_that_does_not_end_is_given_up_and_one_that_was_killed_may_come_again(
    tmp_path, tries
):
    save_version(tmp_path, 1, model_of(HANGS))
    save_version(tmp_path, 2, model_of(IS_KILLED))
    found = versions(tmp_path)
    with pytest.raises(SessionError, match=r"within 0\.5 s \(--trial-timeout\)") as caught:
        Trial(0.5, 1).passes(found["1"])
    assert not is_transient(caught.value)
    made = Trial(PATIENCE, 1)
    for _ in range(2):
        with pytest.raises(SessionError, match=r"was killed \(SIGKILL\)") as caught:
            made.passes(found["2"])
        assert is_transient(caught.value)
    assert len(tries) == 3


@pytest.mark.usefixtures("preloaded")
def test_a_server_that_stops_breaks_the_trial_off(tmp_path, tries):
    save_version(tmp_path, 1, model_of(HANGS))
    made, told = Trial(600, 1), []
    trying = threading.Thread(target=lambda: told.append(made.passes(versions(tmp_path)["1"])))
    trying.start()
    wait_until(lambda: tries, "the process is started")
    made.stop()
    trying.join(PATIENCE)
    assert told == [False]


@pytest.mark.usefixtures("preloaded")
def test_workers_that_share_a_folder_try_each_version_once(tmp_path, tries):
    save_version(tmp_path, 1, gain_model(1))
    save_version(tmp_path, 2, model_of(CRASHES))
    folder = tmp_path / "shared"
    folder.mkdir()
    told = []

    def work():
        found, made = versions(tmp_path), Trial(PATIENCE, 1, folder)
        told.append(made.passes(found["1"]))
        with pytest.raises(SessionError, match="SIGFPE"):
            made.passes(found["2"])
        made.end()

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert told == [True, True, True]
    tried = len(tries)
    assert tried in (1, 2)  # another worker may take its turn between the first one's two versions
    # Changed files are tried, even under the same name.
    save_version(tmp_path, 2, gain_model(2))
    late = Trial(PATIENCE, 1, folder)
    assert late.passes(versions(tmp_path)["2"])
    late.end()
    assert len(tries) == tried + 1


def test_workers_without_their_folder_try_by_themselves(tmp_path, tries):
    save_version(tmp_path, 1, gain_model(1))
    made = Trial(PATIENCE, 1, tmp_path / "gone")
    assert made.passes(versions(tmp_path)["1"])
    assert made.passes(versions(tmp_path)["1"])
    made.end()
    assert len(tries) == 1


@pytest.fixture
def repository(tmp_path):
    """Open a repository of m with this trial."""
    opened = []

    def make(tried):
        settings = ServeSettings((ModelSource("m", tmp_path / "m"),), threads=1)
        opened.append(Repository(settings, trial=tried))
        opened[-1].open()
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def answer(repository):
    job = repository.find("m").scheduler.submit({"x": np.ones((1, 4), np.float32)}, ["y"])
    return job.future.result(PATIENCE)[0][0, 0]


@pytest.mark.usefixtures("preloaded")
def test_a_version_that_crashes_never_serves_and_is_tried_once(tmp_path, repository, tries):
    save_version(tmp_path, 1, gain_model(1))
    found = repository(Trial(PATIENCE, 1))
    save_version(tmp_path, 2, model_of(CRASHES))
    for _ in range(4):
        found.refresh()
    assert answer(found) == 1
    assert len(tries) == 2
    reasons = {row["version"]: row["reason"] for row in found.index()}
    assert "crashed with SIGFPE" in reasons["2"]
    with pytest.raises(RequestError, match="SIGFPE") as caught:  # tried again on request
        found.load("m")
    assert (caught.value.status, len(tries)) == (400, 3)
    save_version(tmp_path, 2, gain_model(2))
    for _ in range(2):
        found.refresh()
    assert answer(found) == 2
    assert found.index()[0]["reason"] == ""


def test_files_that_change_during_the_trial_are_not_opened_untried(tmp_path, repository):
    class Slow:
        """A trial during which the files are overwritten."""

        def passes(self, version):
            seen.append(version.stamp)
            if len(seen) == 2:
                save_version(tmp_path, 2, gain_model(5))
            return True

        def end(self):
            pass

    seen = []
    save_version(tmp_path, 1, gain_model(1))
    found = repository(Slow())
    save_version(tmp_path, 2, gain_model(2))
    for _ in range(2):
        found.refresh()
    assert answer(found) == 1
    assert "changed during the trial" in found.index()[1]["reason"]
    for _ in range(2):
        found.refresh()
    assert answer(found) == 5
    assert len(set(seen)) == len(seen) == 3


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_lives_on_beside_versions_that_crash(start, tmp_path, workers):
    """One exists from the start and one appears later; a replaced worker meets both."""
    requires_serving()
    save_version(tmp_path, 1, gain_model(3))
    save_version(tmp_path, 2, model_of(CRASHES))
    arguments = ("--workers", workers, "--threads", 1, *TRIALS)
    with start(tmp_path / "m", *arguments, env={"TMPDIR": str(tmp_path)}) as server:
        serving = server.wait_for("serving", workers)
        failed = server.wait_for("load failed", workers)
        assert {(event["model"], event["version"]) for event in failed} == {("m", "2")}
        save_version(tmp_path, 3, model_of(CRASHES))
        failed = server.wait_for("load failed", 2 * workers)
        assert failed[-1]["kept"] == "1"
        assert "crashed with SIGFPE" in failed[-1]["reason"]
        assert gain(server) == 3
        assert b"SIGFPE" in call(server, "POST", "/v2/repository/index")[1]
        assert server.process.poll() is None
        assert not server.events("worker died")
        if workers > 1:
            os.kill(serving[0]["pid"], signal.SIGKILL)
            server.wait_for("serving", 3)
            assert gain(server) == 3
            assert [event["signal"] for event in server.events("worker died")] == ["SIGKILL"]


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize(
    ("operator", "status", "reason"),
    [(CRASHES, 1, "crashed with SIGFPE"), (IS_KILLED, 75, "out of memory")],
)
def test_a_server_whose_only_version_crashes_ends_with_a_sentence(
    tmp_path, operator, status, reason
):
    requires_serving()
    save_version(tmp_path, 7, model_of(operator))
    command = [sys.executable, "-m", "fanin", "serve", str(tmp_path / "m"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == status
    (line,) = [line for line in done.stderr.splitlines() if '"cannot start"' in line]
    assert "version 7 of model 'm' does not load" in line
    assert reason in line
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("preloaded")
def test_the_process_of_a_trial_ends_with_the_server(start, tmp_path):
    requires_serving()
    save_version(tmp_path, 1, gain_model(3))
    with start(tmp_path / "m", *TRIALS) as server:
        save_version(tmp_path, 2, model_of(HANGS))
        children = wait_for_children(server.process.pid)
        server.process.kill()
        server.process.wait(PATIENCE)
        wait_until_gone(children)


@pytest.mark.usefixtures("preloaded")
def test_a_signal_during_a_trial_ends_a_server_that_starts(tmp_path):
    requires_serving()
    save_version(tmp_path, 1, model_of(HANGS))
    server = Server(tmp_path / "m", *TRIALS, log=tmp_path / "log")
    children = wait_for_children(server.process.pid)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0
    wait_until_gone(children)
    assert "Traceback" not in server.log.read_text()


def wait_for_children(pid):
    return wait_until(lambda: children_of(pid), "it has a child")


def children_of(pid):
    """Children of all threads of a process; each thread has its own."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in lists for child in file.read_text().split()]


def wait_until_gone(pids):
    wait_until(lambda: not any(map(runs, pids)), "all have ended")


def runs(pid):
    """Whether it still runs; a zombie counts as ended, as orphans may not be reaped here."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
