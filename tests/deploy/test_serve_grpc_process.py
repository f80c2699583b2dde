"""gRPC in a server process: several workers, drain, cut-off."""

import signal
import threading

import numpy as np
import pytest

from .._waiting import PATIENCE, wait_until
from ._serving import call, gain_model, requires_serving, save

requires_serving()
grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[grpc]'")

from fanin.deploy.serve.grpc_api.messages import HEALTH_MESSAGES, MESSAGES  # noqa: E402

from ._grpc import SERVICE, code_of, request_of  # noqa: E402

X = np.arange(8, dtype=np.float32).reshape(2, 4)
OPTIONS = ("--grpc-port", 0, "--threads", 1, "--poll", 0)


def ask(address, method, body=b""):
    path = method if method.startswith("/") else f"{SERVICE}/{method}"
    # A subchannel of its own, and so a new connection, which any worker may get.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options) as channel:
        return channel.unary_unary(path)(body, timeout=PATIENCE)


@pytest.mark.slow
def test_workers_share_the_port_and_the_statistics(tmp_path, start):
    model = save(gain_model(3), tmp_path / "m.onnx")
    with start(f"m={model}", *OPTIONS, "--workers", 2, "--access-log") as server:
        serving = server.wait_for("serving", 2)
        (address,) = {event["grpc"] for event in serving}
        for _ in range(40):
            response = MESSAGES["ModelInferResponse"].FromString(
                ask(address, "ModelInfer", request_of(X).SerializeToString())
            )
            assert response.raw_output_contents[0] == (3 * X).tobytes()
        for _ in range(4):
            statistics = MESSAGES["ModelStatisticsResponse"].FromString(
                ask(address, "ModelStatistics")
            )
            assert statistics.model_stats[0].inference_count == 40
            assert statistics.model_stats[0].execution_count == 40
            assert statistics.model_stats[0].inference_stats.compute_infer.count == 40
        code, text = code_of(ask, address, "RepositoryModelUnload", b"\x12\x01m")
        assert (code, "several workers" in text) == ("INVALID_ARGUMENT", True)


def test_it_listens_on_the_address_of_http_alone(tmp_path, start):
    """Of the name localhost, gRPC would take ::1 as well, and share it with other servers."""
    model = save(gain_model(3), tmp_path / "m.onnx")
    with start(f"m={model}", *OPTIONS, "--host", "localhost") as server:
        address = server.events("serving")[0]["grpc"]
        host, _, port = address.rpartition(":")
        assert ask(address, "ServerLive") == b"\x08\x01"
        other = "127.0.0.1" if host == "[::1]" else "[::1]"
        assert code_of(ask, f"{other}:{port}", "ServerLive")[0] == "UNAVAILABLE"


class Pending:
    """An inference on a thread of its own, which runs until released."""

    def __init__(self, server, address):
        body = request_of(X).SerializeToString()
        self._answers = []
        self._thread = threading.Thread(
            target=lambda: self._answers.append(code_of(ask, address, "ModelInfer", body))
        )
        self._thread.start()
        line = b'fanin_running{model="m",version="1"} 1.0'
        wait_until(lambda: line in call(server, "GET", "/metrics")[1], "the model runs")

    def answer(self):
        self._thread.join(PATIENCE)
        (answer,) = self._answers
        return answer


def test_a_server_drains_before_it_stops(model, start, held_runs):
    check = "/grpc.health.v1.Health/Check"
    with start(f"m={model}", *OPTIONS, "--drain-delay", 5, env=held_runs.environment) as server:
        address = server.events("serving")[0]["grpc"]
        pending = Pending(server, address)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        answer = HEALTH_MESSAGES["HealthCheckResponse"].FromString(ask(address, check))
        assert answer.status == 2  # NOT_SERVING
        assert code_of(ask, address, "ModelMetadata", b"\x0a\x01m")[0] == "OK"
        held_runs.release()
        assert pending.answer() == ("OK", "")
        assert server.process.wait(PATIENCE) == 0
    assert code_of(ask, address, check)[0] == "UNAVAILABLE"


@pytest.mark.slow
def test_a_second_signal_answers_what_is_pending(model, start, held_runs):
    with start(f"m={model}", *OPTIONS, "--drain-delay", 0, env=held_runs.environment) as server:
        pending = Pending(server, server.events("serving")[0]["grpc"])
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not server.listens(), "it stops")
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        said = "the server stopped during the request; try again"
        assert pending.answer() == ("UNAVAILABLE", said)
        assert server.process.wait(PATIENCE) == 0
