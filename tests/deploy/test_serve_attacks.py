"""Clients that try to exhaust the memory of `fanin serve` or to block other clients.

Each test polls the server's health and watches its memory meanwhile. The times that it prints
(pytest -s) are for information only; no test depends on them.
"""

import contextlib
import gzip
import http.client
import json
import re
import socket
import threading
import time
from pathlib import Path

import pytest

from .._waiting import PATIENCE, wait_until
from ._serving import (
    HEADER,
    INFER,
    Server,
    X,
    call,
    in_threads,
    json_body,
    read_all,
    requires_serving,
    save,
    wide_model,
)

requires_serving()

MOST = 100 << 20  # bytes by which the server's memory may grow
HELD = 24 << 20  # --max-buffered
TOKEN = "token-of-these-attacks"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for all tests, which no attack changes. Responses have 16 KiB per row."""
    folder = tmp_path_factory.mktemp("attacked")
    model = save(wide_model(4, 4096), folder / "m.onnx")
    options = ["--threads", 1, "--concurrency", 1, "--poll", 0, "--timeout", 2]
    options += ["--max-buffered", HELD, "--max-connections", 40]
    with Server(model, *options, log=folder / "log") as running:
        assert call(running, "POST", INFER, json_body(X))[0] == 200
        yield running
        assert call(running, "POST", INFER, json_body(X))[0] == 200
    assert "Traceback" not in running.log.read_text()


def resident(server):
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)[1]) << 10


@contextlib.contextmanager
def watched(server, what):
    """Poll the health route within the block; it must always respond, with bounded memory."""
    before = most = resident(server)
    times, statuses, over = [], [], threading.Event()

    def look():
        nonlocal most
        while not over.wait(0.02):
            most = max(most, resident(server))

    def ask():
        while not over.wait(0.02 if times else 0):
            start = time.perf_counter()
            statuses.append(call(server, "GET", "/v2/health/ready")[0])
            times.append(time.perf_counter() - start)

    threads = [threading.Thread(target=look), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200}
    grown = (most - before) / 2**20
    print(f"\n{what}: health in {max(times) * 1e3:.0f} ms at most, memory + {grown:.0f} MiB")
    assert most - before < MOST


def metric(server, name):
    text = call(server, "GET", "/metrics")[1].decode()
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])


def push(connection, block, most):
    """Send blocks until ``most`` bytes are sent or the other side closes; return the bytes sent."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < most:
            connection.sendall(block)
            sent += len(block)
    return sent


CHUNKED = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "block"),
    [
        (b"0\r\n", b"".join(b"a%d: %s\r\n" % (number, b"x" * 50) for number in range(1000))),
        (b"0\r\na:", b"x" * 65536),
        (b"1;", b"x" * 65536),
        (b"1;a=", b"x" * 65536),
        (b"", b"0" * 65536),
    ],
    ids=["trailers", "a trailer", "extension", "value of an extension", "size"],
)
def test_the_framing_of_a_chunked_body_is_bounded(server, begin, block):
    with watched(server, "chunks' framing"), server.connect() as connection:
        sent = push(connection, CHUNKED + begin, 1) + push(connection, block, 256 << 20)
        assert sent < 64 << 20  # what the system's socket buffers take
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(65536)
        assert answer == b"" or re.match(rb"HTTP/1.1 4(31|00) ", answer)


def test_many_tiny_chunks_do_not_block_other_clients(server):
    ended = []

    def drip():
        with server.connect() as connection:
            push(connection, CHUNKED + b"1\r\n{\r\n" * 1000, 1)
            push(connection, b"1\r\n \r\n" * 10_000, 2 << 20)
            with contextlib.suppress(ConnectionError):
                ended.append(connection.recv(100)[:12])

    with watched(server, "tiny chunks"):
        in_threads(drip, 4)
    assert set(ended) <= {b"HTTP/1.1 408", b""}


def test_pipelined_requests_are_answered_one_after_the_other(server):
    """Any number of them, for a client that reads its responses."""
    pair = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    end = b"GET /v2/none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with watched(server, "pipelined"), server.connect() as connection:
        sender = threading.Thread(target=lambda: connection.sendall(pair * 1000 + end))
        sender.start()
        answers = connection.makefile("rb").read()
        sender.join()
    assert answers.count(b"HTTP/1.1 200 OK") == 2000
    assert answers.count(b'"extensions"') == 1000
    assert answers.index(b'"error"') > answers.rindex(b'"extensions"')


def test_pipelined_requests_of_clients_that_do_not_read_are_not_read_either(server):
    block = b"GET /openapi.json HTTP/1.1\r\n\r\n" * 5000
    sent = []

    def flood():
        with server.connect(window=4096) as connection:
            sent.append(push(connection, block, 64 << 20))

    cut_off = metric(server, 'fanin_refusals_total{reason="answer"}')
    with watched(server, "20 floods"):
        in_threads(flood, 20)
    assert max(sent) < 64 << 20
    assert metric(server, 'fanin_refusals_total{reason="answer"}') >= cut_off + 20
    wait_until(lambda: metric(server, "fanin_buffered_bytes") == 0, "fanin_buffered_bytes == 0")


def test_endless_bodies_are_bounded_in_bytes_and_time(server):
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n"
    refused = metric(server, 'fanin_refusals_total{reason="memory"}')
    statuses = []

    def stall():
        with server.connect() as connection:
            push(connection, head, 1)
            push(connection, bytes(1 << 20), 8 << 20)
            with contextlib.suppress(ConnectionError):
                statuses.append(connection.recv(12))

    with watched(server, "unfinished bodies"):
        in_threads(stall, 12)
    assert set(statuses) == {b"HTTP/1.1 408", b"HTTP/1.1 503"}
    assert metric(server, 'fanin_refusals_total{reason="memory"}') > refused
    wait_until(lambda: metric(server, "fanin_buffered_bytes") == 0, "fanin_buffered_bytes == 0")


def wide_request(rows):
    """A small request whose response has 16 KiB per row."""
    entry = {"name": "x", "shape": [rows, 4], "datatype": "FP32"}
    entry["parameters"] = {"binary_data_size": rows * 16}
    text = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    head = json.dumps(text).encode()
    body = head + bytes(rows * 16)
    lines = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    return f"{lines}{HEADER}: {len(head)}\r\n\r\n".encode() + body


def test_unread_responses_are_bounded_in_bytes_and_time(server):
    request = wide_request(512)  # 8 MiB
    cut_off = metric(server, 'fanin_refusals_total{reason="answer"}')
    refused = metric(server, 'fanin_refusals_total{reason="memory"}')
    connections = []
    with contextlib.ExitStack() as stack, watched(server, "unread answers"):
        for _ in range(24):
            connections.append(stack.enter_context(server.connect()))
            connections[-1].sendall(request)
        statuses = sorted(connection.recv(12, socket.MSG_WAITALL) for connection in connections)
        assert statuses[0] == b"HTTP/1.1 200"
        assert statuses[-1] == b"HTTP/1.1 503"
        wait_until(lambda: metric(server, "fanin_buffered_bytes") == 0, "fanin_buffered_bytes == 0")
    assert metric(server, 'fanin_refusals_total{reason="answer"}') > cut_off
    assert metric(server, 'fanin_refusals_total{reason="memory"}') > refused
    # A client that reads gets the whole response.
    with server.connect() as connection:
        connection.sendall(request)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 200
        assert len(answer.read()) > 8 << 20


def test_an_answer_that_was_the_last_is_not_waited_for_either(server):
    request = wide_request(16).replace(b"Host: x", b"Host: x\r\nConnection: close")
    with server.connect(window=4096) as connection:
        connection.sendall(request)
        wait_until(lambda: metric(server, "fanin_connections") <= 1, "fanin_connections <= 1")


@pytest.mark.parametrize("element", [b"[]", b"{}", b'""', b"0", b'{"":0}', rb'"\n"'], ids=str)
def test_compressed_json_of_many_elements_is_refused_before_it_is_parsed(server, element):
    count = (20 << 20) // (len(element) + 1)
    body = gzip.compress(b'{"inputs":[' + (element + b",") * count + element + b"]}", 1)
    with watched(server, f"gzip of {element.decode()}"):
        headers = {"Content-Encoding": "gzip"}
        status, answer = call(server, "POST", INFER, body, headers)
    assert status == 413
    assert "the JSON has more than" in json.loads(answer)["error"]


def test_the_largest_json_does_not_block_other_clients(server):
    """Two at a time. They fail: the budget is too small to parse them, or they are not requests."""
    body = b'{"inputs":[' + b"0.123," * 400_000 + b"0]}"
    statuses = []
    with watched(server, "large JSON"):
        in_threads(lambda: statuses.append(call(server, "POST", INFER, body)[0]), 4)
    assert set(statuses) <= {400, 503}
    assert 400 in statuses


def test_connections_over_the_limit_get_an_error_but_may_ask_for_health(start, model):
    with start(model, "--max-connections", 40) as server, contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(server.connect()).sendall(b"GET /v2 HTTP/1.1\r\n")
        for path, status in (("/v2/health/live", 200), ("/v2/health/ready", 200), ("/v2", 503)):
            client = http.client.HTTPConnection(server.address, timeout=PATIENCE)
            client.request("GET", path)
            answer = client.getresponse()
            assert (answer.status, answer.getheader("connection")) == (status, "close")
            body = answer.read()
            client.close()
        assert "has reached its connection limit" in json.loads(body)["error"]
        assert answer.getheader("retry-after") == "1"
        # Once idle connections fill the surplus, others get only the error message.
        for _ in range(32):
            stack.enter_context(server.connect())
        with server.connect() as connection:
            answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert "connection limit" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        stack.close()
        wait_until(lambda: call_or_none(server, "/v2") == 200, "there is room again")
        assert metric(server, 'fanin_refusals_total{reason="connections"}') > 0


def test_connections_that_ask_for_nothing_make_room(server):
    with contextlib.ExitStack() as stack:
        for number in range(40 + 32):
            connection = stack.enter_context(server.connect())
            if number < 40:
                connection.sendall(b"GET /v2 HTTP/1.1\r\n")
        wait_until(lambda: call_or_none(server, "/v2") == 200, "their time is over")


def call_or_none(server, path):
    with contextlib.suppress(OSError):
        return call(server, "GET", path)[0]


def test_no_body_is_waited_for_without_the_token(start, model):
    """Nor can a trailer carry the token, since a proxy in front has not seen it."""
    begun = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailer = f"Authorization: Bearer {TOKEN}\r\n".encode()
    with start(model, "--timeout", 1, env={"FANIN_SERVE_TOKEN": TOKEN}) as server:
        for body in (b"0\r\n" + trailer + b"\r\n", b""):
            with server.connect() as connection:
                connection.sendall(begun + body)
                answer = connection.recv(65536)
                assert answer.startswith(b"HTTP/1.1 401 ")
                if not body:  # the rest is discarded for a while
                    answers = read_all(connection)
                    assert answers == b"" or b"a token is required" in answers
