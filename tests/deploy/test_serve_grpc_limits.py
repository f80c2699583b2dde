"""Calls over gRPC that do not end, do not arrive, or are too many: time, memory, connections."""

import socket
import threading
from dataclasses import replace

import numpy as np
import pytest

from .._waiting import PATIENCE, wait_until
from ._serving import gain_model, requires_serving, save, wide_model

requires_serving()
grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[grpc]'")

from fanin.deploy.serve import ModelSource, ServeSettings, SettingsError  # noqa: E402
from fanin.deploy.serve.grpc_api import server as grpc_server  # noqa: E402

from ._grpc import GrpcServing, code_of, request_of  # noqa: E402

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_a_deadline_ends_a_request_that_waits(held_grpc):
    server, session = held_grpc(queue=1, concurrency=1)
    body = request_of(X).SerializeToString()
    codes = []

    def infer(timeout=PATIENCE):
        codes.append(code_of(server.call, "ModelInfer", body, timeout=timeout)[0])

    answered = [threading.Thread(target=infer) for _ in range(2)]
    scheduler = server.state.repository.find("m").scheduler
    answered[0].start()
    assert session.begun.acquire(timeout=PATIENCE)
    infer(timeout=2)
    assert codes == ["DEADLINE_EXCEEDED"]
    wait_until(lambda: not scheduler.waiting, "the request that nobody waits for is dropped")
    answered[1].start()
    wait_until(lambda: scheduler.waiting, "another request waits")
    code, text = code_of(server.call, "ModelInfer", body)
    assert (code, "queue of model 'm' is full" in text) == ("UNAVAILABLE", True)
    session.released.set()
    for thread in answered:
        thread.join()
    assert codes == ["DEADLINE_EXCEEDED", "OK", "OK"]
    statuses = (200, 499, 503, 504)
    counts = {code: server.metric("fanin_requests_total", status=code) for code in statuses}
    assert (counts[200], counts[503]) == (2, 1)
    assert {counts[499], counts[504]} == {None, 1}  # whoever sees the deadline first


def unending(server, method="ModelInfer"):
    """A call that sends no message."""
    with grpc.insecure_channel(server.address) as channel:
        stop = threading.Event()

        def messages():
            stop.wait(PATIENCE)
            yield from ()

        try:
            call = channel.stream_stream(f"/inference.GRPCInferenceService/{method}")
            return code_of(list, call(messages(), timeout=PATIENCE))
        finally:
            stop.set()


def test_a_message_must_arrive_in_time(serving_grpc):
    server = serving_grpc(timeout=0.3)
    code, text = unending(server)
    assert (code, text) == ("DEADLINE_EXCEEDED", "the message did not arrive within 0.3 s")
    assert server.metric("fanin_buffered_bytes") == 0


def test_a_token_is_checked_before_the_message(serving_grpc):
    server = serving_grpc(token="0123456789abcdef")
    assert unending(server)[0] == "UNAUTHENTICATED"
    assert unending(server, "ServerReady")[0] == "OK"  # nor is a probe's waited for


def test_a_small_message_that_grows_is_refused(serving_grpc):
    """Decompressed, or parsed into objects."""
    server = serving_grpc(max_body=1 << 20, max_buffered=1 << 21)
    zeros = b"\x3a\xfd\xff\xff\x03" + bytes((1 << 23) - 3)
    with grpc.insecure_channel(server.address) as channel:
        method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        code, text = code_of(method, zeros, compression=grpc.Compression.Gzip, timeout=PATIENCE)
    assert (code, text) == ("RESOURCE_EXHAUSTED", "Decompressed message larger than max")
    many_inputs = b"\x2a\x00" * 100_000
    code, text = code_of(server.call, "ModelInfer", many_inputs)
    assert (code, "fields" in text) == ("RESOURCE_EXHAUSTED", True)
    entry = b"\x1a\x00" * 100_000  # one input; each of these is an empty list of sizes
    entry = b"\x2a" + b"\xc0\x9a\x0c" + entry
    code, text = code_of(server.call, "ModelInfer", entry)
    assert (code, "send fewer rows" in text) == ("RESOURCE_EXHAUSTED", True)


def test_a_full_buffer_refuses_messages(serving_grpc):
    server = serving_grpc(max_body=1000, max_buffered=1000)
    other = server.state.budget.lease()
    other.take(990)
    body = request_of(X).SerializeToString()
    code, text = code_of(server.call, "ModelInfer", body)
    assert (code, "buffer for requests" in text) == ("UNAVAILABLE", True)
    assert server.metric("fanin_refusals_total", reason="memory") == 1
    other.release()
    assert code_of(server.call, "ModelInfer", body)[0] == "OK"


def test_a_connection_ends_if_its_client_does_not_read(serving_grpc, monkeypatch):
    monkeypatch.setattr(grpc_server, "_AGE_SECONDS", 1)
    server = serving_grpc(wide_model(4, 4096), timeout=1, max_body=1 << 20)
    # The second is for the connection; the run may take longer.
    server.state.settings = replace(server.state.settings, timeout=PATIENCE)
    budget, held = server.state.budget, []
    monkeypatch.setattr(budget, "on_change", lambda _by: held.append(budget.held))
    body = request_of(np.ones((1000, 4), np.float32)).SerializeToString()
    with grpc.insecure_channel(server.address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelInfer")
        reading = call(iter([body]), timeout=PATIENCE)
        wait_until(lambda: max(held, default=0) > 16_000_000, "the answer is held")
        wait_until(lambda: budget.held == 0, "the answer is dropped")
        assert server.call("ServerLive") == b"\x08\x01"
        reading.cancel()


def test_connections_above_the_limit_are_closed(serving_grpc):
    server = serving_grpc(max_connections=2)
    hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    connections = []
    answered = []
    try:
        for _ in range(5):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
            connections.append(connection)
            connection.sendall(hello)
            answered.append(connection.recv(100) != b"")
    except ConnectionError:
        answered.append(False)
    finally:
        for connection in connections:
            connection.close()
    assert answered[:3] == [True, True, False]


def test_calls_above_the_limit_are_refused_but_health_is_answered(serving_grpc):
    server = serving_grpc(max_connections=2)
    path = "/inference.GRPCInferenceService/ModelMetadata"
    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection for each channel
    stop = threading.Event()

    def messages():
        stop.wait(PATIENCE)
        yield from ()

    with grpc.insecure_channel(server.address, own) as first:
        pending = [first.stream_stream(path)(messages(), timeout=PATIENCE) for _ in range(2)]
        wait_until(lambda: len(server.server._calls._tasks) == 2, "both calls are pending")
        with grpc.insecure_channel(server.address, own) as second:
            code, text = code_of(second.unary_unary(path), b"\n\x01m", timeout=PATIENCE)
            assert (code, "limit of calls" in text) == ("UNAVAILABLE", True)
            assert second.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"
            for call in pending:
                call.cancel()
            wait_until(lambda: not server.server._calls._tasks, "they have ended")
            assert code_of(second.unary_unary(path), b"\n\x01m", timeout=PATIENCE)[0] == "OK"
    stop.set()
    assert server.metric("fanin_refusals_total", reason="connections") == 1


def test_what_is_no_http2_is_closed(serving_grpc):
    server = serving_grpc()
    for garbage in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 100, b"PRI * HTTP/2.0\r\n\r\nSM"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1000):
                pass
    assert server.call("ServerLive") == b"\x08\x01"


def test_a_port_in_use_is_refused_and_is_free_again_at_once(tmp_path):
    source = ModelSource("m", save(gain_model(3), tmp_path / "m.onnx"))
    settings = ServeSettings((source,), poll=0, threads=1, trial_timeout=0, max_body=1 << 40)
    server = GrpcServing(settings)
    try:
        with (
            pytest.raises(SettingsError, match="for gRPC: Address already in use"),
            grpc_server.reserved("127.0.0.1", server.port),
        ):
            pass
        channel = grpc.insecure_channel(server.address)
        path = "/inference.GRPCInferenceService/ServerLive"
        assert channel.unary_unary(path)(b"", timeout=PATIENCE) == b"\x08\x01"
    finally:
        server.close()  # the server ends the connection, which lingers in TIME_WAIT
    channel.close()
    with grpc_server.reserved("127.0.0.1", server.port) as port:
        assert port == server.port
