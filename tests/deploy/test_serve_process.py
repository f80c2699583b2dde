"""`fanin serve` as a process: a foreign client, reloads, workers, options."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from .._waiting import PATIENCE, wait_until
from ._serving import (
    X,
    call,
    gain,
    gain_model,
    json_body,
    port_of,
    requires_serving,
    save,
)

requires_serving()

from fanin.deploy import open_session  # noqa: E402


def test_an_independent_client_gets_the_outputs_of_the_session(start, save_condensed):
    """tritonclient: health, metadata, repository, JSON and binary infer, errors."""
    triton = pytest.importorskip("tritonclient.http", reason="pip install tritonclient[http]")
    path = save_condensed("net.onnx")
    (expected,) = open_session(path, threads=1).run(None, {"X": X})
    with start(path, "--threads", 1) as server:
        client = triton.InferenceServerClient(server.address)
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("net")
        assert client.is_model_ready("net", "1")
        assert not client.is_model_ready("net", "2")
        assert not client.is_model_ready("absent")
        assert client.get_server_metadata()["name"] == "fanin"
        metadata = client.get_model_metadata("net")
        assert metadata["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, 4]}]
        assert client.get_model_repository_index()[0]["state"] == "READY"

        for binary in (True, False):
            tensor = triton.InferInput("X", X.shape, "FP32")
            tensor.set_data_from_numpy(X, binary_data=binary)
            output = triton.InferRequestedOutput("Y", binary_data=binary)
            for outputs in (None, [output]):
                for packing in (None, "gzip", "deflate"):
                    result = client.infer(
                        "net",
                        [tensor],
                        outputs=outputs,
                        request_id="7",
                        request_compression_algorithm=packing,
                    )
                    assert result.as_numpy("Y").tobytes() == expected.tobytes()
                    assert result.get_response()["id"] == "7"

        small = triton.InferInput("X", [1, 3], "FP32")
        small.set_data_from_numpy(np.ones((1, 3), np.float32))
        wrong = triton.InferInput("X", [1, 4], "FP64")
        wrong.set_data_from_numpy(np.ones((1, 4)))
        for inputs, more, message in (
            ([small], {}, "has size 3 in dimension 1"),
            ([wrong], {}, "datatype is FP64"),
            ([], {}, "lacks the input X"),
            ([tensor], {"sequence_id": 3, "sequence_start": True}, "sequence_id"),
            ([tensor], {"model_version": "9"}, "serves version 1, not '9'"),
        ):
            with pytest.raises(triton.InferenceServerException, match=message):
                client.infer("net", inputs, **more)
        with pytest.raises(triton.InferenceServerException, match="no model 'absent'"):
            client.infer("absent", [tensor])
        client.unload_model("net")
        assert not client.is_model_ready("net")
        client.load_model("net")
        assert client.infer("net", [tensor]).as_numpy("Y").tobytes() == expected.tobytes()
        client.close()


def test_files_are_reloaded_and_garbage_is_not(start, model):
    with start(model.parent.parent, "--poll", 0.1) as server:
        assert gain(server) == 3
        save(gain_model(5), model.parent.parent / "2" / "model.onnx")
        server.wait_for("loaded", 2)
        assert gain(server) == 5
        (model.parent.parent / "2" / "model.onnx").write_bytes(b"garbage")
        (failure,) = server.wait_for("load failed")
        assert "not an ONNX file" in failure["reason"]
        assert failure["kept"] == "2"
        assert gain(server) == 5
        _, text = call(server, "GET", "/metrics")
        assert b'fanin_model_loads_total{model="m",result="failed"} 1.0' in text
        assert b"not an ONNX file" in call(server, "POST", "/v2/repository/index")[1]


def test_workers_share_the_port_and_the_metrics_and_one_that_is_killed_is_replaced(
    start, model, tmp_path
):
    arguments = (model, "--workers", 2, "--threads", 1, "--drain-delay", 0)
    with start(*arguments, env={"TMPDIR": str(tmp_path)}) as server:
        first, second = (event["pid"] for event in server.wait_for("serving", 2))
        for _ in range(40):
            assert call(server, "POST", "/v2/models/model/infer", json_body(X))[0] == 200
        _, text = call(server, "GET", "/metrics")
        assert b'fanin_requests_total{model="model",status="200",version="1"} 40.0' in text
        os.kill(first, signal.SIGKILL)
        (died,) = server.wait_for("worker died")
        assert died["pid"] == first
        replacement = server.wait_for("serving", 3)[2]["pid"]
        assert replacement not in (first, second)
        for _ in range(10):
            assert call(server, "POST", "/v2/models/model/infer", json_body(X))[0] == 200
        _, text = call(server, "GET", "/metrics")
        assert b'fanin_requests_total{model="model",status="200",version="1"} 50.0' in text
        (folder,) = tmp_path.glob("fanin-workers-*")
        assert not list(folder.glob(f"*_{first}.db"))  # its counts are with those of the dead
        assert (folder / "counter_dead.db").exists()
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
        assert not folder.exists()
        for pid in (second, replacement):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def test_a_log_that_cannot_be_written_stops_nothing(model):
    """A full disk under the log: /dev/full refuses every write."""
    command = [sys.executable, "-m", "fanin", "serve", str(model), "--access-log"]
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(
            [*command, "--port", "0", "--poll", "0.1"], stdout=full, stderr=full
        )
    try:
        server = SimpleNamespace(address=f"127.0.0.1:{port_of(process.pid)}")
        assert call(server, "GET", "/v2/health/ready")[0] == 200  # as soon as it serves
        model.write_bytes(b"garbage")
        failed = b'fanin_model_loads_total{model="model",result="failed"} 1.0'
        wait_until(lambda: failed in call(server, "GET", "/metrics")[1], "it tries the new file")
        for _ in range(20):
            assert call(server, "POST", "/v2/models/model/infer", json_body(X))[0] == 200
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
    assert process.returncode == 0


def test_the_token_is_in_no_environment_command_line_or_log_of_workers(start, model):
    token = "token-of-this-test-only"
    arguments = (model, "--workers", 2, "--access-log", "--drain-delay", 0)
    with start(*arguments, env={"FANIN_SERVE_TOKEN": token}) as server:
        path = "/v2/models/model"
        assert call(server, "GET", path)[0] == 401
        assert call(server, "GET", path, headers={"Authorization": f"Bearer {token}"})[0] == 200
        server.wait_for("request", 2)
        for pid in (event["pid"] for event in server.wait_for("serving", 2)):
            for what in ("environ", "cmdline"):
                assert token.encode() not in Path(f"/proc/{pid}/{what}").read_bytes()
    assert token not in server.log.read_text()


def test_an_address_for_everyone_without_a_token_is_warned_about(start, model):
    with start(model, "--host", "0.0.0.0") as server:
        (warning,) = server.events("no token is set")
        assert warning["level"] == "warning"
        assert "FANIN_SERVE_TOKEN" in warning["remedy"]


def run(*arguments):
    command = [sys.executable, "-m", "fanin", "serve", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_does_not_open_ends_the_server_with_the_reason(tmp_path, workers):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"garbage")
    done = run(path, "--workers", workers, "--port", 0)
    assert done.returncode == 1
    assert "this is not an ONNX file" in done.stderr
    assert "Traceback" not in done.stderr


def test_options_and_addresses_that_cannot_be(model):
    done = run(model, "--threads", 0)
    assert (done.returncode, "--threads is 0" in done.stderr) == (1, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run(model, "--port", taken.getsockname()[1])
    assert (done.returncode, "cannot listen on 127.0.0.1" in done.stderr) == (1, True)
    done = run(model, "--host", "no.such.host.invalid")
    assert (done.returncode, "cannot listen on" in done.stderr) == (1, True)
