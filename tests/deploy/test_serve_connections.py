"""Connections to `fanin serve` that are slow, broken or endless."""

import contextlib
import http.client
import select
import socket
import threading
import time

from .._waiting import PATIENCE
from ._held import HeldProcess
from ._serving import INFER, X, call, gain_model, json_body, read_all, requires_serving, save

requires_serving()

from fanin.deploy.serve.connection import MAX_HEAD  # noqa: E402


def test_slow_and_broken_connections_do_not_block_other_clients(start, model):
    with start(model, "--threads", 1) as server:
        stuck = [server.connect() for _ in range(50)]
        for connection in stuck:
            connection.sendall(
                b"POST /v2/models/model/infer HTTP/1.1\r\nContent-Length: 99\r\n\r\n{"
            )
        assert call(server, "POST", "/v2/models/model/infer", json_body(X))[0] == 200
        for connection in stuck:
            connection.close()
        with server.connect() as rude:
            rude.sendall(b"\0\1\2 not HTTP\r\n\r\n")
            assert rude.recv(100).startswith(b"HTTP/1.1 400")
        assert call(server, "POST", "/v2/models/model/infer", json_body(X))[0] == 200
    assert "Traceback" not in server.log.read_text()


def test_only_upgrades_with_a_body_are_refused_with_a_remedy(start, model):
    """The parser drops such bodies. Java's client asks for HTTP/2 this way by default."""
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    body = json_body(X).decode()
    infer = f"POST /v2/models/model/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    chunked = "POST /v2/models/model/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    with start(model, "--threads", 1) as server:
        for text, status, part in (
            (f"{infer}{upgrade}\r\n{body}", 400, b"send the request without Upgrade"),
            (f"{chunked}{upgrade}\r\n0\r\n\r\n", 400, b"send the request without Upgrade"),
            (f"{infer}Upgrade: h2c\r\nConnection: close\r\n\r\n{body}", 200, b"outputs"),
            (f"GET /v2 HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n", 200, b"fanin"),
        ):
            with server.connect() as connection:
                connection.sendall(text.encode())
                answer = read_all(connection)  # until it is closed
            assert answer.startswith(f"HTTP/1.1 {status}".encode()), answer
            assert part in answer


def test_waiting_loads_do_not_block_scrapes(start, tmp_path):
    path = save(gain_model(3), tmp_path / "m.onnx")
    held = HeldProcess(tmp_path, "__init__")
    held.release()
    with start(path, "--threads", 1, "--poll", 0, env=held.environment) as server:
        held.hold()
        load = "/v2/repository/models/m/load"
        done = []
        clients = [
            threading.Thread(target=lambda: done.append(call(server, "POST", load)[0]))
            for _ in range(20)
        ]
        save(gain_model(5), path)
        for client in clients:
            client.start()
        # On the loads' thread pool, a scrape would have to wait for them; the first is held.
        for _ in range(50):
            assert b"fanin_model_loads_total" in call(server, "GET", "/metrics")[1]
        assert done == []
        held.release()
        for client in clients:
            client.join(PATIENCE)
        assert done == [200] * 20


def test_heads_that_do_not_end_are_cut_off_and_idle_connections_are_not(start, model):
    head = f"POST {INFER.replace('/m/', '/model/')} HTTP/1.1\r\nHost: x\r\n".encode()
    body = json_body(X)
    rest = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    with start(model, "--threads", 1, "--timeout", 3) as server:

        def answer(begin):
            """Return what is received until the connection closes: the head has no end."""
            with server.connect() as connection:
                connection.sendall(begin)
                received = b""
                while b"did not arrive within 3 s" not in received:
                    connection.sendall(b"X: a\r\n")
                    if select.select([connection], [], [], 0.2)[0]:
                        received += connection.recv(65536)
                with contextlib.suppress(ConnectionError):  # if a line came after its end
                    assert connection.recv(1) == b""
                return received

        late = answer(head)
        assert late.startswith(b"HTTP/1.1 408 ")
        assert b"the request head did not arrive within 3 s" in late
        after_a_request = answer(head + rest + head)
        assert after_a_request.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in after_a_request
        # An idle kept-alive connection is not a late head.
        connection = http.client.HTTPConnection(server.address, timeout=PATIENCE)
        connection.connect()
        kept = connection.sock
        for pause in (0, 3.5):
            time.sleep(pause)
            connection.request("POST", INFER.replace("/m/", "/model/"), body)
            assert len(connection.getresponse().read()) > 50
        assert connection.sock is kept
        connection.close()


def test_a_head_without_bounds_is_cut_off_and_a_long_one_is_not(start, model):
    with start(model, "--threads", 1) as server:
        assert call(server, "GET", "/v2", headers={"X": "a" * 60_000})[0] == 200
        with server.connect() as connection:
            connection.sendall(b"GET /v2 HTTP/1.1\r\nX: ")
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 64 << 20:
                    connection.sendall(b"a" * 4096)
                    sent += 4096
        assert sent < 64 << 20
        with server.connect() as connection:
            # No byte stays unread: the system would reset the connection, and lose the answer.
            begin = b"GET /v2 HTTP/1.1\r\nX: "
            connection.sendall(begin + b"a" * (MAX_HEAD + 1 - len(begin)))
            assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")
        # A large body together with the start of the next head is not a large head.
        body = json_body(X, id="a" * 100_000)
        head = b"POST /v2/models/model/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        request = head % len(body) + body
        with server.connect() as connection:
            for part in (request[:20], request[20:] + request[:20], request[20:]):
                connection.sendall(part)
                time.sleep(0.2)
            connection.shutdown(socket.SHUT_WR)
            answers = read_all(connection)
        assert answers.count(b"HTTP/1.1 200 ") == 2
