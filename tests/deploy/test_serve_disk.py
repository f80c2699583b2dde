"""`fanin serve` with full disks, without a temporary folder, and its metrics files."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from .._waiting import wait_until
from ._serving import Server, call, gain, gain_model, requires_serving, save

requires_serving()


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a separate file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder, name="filler"):
    """Write until the disk is full."""
    with contextlib.suppress(OSError), (folder / name).open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(folder).free == 0


def wait_for_loads(server, result, count, model="m"):
    """Send requests until the metrics count so many; all must be answered."""
    line = f'fanin_model_loads_total{{model="{model}",result="{result}"}} {count}.0'

    def counted():
        gain(server)
        return line.encode() in call(server, "GET", "/metrics")[1]

    wait_until(counted, f"{count} loads have {result}")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_is_full_during_a_reload_leaves_the_old_version_serving(
    model, small_disk, workers
):
    """Model, log and shared metrics are on the full disk; the error is reported over HTTP."""
    versions = small_disk / "m"
    shutil.copytree(model.parent.parent, versions)
    arguments = (versions, "--workers", workers, "--threads", 1, "--poll", 0.1, "--access-log")
    server = Server(*arguments, env={"TMPDIR": str(small_disk)}, log=small_disk / "server.log")
    with server:
        server.wait_for("serving", workers)
        (versions / "2").mkdir()
        fill(small_disk)
        with pytest.raises(OSError, match="No space left"):
            (versions / "2" / "model.onnx").write_bytes(gain_model(5).SerializeToString())
        wait_for_loads(server, "failed", workers)
        assert b"it is empty" in call(server, "POST", "/v2/repository/index")[1]
        assert gain(server) == 3
        (small_disk / "filler").unlink()
        save(gain_model(5), versions / "2" / "model.onnx")
        wait_for_loads(server, "loaded", 2 * workers)
        assert gain(server) == 5
        if workers == 1:  # with several writers, a line may follow a truncated one
            assert [event["version"] for event in server.wait_for("loaded", 2)] == ["1", "2"]
        assert server.process.poll() is None
        assert not server.events("worker died")


def test_a_worker_that_cannot_come_back_leaves_the_others_serving(start, model):
    """It finds a corrupt file, while the others have the valid model in memory."""
    with start(model.parent.parent, "--workers", 2, "--threads", 1, "--poll", 0) as server:
        first, second = (event["pid"] for event in server.wait_for("serving", 2))
        sound = model.read_bytes()
        model.write_bytes(b"garbage")
        os.kill(first, signal.SIGKILL)
        told = server.wait_for("cannot start")[0]  # it is tried again every few seconds
        assert "not an ONNX file" in told["reason"]
        server.wait_for("worker died", 2)
        assert gain(server) == 3
        model.write_bytes(sound)
        server.wait_for("serving", 3)
        assert gain(server) == 3
        os.kill(second, 0)


def test_several_workers_without_a_temporary_folder_are_refused(model, monkeypatch):
    from fanin.deploy.serve import ServeSettings, SettingsError, shared_folder, supervisor

    def nowhere(**_):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(shared_folder.tempfile, "mkdtemp", nowhere)
    settings = ServeSettings.from_dict({"models": [str(model)], "workers": 2})
    with pytest.raises(SettingsError, match=r"No usable temporary directory.*--workers 1"):
        supervisor.supervise(settings, None)


def test_the_address_of_ipv6_has_brackets(start, model):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with start(model, "--host", "::1") as server:
        (serving,) = server.events("serving")
    assert serving["address"].startswith("http://[::1]:")


METRICS = """
import os, sys
os.environ["PROMETHEUS_MULTIPROC_DIR"] = sys.argv[1]
from fanin.deploy.serve.metrics import Metrics
"""


def run_metrics(folder, program):
    command = [sys.executable, "-c", METRICS + program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_files_of_shared_metrics_have_their_space_from_the_start(tmp_path):
    """Sparse mapped files would crash a worker when the disk fills up."""
    program = """
Metrics().count_response("m", "1", 200, 0.1)
states = [item.stat() for item in os.scandir(sys.argv[1]) if item.name.endswith(".db")]
print(len(states), all(state.st_blocks * 512 >= state.st_size for state in states))
"""
    assert run_metrics(tmp_path, program) == ["5", "True"]


def test_shared_metrics_without_room_for_more_series_keep_those_that_they_have(small_disk):
    program = """
metrics = Metrics()
metrics.count_response("m", "1", 200, 0.1)
with open(sys.argv[1] + "/filler", "wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
for version in range(1, 100):
    metrics.count_response("m" * 100, str(10**17 + version), 200, 0.1)
metrics.count_response("m", "1", 200, 0.1)
os.unlink(sys.argv[1] + "/filler")
metrics.count_response("m", "later", 200, 0.1)
lines = metrics.text().decode().splitlines()
counted = [line for line in lines if line.startswith("fanin_requests_total")]
print(*(line.split()[1] for line in counted if 'model="m"' in line), 1 < len(counted) < 100)
"""
    assert run_metrics(small_disk, program) == ["2.0", "1.0", "True"]


def test_shared_metrics_omit_only_unloaded_versions(tmp_path):
    program = """
from types import SimpleNamespace as Simple
from fanin.deploy.serve import metrics_collectors as module
clock = module.time = Simple(now=0.0, monotonic=lambda: clock.now)
serving = ["1", "2"]
repository = Simple(
    index=list,
    serving=lambda: [Simple(name="m", version=Simple(name=name)) for name in serving],
)
metrics = Metrics()
metrics.watch(repository)
def show():
    metrics.remove_unloaded()
    lines = metrics.text().decode().splitlines()
    counted = [line for line in lines if line.startswith("fanin_requests_total")]
    buckets = [line for line in lines if "_bucket" in line]
    print(*(line.split()[1] for line in counted), len(buckets), end=";")
metrics.count_load("m", "1", None)
for version in "1122233":
    metrics.count_response("m", version, 200, 0.1)
show()
clock.now += 119
del serving[0]
show()
clock.now += 2
show()
clock.now += 118
serving.append("1")
show()
metrics.count_response("m", "1", 200, 0.1)
clock.now += 1000
show()
serving.clear()
show()
clock.now += 121
show()
print(b'fanin_model_loads_total{model="m",result="loaded"} 1.0' in metrics.text())
"""
    shown = " ".join(run_metrics(tmp_path, program)).split(";")
    # Counts of versions 1, 2, 3; version 3 is another worker's, which this one never serves.
    assert shown[:3] == ["2.0 3.0 2.0 162", "2.0 3.0 2.0 162", "2.0 3.0 108"]
    assert shown[3:6] == ["2.0 3.0 108", "3.0 3.0 108", "3.0 3.0 108"]
    assert shown[6:] == ["0", "True"]


def test_dead_workers_leave_their_counts_and_no_files(tmp_path):
    """Three processes count and end; merging them does not change the sums."""
    program = """
metrics = Metrics()
metrics.count_response("m", "1", 200, 0.1)
metrics.count_response("m", "1", 400, 0.3)
metrics.in_flight.inc()
print(os.getpid())
"""
    pids = [int(run_metrics(tmp_path, program)[0]) for _ in range(3)]
    shared = """
from pathlib import Path
from fanin.deploy.serve.shared_metrics import collect, merge_dead_worker
def state():
    samples = [sample for metric in collect(Path(sys.argv[1])) for sample in metric.samples]
    return {(s.name, *sorted(s.labels.items())): round(s.value, 9) for s in samples if s.value}
"""
    merge_dead_worker = f"""
before = state()
for pid in {pids}:
    merge_dead_worker(Path(sys.argv[1]), pid)
after = state()
gone = dict(before.items() - after.items())
print(len(after) > 10, after.items() <= before.items(), *gone.values())
print(*sorted(os.listdir(sys.argv[1])))
"""
    shown = run_metrics(tmp_path, shared + merge_dead_worker)
    # Only the gauge of requests in flight in the dead workers is dropped.
    assert shown[:3] == ["True", "True", "3.0"]
    assert [name for name in shown[3:] if "_dead" in name] == [
        "counter_dead.db",
        "histogram_dead.db",
        "summary_dead.db",
    ]
    assert not [name for name in shown[3:] if any(str(pid) in name for pid in pids)]
    more = f"""
import fcntl
with open(sys.argv[1] + "/lock", "ab") as scrape:
    fcntl.flock(scrape, fcntl.LOCK_SH)
    try:
        merge_dead_worker(Path(sys.argv[1]), {pids[0]})
    except OSError as error:
        print(type(error).__name__)
"""
    assert run_metrics(tmp_path, shared + more) == ["BlockingIOError"]
