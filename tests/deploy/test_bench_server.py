"""The benchmark of ``fanin serve``: load, soak and memory, with short turns."""

import json
import socket

import numpy as np
import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy.bench import load_result, report_of, save_result
from fanin.deploy.bench.measure.server import Answer, Client, Clients, Server, ServerError, message
from fanin.deploy.bench.suites import server as server_module
from fanin.deploy.bench.suites.server import BenchServerSpec, bench_server
from fanin.deploy.bench.suites.serving import BenchServingSpec, bench_serving, server_overhead

from ._serving import requires_serving

requires_serving()


@pytest.fixture
def model(save_condensed, save_dense):
    save_dense()
    return save_condensed()


def test_an_answer_holds_the_outputs_of_the_session(model):
    from fanin.deploy import open_session

    session = open_session(model, threads=1)
    (port,) = session.get_inputs()
    x = np.random.default_rng(0).standard_normal((2, port.shape[1]), np.float32)
    with Server(f"m={model}", "--threads", "1") as server:
        client = Client(server.port)
        (y,) = client.ask(message("m", {port.name: x})).outputs()
        lost = client.ask(message("no-such-model", {port.name: x}))
        client.close()
        memory = server.memory()
    assert np.array_equal(y, session.run(None, {port.name: x})[0])
    assert lost.status == 404
    with pytest.raises(ServerError, match="answered 404"):
        lost.outputs()
    assert memory["anonymous"] > 0


def test_a_server_that_does_not_start_shows_its_log(tmp_path):
    with (
        pytest.raises(ServerError, match=r"did not start:[^$]*none\.onnx"),
        Server(f"m={tmp_path / 'none.onnx'}"),
    ):
        pass


def test_requests_that_are_refused_are_failures_and_have_no_latency(model):
    raw = message("m", {"no such input": np.zeros((1, 1), np.float32)})
    with Server(f"m={model}", "--threads", "1") as server:
        clients = Clients(server.port, raw, 2, rate=20.0)
        clients.stop()
    assert clients.latencies == []
    assert len(clients.failures) >= 2
    assert set(clients.failures) == {"status 400"}


def test_clients_without_a_server_fail_and_end():
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        clients = Clients(bound.getsockname()[1], b"", 2)
        clients.stop()
    assert len(clients.failures) >= 2
    assert all("Connection refused" in failure for failure in clients.failures)


def test_load_compares_dense_and_condensed_in_turn(model, tmp_path):
    result = bench_server(BenchServerSpec(model, seconds=0.2, rounds=2, connections=2))
    assert [case.title for case in result.cases] == ["dense", "condensed"]
    for case in result.cases:
        assert case.figures["requests_per_second"] > 0
        assert 0 < case.figures["p50"] <= case.figures["p99"]
        assert len(case.rounds) == 2
    assert result.facts["throughput_ratio"].count == 2
    save_result(result, tmp_path)
    assert load_result(tmp_path).to_dict() == json.loads((tmp_path / "results.json").read_text())
    assert [row[0] for row in report_of(result).screen[0].rows] == ["dense", "condensed"]


def test_a_soak_reloads_and_fails_no_request(model):
    spec = BenchServerSpec(model, part="soak", seconds=0.3, minutes=0.1, reload_seconds=2.0)
    result = bench_server(spec)
    assert len(result.cases) == 3
    assert result.facts["failures"] == []
    assert result.facts["failed_loads"] == 0
    assert result.facts["loads"] >= 2
    assert result.facts["requests"] >= result.cases[-1].figures["answered"] > 0


def test_memory_grows_with_workers(model, monkeypatch):
    monkeypatch.setattr(server_module, "_SERVERS", ((1, 2), (2, 1)))
    result = bench_server(BenchServerSpec(model, part="memory"))
    one, two = (case.figures for case in result.cases)
    assert (one["sessions_per_worker"], two["workers"]) == (2, 2)
    assert two["anonymous"] > 1.5 * one["anonymous"]
    assert result.facts["model_bytes"] == model.stat().st_size


def test_bounds_that_are_not_kept_are_said_and_end_with_status_1(model, monkeypatch, tmp_path):
    monkeypatch.setattr(server_module, "MEMORY_BOUND", -1.0)
    options = ["--minutes", "0.02", "--reload-seconds", "1", "--time", "0.2"]
    command = ["bench", "server", str(model), "--of", "soak", *options, "--out", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "the bounds are not kept" in done.output


def test_loadgen_asks_the_server_beside_the_session(model):
    pytest.importorskip("mlperf_loadgen")
    spec = BenchServingSpec(model, seconds=0.1, turns=1, rate=50.0, workers=2, server=True)
    result = bench_serving(spec)
    assert [(row.engine, row.excluded) for row in result.cases if row.scenario == "Server"] == [
        ("dense", None),
        ("condensed", None),
        ("dense-server", None),
        ("condensed-server", None),
    ]
    assert server_overhead(result) > 0
    assert any("the server adds" in note for note in report_of(result).notes)


def test_overhead_without_a_server_is_not_known(model, tmp_path):
    pytest.importorskip("mlperf_loadgen")
    spec = BenchServingSpec(model, scenarios=("SingleStream",), seconds=0.05, turns=1)
    assert server_overhead(bench_serving(spec)) is None
    command = ["bench", "serving", str(model), "--max-overhead", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "--server" in done.output


def test_an_answer_without_outputs_is_refused():
    with pytest.raises(ServerError, match=r"answered 200: b'hello'"):
        Answer(200, b"http/1.1 200 ok", b"hello").outputs()


@pytest.mark.parametrize(
    ("changes", "message_"),
    [
        ({"part": "siege"}, "there are load, soak, memory"),
        ({"connections": 0}, "connections is 0"),
        ({"minutes": 0.0}, "minutes is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message_):
    with pytest.raises(ValueError, match=message_):
        BenchServerSpec("model.onnx", **changes)
