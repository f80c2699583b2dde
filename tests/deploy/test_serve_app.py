"""The routes, without a socket: responses, errors, limits, token, metrics, pages."""

import asyncio
import gzip
import re
import shutil
import zlib

import numpy as np
import pytest

from .._waiting import PATIENCE, LoopClock
from ._held import HeldSession
from ._serving import (
    HEADER,
    ask,
    binary_body,
    gain_model,
    get,
    json_body,
    post,
    requires_serving,
    save,
)

requires_serving()

from fanin.deploy import open_session  # noqa: E402
from fanin.deploy.serve import ModelSource, ServeSettings  # noqa: E402
from fanin.deploy.serve.app import create_app  # noqa: E402

X = np.arange(8, dtype=np.float32).reshape(2, 4)
INFER = "/v2/models/m/infer"


@pytest.fixture
def held(serving):
    """Create an opened app and the session of its model, which runs until released."""
    sessions = []

    def make(**settings):
        app = serving(**settings)
        sessions.append(HeldSession(app.state.fanin))
        return app, sessions[-1]

    yield make
    for session in sessions:
        session.released.set()


def test_metadata(serving):
    app = serving()
    server = get(app, "/v2").json
    assert server["name"] == "fanin"
    assert server["extensions"][:2] == ["binary_tensor_data", "model_repository"]
    tensor = {"datatype": "FP32", "shape": [-1, 4]}
    wanted = {
        "name": "m",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
    }
    assert get(app, "/v2/models/m").json == wanted
    assert get(app, "/v2/models/m/versions/1").json == wanted


def test_json_and_binary_requests_answer_as_the_session_does(serving, save_condensed):
    import onnx

    path = save_condensed("net.onnx")
    app = serving(onnx.load(path))
    (expected,) = open_session(path, threads=1).run(None, {"X": X})
    answer = post(app, INFER, json_body(X, name="X", id="seven"))
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.array("Y").astype(np.float32).tolist() == expected.tolist()
    assert answer.json["id"] == "seven"
    body, headers = binary_body(X, name="X")
    answer = post(app, "/v2/models/m/versions/1/infer", body, headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.array("Y").tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_requests(serving, encoding, pack):
    app = serving(max_body=2000)
    headers = {"content-encoding": encoding}
    assert (post(app, INFER, pack(json_body(X)), headers).array() == 3 * X).all()
    bomb = pack(b" " * 1_000_000)
    assert len(bomb) < 2000
    answer = post(app, INFER, bomb, headers)
    assert (answer.status, answer.error) == (413, answer.error)
    assert "exceeds the limit of 2000 bytes" in answer.error
    assert post(app, INFER, pack(json_body(X))[:-9], headers).status == 400
    assert post(app, INFER, pack(json_body(X)) + b"more", headers).status == 400
    assert post(app, INFER, b"plain", headers).status == 400
    assert post(app, INFER, b"", {"content-encoding": "br"}).status == 415


@pytest.mark.parametrize("name", [HEADER, "Content-Encoding"])
def test_a_repeated_header_is_refused(serving, name):
    """Even with equal values, since it is unknown which one a proxy acted on."""
    app = serving()
    body, headers = binary_body(X)
    headers |= {"Content-Encoding": "identity"}
    answer = post(app, INFER, body, headers)
    assert answer.status == 200
    answer = post(app, INFER, body, {**headers, name.lower(): headers[name]})
    assert (answer.status, answer.error) == (400, f"the header {name} occurs 2 times")


def test_bodies_over_the_limit_are_refused_by_their_announcement_and_by_their_size(serving):
    app = serving(max_body=1000)
    answer = post(app, INFER, b"", {"content-length": "1001"})
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    endless = (b"x" * 100 for _ in range(100))
    answer = post(app, INFER, chunks=endless)
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert post(app, INFER, json_body(X), {"content-length": "-5"}).status == 200


def test_a_body_that_does_not_come_ends_in_408(serving):
    app = serving(timeout=0.05)

    async def stall():
        async def receive():
            return await asyncio.Event().wait()

        sent = []

        async def send(message):
            sent.append(message)

        scope = {
            **{"type": "http", "method": "POST", "path": INFER, "raw_path": INFER.encode()},
            **{"query_string": b"", "root_path": "", "headers": [], "http_version": "1.1"},
            **{"scheme": "http", "client": ("c", 1), "server": ("s", 1)},
        }
        await app(scope, receive, send)
        return sent

    assert asyncio.run(stall())[0]["status"] == 408


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/", 404, "/docs lists all paths"),
        ("GET", "/v2/models/n", 404, "this server has no model 'n'"),
        ("POST", "/v2/models/n/infer", 404, "this server has no model 'n'"),
        ("POST", "/v2/models/m/versions/2/infer", 404, "serves version 1, not '2'"),
        ("POST", "/v2/models/..%2F..%2Fetc/infer", 404, "no model"),
        ("GET", "/v2/models/m/infer", 405, "other methods"),
        ("POST", "/v2/models/m", 405, "other methods"),
        ("POST", INFER, 400, "the request is not JSON"),
        ("POST", "/v2/repository/models/n/load", 404, "this server has no model 'n'"),
        ("POST", "/v2/repository/models/n/unload", 404, "this server has no model 'n'"),
    ],
)
def test_errors_are_json_sentences(serving, method, path, status, message):
    answer = asyncio.run(ask(serving(), method, path))
    assert answer.status == status
    assert message in answer.error


def test_sizes_that_only_the_model_can_refuse_are_the_clients_error(serving):
    from onnx import TensorProto, helper

    shape = ["rows", 4]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    three = helper.make_tensor("s", TensorProto.INT64, [2], [3, 4])
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [three])
    opsets = [helper.make_opsetid("", 20)]
    app = serving(helper.make_model(graph, opset_imports=opsets, ir_version=9))
    answer = post(app, INFER, json_body(X))
    assert answer.status == 400
    assert "the model refuses these inputs" in answer.error
    assert post(app, INFER, json_body(np.ones((3, 4)))).status == 200


def test_dimensions_beyond_the_limit_never_reach_the_model(serving):
    app = serving(max_dimension=2)
    assert post(app, INFER, json_body(X)).status == 200
    answer = post(app, INFER, json_body(np.ones((3, 4))))
    assert "has size 3 in dimension 0; the server takes 1 to 2" in answer.error


def test_the_token_is_required_everywhere_except_for_health(serving):
    app = serving(token="a-token-of-this-test")
    right = {"authorization": "Bearer a-token-of-this-test"}
    for path in ("/v2", "/v2/models/m", "/metrics", "/docs", "/openapi.json", "/nowhere"):
        answer = get(app, path)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert get(app, path, headers={"authorization": "Bearer wrong"}).status == 401
        assert get(app, path, headers=right).status == (404 if path == "/nowhere" else 200)
    assert post(app, INFER, json_body(X)).status == 401
    assert post(app, INFER, json_body(X), right).status == 200
    assert post(app, "/v2/repository/models/m/unload").status == 401
    assert get(app, "/v2/health/live").status == get(app, "/v2/health/ready").status == 200


def test_the_repository_routes(serving, tmp_path):
    app = serving()
    (row,) = post(app, "/v2/repository/index").json
    assert row == {"name": "m", "version": "1", "state": "READY", "reason": ""}
    assert post(app, "/v2/repository/models/m/unload").status == 200
    assert post(app, INFER, json_body(X)).status == 404
    assert get(app, "/v2/models/m/ready").status == 503
    assert get(app, "/v2/health/ready").status == 200
    assert post(app, "/v2/repository/index", b'{"ready": true}').json == []
    assert post(app, "/v2/repository/index", b'{"ready": 1}').status == 400
    assert post(app, "/v2/repository/index", b"[").status == 400
    save(gain_model(5), tmp_path / "m.onnx")
    assert post(app, "/v2/repository/models/m/load").status == 200
    assert (post(app, INFER, json_body(X)).array() == 5 * X).all()
    (tmp_path / "m.onnx").write_bytes(b"garbage")
    answer = post(app, "/v2/repository/models/m/load")
    assert answer.status == 400
    assert "version 1 is still served" in answer.error
    assert (post(app, INFER, json_body(X)).array() == 5 * X).all()
    assert "not an ONNX" in post(app, "/v2/repository/index").json[0]["reason"]


def test_with_several_workers_the_repository_is_read_only(serving):
    app = serving(workers=2)
    answer = post(app, "/v2/repository/models/m/unload")
    assert (answer.status, "several workers" in answer.error) == (400, True)
    assert post(app, INFER, json_body(X)).status == 200


def together(app, *bodies):
    async def run():
        return await asyncio.gather(*(ask(app, "POST", INFER, body) for body in bodies))

    return asyncio.run(run())


def test_a_full_queue_is_503_and_nothing_else_is(held):
    app, session = held(queue=1, concurrency=1)

    async def run():
        tasks = [asyncio.create_task(ask(app, "POST", INFER, json_body(X))) for _ in range(6)]
        while sum(task.done() for task in tasks) < 4:  # one runs and one is queued
            await asyncio.sleep(0.001)
        refused = [task.result().status for task in tasks if task.done()]
        session.released.set()
        return refused, sorted([answer.status for answer in await asyncio.gather(*tasks)])

    assert asyncio.run(run()) == ([503] * 4, [200] * 2 + [503] * 4)


def test_a_run_longer_than_the_timeout_is_504(held):
    app, session = held(timeout=60, concurrency=1)

    async def outlast():
        clock = LoopClock()
        asking = asyncio.create_task(ask(app, "POST", INFER, json_body(X)))
        assert await asyncio.to_thread(session.begun.acquire, timeout=PATIENCE)
        clock.now += 61
        return await asking

    answer = asyncio.run(outlast())
    assert answer.status == 504
    assert "the request timed out after 60 s (running)" in answer.error


def test_batched_requests_get_their_own_rows(serving):
    app = serving(max_batch=16, batch_delay=0.05)
    inputs = [np.full((rows, 4), rows, np.float32) for rows in (1, 2, 3, 1)]
    answers = together(app, *map(json_body, inputs))
    for x, answer in zip(inputs, answers, strict=True):
        assert (answer.array() == 3 * x).all()


def metric(app, name, **labels):
    return metric_of(get(app, "/metrics"), name, **labels)


def metric_of(answer, name, **labels):
    pairs = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    line = re.escape(f"{name}{{{pairs}}}" if pairs else name)
    found = re.search(rf"^{line} (\S+)$", answer.body.decode(), re.MULTILINE)
    return float(found[1]) if found else None


def test_metrics_count_answers_by_status_and_split_the_time(serving):
    app = serving()
    for _ in range(3):
        post(app, INFER, json_body(X))
    post(app, INFER, b"{")
    post(app, "/v2/models/unknown-by-a-client/infer", b"{")
    of = {"model": "m", "version": "1"}
    assert metric(app, "fanin_requests_total", **of, status="200") == 3
    assert metric(app, "fanin_requests_total", **of, status="400") == 1
    assert metric(app, "fanin_request_seconds_count", **of) == 4
    assert metric(app, "fanin_queue_seconds_count", **of) == 3
    assert metric(app, "fanin_compute_seconds_count", **of) == 3
    assert metric(app, "fanin_in_flight_requests") == 0
    assert metric(app, "fanin_queue_requests", **of) == 0
    assert metric(app, "fanin_model_ready", **of) == 1
    assert metric(app, "fanin_model_loads_total", model="m", result="loaded") == 1
    whole = metric(app, "fanin_request_seconds_sum", **of)
    parts = [metric(app, f"fanin_{part}_seconds_sum", **of) for part in ("queue", "compute")]
    assert 0 < sum(parts) < whole
    assert b"unknown-by-a-client" not in get(app, "/metrics").body


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


def test_metrics_of_unloaded_versions_are_removed_after_their_retention(tmp_path, monkeypatch):
    from fanin.deploy.serve import metrics_collectors

    clock = Clock()
    monkeypatch.setattr(metrics_collectors, "time", clock)
    for version in (1, 2):
        save(gain_model(version), tmp_path / "m" / str(version) / "model.onnx")
    settings = ServeSettings((ModelSource("m", tmp_path / "m"),), poll=0, threads=1, versions=2)
    app = create_app(settings)
    state = app.state.fanin
    state.open()

    def counted(version):
        return metric(app, "fanin_requests_total", model="m", version=version, status="200")

    def series(version):
        return [line for line in get(app, "/metrics").body.split(b"\n") if version in line]

    for version in "112":
        post(app, f"/v2/models/m/versions/{version}/infer", json_body(X))
    post(app, "/v2/models/m/versions/1/infer", b"{")
    first = state.repository.find("m", "1")
    shutil.rmtree(tmp_path / "m" / "1")
    state.repository.refresh()
    clock.now = 1000
    assert counted("1") == 2
    clock.now += 119
    assert (counted("1"), counted("2")) == (2, 1)
    # A request that ends after its model was unloaded brings its metrics back only for a time.
    state.metrics.count_response("m", "1", 200, 0.1)
    clock.now += 2
    assert not series(b'version="1"')
    assert counted("2") == 1
    state.metrics.count_response("m", "1", 200, 0.1)
    assert counted("1") == 1
    clock.now += 121
    assert not series(b'version="1"')
    # A version that returns in time continues its counts; one that returns later starts from zero.
    save(gain_model(1), tmp_path / "m" / "1" / "model.onnx")
    state.repository.load("m")
    assert state.repository.find("m", "1") is not first
    post(app, "/v2/models/m/versions/1/infer", json_body(X))
    state.repository.unload("m")
    assert (counted("1"), counted("2")) == (1, 1)
    state.repository.load("m")
    clock.now += 1000
    post(app, "/v2/models/m/versions/1/infer", json_body(X))
    assert (counted("1"), counted("2")) == (2, 1)
    assert metric(app, "fanin_request_seconds_count", model="m", version="1") == 2
    state.close()


def test_openapi_and_its_page_name_every_route_and_no_other_host(serving):
    app = serving()
    schema = get(app, "/openapi.json").json
    assert "/v2/models/{model}/versions/{version}/infer" in schema["paths"]
    page = get(app, "/docs").body.decode()
    for path in schema["paths"]:
        assert path in page
    assert "http://" not in page
    assert "https://" not in page
    infer = schema["paths"]["/v2/models/{model}/infer"]["post"]
    assert {item["name"] for item in infer["parameters"]} == {"model", HEADER}
    assert {"200", "400", "404", "503"} <= set(infer["responses"])


def test_while_draining_it_is_not_ready_but_serves_and_closes_connections(serving):
    app = serving()
    app.state.fanin.draining = True
    assert get(app, "/v2/health/ready").status == 503
    assert get(app, "/v2/health/live").status == 200
    answer = post(app, INFER, json_body(X))
    assert (answer.status, answer.headers["connection"]) == (200, "close")


def test_requests_interrupted_by_a_drain_are_answered_and_counted_as_503(held):
    """One runs, one is queued, and the body of one has not arrived yet."""
    app, _ = held(concurrency=1)
    state = app.state.fanin
    body = json_body(X)

    async def cut_off():
        tasks = [asyncio.create_task(ask(app, "POST", INFER, body)) for _ in range(2)]
        tasks.append(asyncio.create_task(ask(app, "POST", INFER, b"{", unfinished=True)))
        model = state.repository.find("m")
        while (model.scheduler.running, model.scheduler.waiting) != (1, 1):
            await asyncio.sleep(0.001)
        assert metric_of(await ask(app, "GET", "/metrics"), "fanin_in_flight_requests") == 3
        state.draining = True
        for task in tasks:
            task.cancel()  # as uvicorn does after its drain timeout
        return await asyncio.gather(*tasks)

    for answer in asyncio.run(cut_off()):
        assert answer.status == 503
        assert "the server stopped during the request; try again" in answer.error
    of = {"model": "m", "version": "1"}
    assert metric(app, "fanin_requests_total", **of, status="503") == 3
    assert metric(app, "fanin_request_seconds_count", **of) == 3
    assert metric(app, "fanin_compute_seconds_count", **of) == 0
    assert metric(app, "fanin_in_flight_requests") == 0


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("session", MemoryError()),
        ("session", RuntimeError("Failed to allocate memory for requested buffer of size 9")),
        ("decode", MemoryError()),
    ],
    ids=str,
)
def test_insufficient_memory_for_a_request_is_503_and_counted(serving, monkeypatch, where, error):
    from fanin.deploy.serve import app as module

    app = serving()

    class Session:
        def run(self, *_):
            raise error

    def fails(*_, **_more):
        raise error

    with monkeypatch.context() as patch:
        if where == "session":
            patch.setattr(app.state.fanin.repository.find("m"), "_session", Session())
        else:
            patch.setattr(module, "decode", fails)
        answer = post(app, INFER, json_body(X))
    assert answer.status == 503
    assert "not enough memory for these inputs" in answer.error
    assert post(app, INFER, json_body(X)).status == 200
    assert metric(app, "fanin_requests_total", model="m", version="1", status="503") == 1


def test_an_unforeseen_failure_is_500_and_logged(serving, monkeypatch, caplog):
    import logging

    app = serving()
    monkeypatch.setattr(logging.getLogger("fanin.serve"), "propagate", True)

    def fails(*_):
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(app.state.fanin.repository, "find", fails)
    answer = post(app, INFER, json_body(X))
    assert answer.status == 500
    assert "odd" not in answer.error
    assert "ZeroDivisionError: odd" in caplog.text
