"""The Ray Serve application on a local cluster: scaling, rolling update, a killed replica."""

import http.client
import json
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

from .._waiting import PATIENCE, wait_until
from ._serving import gain_model, json_body, requires_serving, save, slow_model

requires_serving()
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
# On a busy machine a proxy takes longer to start than Ray's 5 seconds, and would be replaced.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "120")
os.environ.setdefault("RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S", "120")
ray = pytest.importorskip("ray", reason="needs Ray: pip install 'fanin[ray-serve]'")
pytest.importorskip("ray.serve", reason="needs Ray Serve: pip install 'fanin[ray-serve]'")

from ray import serve  # noqa: E402

from fanin.deploy.serve import SettingsError  # noqa: E402
from fanin.deploy.serve.ray_app import build  # noqa: E402

X = np.ones((1, 4), np.float32)


@pytest.fixture(scope="module")
def port():
    """A cluster of only this machine, with Serve on a free port of the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=100 << 20,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": chosen})
    yield chosen
    serve.shutdown()
    ray.shutdown()


def ask(port, method="POST", path="/v2/models/m/infer", body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body if body is not None else json_body(X), headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def gain(port):
    status, body = ask(port)
    assert status == 200, body
    return json.loads(body)["outputs"][0]["data"][0]


class Load:
    """Clients that send requests until stopped; failed ones are retried and counted."""

    def __init__(self, port, clients=3, body=None):
        self.port, self.body, self.end = port, body, threading.Event()
        self.gains, self.retried, self.lost = [], 0, []
        self.threads = [threading.Thread(target=self._run) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _run(self):
        while not self.end.is_set():
            for _ in range(20):
                try:
                    status, body = ask(self.port, body=self.body)
                except OSError as error:
                    status, body = 0, repr(error).encode()
                if status == 200:
                    self.gains.append(json.loads(body)["outputs"][0]["data"][0])
                    break
                self.retried += 1
                time.sleep(0.1)
            else:
                self.lost.append((status, body))

    def wait_for_answers(self, count):
        """Wait for so many more answers."""
        wanted = len(self.gains) + count
        wait_until(lambda: len(self.gains) >= wanted, f"{count} requests are answered")

    def stop(self):
        self.end.set()
        for thread in self.threads:
            thread.join(PATIENCE)


def process_ids():
    """Process ids of the replicas, which Ray names after the deployment."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    title = file.read()
            except OSError:
                continue
            if title.startswith(b"ray::ServeReplica") and b"fanin" in title:
                found.add(int(entry))
    return found


@pytest.mark.slow
def test_replicas_serve_and_the_sessions_threads_are_the_cpus(port, tmp_path):
    path = save(gain_model(3), tmp_path / "m.onnx")
    application = build({"model": f"m={path}", "cpus": "2", "replicas": "1"})
    serve.run(application, route_prefix="/")
    assert gain(port) == 3
    status, body = ask(port, "GET", "/v2/models/m", b"")
    assert (status, json.loads(body)["name"]) == (200, "m")
    assert ask(port, "POST", body=b"{")[0] == 400
    deployment = serve.status().applications["default"].deployments["fanin"]
    assert sum(deployment.replica_states.values()) == 1
    assert application._bound_deployment.ray_actor_options["num_cpus"] == 2


@pytest.mark.slow
def test_every_replica_requires_the_token_and_ignores_metrics_of_others(
    port, tmp_path, monkeypatch
):
    path = save(gain_model(3), tmp_path / "m.onnx")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    token = "token-of-this-test-only"
    monkeypatch.setenv("FANIN_SERVE_TOKEN", token)
    application = build({"model": f"m={path}"})
    monkeypatch.delenv("FANIN_SERVE_TOKEN")
    environment = {"env_vars": {"PROMETHEUS_MULTIPROC_DIR": str(theirs)}}
    application._bound_deployment.ray_actor_options["runtime_env"] = environment
    serve.run(application, route_prefix="/")
    assert ask(port)[0] == 401
    assert ask(port, headers={"Authorization": "Bearer of-something-else"})[0] == 401
    assert ask(port, headers={"Authorization": f"Bearer {token}"})[0] == 200
    assert ask(port, "GET", "/v2/health/ready", b"")[0] == 200
    status, text = ask(port, "GET", "/metrics", b"", {"Authorization": f"Bearer {token}"})
    assert (status, b'fanin_requests_total{model="m",status="200"' in text) == (200, True)
    assert list(theirs.iterdir()) == []


def test_a_token_is_read_only_from_the_environment(monkeypatch):
    with pytest.raises(SettingsError, match="set FANIN_SERVE_TOKEN in the environment"):
        build({"model": "m.onnx", "token": "token-of-this-test-only"})
    monkeypatch.setenv("FANIN_SERVE_TOKEN", "short")
    with pytest.raises(SettingsError, match="16 or more ASCII characters"):
        build({"model": "m.onnx"})


@pytest.mark.slow
def test_a_rolling_update_loses_nothing(port, tmp_path):
    first = save(gain_model(1), tmp_path / "a" / "m.onnx")
    second = save(gain_model(2), tmp_path / "b" / "m.onnx")
    serve.run(build({"model": str(first), "replicas": 2}), route_prefix="/")
    load = Load(port)
    wait_until(lambda: 1 in load.gains, "the first version answers")
    serve.run(build({"model": str(second), "replicas": 2}), route_prefix="/")
    wait_until(lambda: 2 in load.gains, "the second version answers")
    load.stop()
    assert (load.lost, load.retried) == ([], 0)
    assert set(load.gains) == {1, 2}
    assert gain(port) == 2


@pytest.mark.slow
def test_a_replica_that_is_killed_under_load_is_replaced_and_its_requests_are_asked_again(
    port, tmp_path
):
    path = save(gain_model(4), tmp_path / "m.onnx")
    serve.run(build({"model": str(path), "replicas": 2}), route_prefix="/")
    load = Load(port, clients=3)
    load.wait_for_answers(20)
    before = process_ids()
    assert len(before) == 2
    victim = before.pop()
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(process_ids() - {victim}) == 2, "the replica is replaced", pause=0.2)
    load.wait_for_answers(20)
    load.stop()
    assert load.lost == []
    assert set(load.gains) == {4}
    # At most those in progress in the replica: one per client.
    assert load.retried <= 3
    assert gain(port) == 4


def wait_for_replicas(count):
    """Wait until so many run, no other starts or stops, and Ray has reserved only their CPUs."""

    def settled():
        deployment = serve.status().applications["default"].deployments["fanin"]
        states = {
            str(state): number for state, number in deployment.replica_states.items() if number
        }
        free = ray.available_resources().get("CPU", 0)
        return (states, len(process_ids()), free) == ({"RUNNING": count}, count, 4 - 2 * count)

    wait_until(settled, f"{count} replicas run on two CPUs each", pause=0.5)


def threads_of_sessions(process_id):
    """Threads logged by a replica when it loaded its models; Ray keeps its stderr in a file."""
    with open(f"/proc/{process_id}/fd/2") as file:
        lines = [line for line in file if line.startswith("{")]
    events = [json.loads(line) for line in lines]
    return [event["threads"] for event in events if event["event"] == "loaded"]


@pytest.mark.slow
def test_load_brings_a_second_replica_and_its_end_takes_it_away_without_a_lost_request(
    port, tmp_path
):
    path = save(slow_model(1000, size=64), tmp_path / "m.onnx")
    values = {"model": f"m={path}", "cpus": 2, "replicas": 1, "max_replicas": 2}
    application = build({**values, "upscale_delay": "1", "downscale_delay": "2"})
    serve.run(application, route_prefix="/")
    wait_for_replicas(1)
    load = Load(port, clients=4, body=json_body(np.full((64, 64), 7, np.float32)))
    try:
        wait_for_replicas(2)
        assert [threads_of_sessions(pid) for pid in process_ids()] == [[2], [2]]
        load.wait_for_answers(20)
    finally:
        load.stop()
    # It scales down under a remaining load for which one replica is enough.
    load_of_one = Load(port, clients=1, body=load.body)
    try:
        wait_for_replicas(1)
    finally:
        load_of_one.stop()
    for each in (load, load_of_one):
        assert (each.lost, each.retried) == ([], 0)
        assert set(each.gains) == {7}
        assert each.gains


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "there is no model to serve"),
        ({"model": "m.onnx", "port": 1}, "unknown setting: port"),
        ({"model": "m.onnx", "cpus": "many"}, "cpus is 'many', not a number"),
        ({"model": "m.onnx", "cpus": 0}, "cpus is 0"),
        ({"model": "m.onnx", "replicas": 3, "max_replicas": 2}, "max_replicas 2"),
        ({"model": "m.onnx", "downscale_delay": 9}, "the number of replicas is fixed"),
        ({"model": "m.onnx", "max_replicas": 2, "upscale_delay": -1}, "upscale_delay is -1"),
        ({"model": "m.onnx", "max_replicas": 2, "upscale_delay": "nan"}, "upscale_delay is nan"),
        ({"model": "a/m.onnx,b/m.onnx"}, "two models are named 'm'"),
    ],
)
def test_invalid_values(args, message):
    with pytest.raises(SettingsError, match=message):
        build(args)
