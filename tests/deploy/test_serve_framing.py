"""Request framing: responses do not depend on how bytes arrive, and nothing is read too early.

Without sockets: bytes go straight into the protocol, in pieces that the test chooses.
"""

import asyncio
import json
import re
import time

import pytest

from .._waiting import LoopClock
from ._serving import requires_serving

requires_serving()

import uvicorn  # noqa: E402
from uvicorn.server import ServerState  # noqa: E402

from fanin.deploy.serve.budget import Budget  # noqa: E402
from fanin.deploy.serve.connection import (  # noqa: E402
    MAX_FIELDS,
    MAX_HEAD,
    MAX_SURPLUS,
    Limits,
    connection_class,
)
from fanin.deploy.serve.guard import Guard  # noqa: E402


class Transport(asyncio.Transport):
    """A transport that records what is written, and whether reading is paused."""

    def __init__(self):
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.reading, self.closing, self.aborted, self.ended = True, False, False, False

    def write(self, data):
        assert not self.closing
        self.written += data

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    def abort(self):
        self.closing = self.aborted = True

    def write_eof(self):
        self.ended = True

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


class Client:
    """A connection to an app that echoes the request once ``answering`` is set."""

    def __init__(self, *, timeout=60, budget=1 << 20, token=None, body=1 << 20, state=None):
        self.answering = asyncio.Event()
        self.answering.set()
        self.reading = asyncio.Event()
        self.reading.set()
        self.budget = Budget(budget)
        self.refused = []
        guard = Guard(self._app, token, self.budget, lambda: False, False)
        config = uvicorn.Config(guard, lifespan="off", ws="none", log_config=None)
        limits = Limits(timeout, 10, body, self.budget, self.refused.append, lambda _by: None)
        self.protocol = connection_class(limits)(config, state or ServerState(), {})
        self.transport = Transport()
        self.protocol.connection_made(self.transport)

    async def _app(self, scope, receive, send):
        await self.reading.wait()
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        await self.answering.wait()
        fields = [name.decode() for name, _ in scope["headers"]]
        text = json.dumps([scope["method"], scope["path"], body.decode(), fields]).encode()
        length = (b"content-length", str(len(text)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": text})

    async def send(self, *parts):
        """Deliver the parts as a transport would: not while reading is paused."""
        for part in parts:
            while not self.transport.reading and not self.transport.closing:
                await asyncio.sleep(0)
            if self.transport.closing:
                return
            self.protocol.data_received(part)
            await settle()

    @property
    def answers(self):
        found = re.findall(rb"\r\n\r\n(\[.*?\]\])", self.transport.written)
        return [json.loads(text) for text in found]

    @property
    def error(self):
        head, _, body = self.transport.written.partition(b"\r\n\r\n")
        assert b"content-type: application/json" in head
        return int(head.split()[1]), json.loads(body)["error"]


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


STREAM = (
    b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    b"\r\nPOST /b HTTP/1.1\r\nContent-Length: 11\r\n\r\nab\r\n\r\ncd\r\n\r"
    b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"8;x=y\r\n\r\n\r\nab\r\n\r\n1\r\nc\r\n0\r\nToken: t\r\n\r\n"
    b"POST /d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    b"POST /e HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    b"GET /never HTTP/1.1\r\n\r\n"
)
ANSWERS = [
    ["GET", "/a", "", ["host"]],
    ["POST", "/b", "ab\r\n\r\ncd\r\n\r", ["content-length"]],
    ["POST", "/c", "\r\n\r\nab\r\nc", ["transfer-encoding"]],
    ["POST", "/d", "", ["transfer-encoding"]],
    ["POST", "/e", "", ["content-length", "connection"]],
]


def test_framing_does_not_depend_on_how_bytes_arrive():
    async def run():
        whole = [[STREAM]]
        halves = [[STREAM[:at], STREAM[at:]] for at in range(1, len(STREAM))]
        pieces = [
            [STREAM[at : at + size] for at in range(0, len(STREAM), size)] for size in range(1, 12)
        ]
        for parts in whole + halves + pieces:
            client = Client()
            await client.send(*parts)
            await settle()
            assert client.answers == ANSWERS, parts
            assert client.transport.closing
            assert client.budget.held == 0

    asyncio.run(run())


def test_nothing_is_read_or_parsed_while_a_request_behind_waits():
    async def run():
        client = Client()
        client.answering.clear()
        await client.send(b"GET /a HTTP/1.1\r\n\r\n")
        assert client.transport.reading  # so that a disconnect is noticed
        await client.send(b"GET /b HTTP/1.1\r\n\r\n" * 1000)
        assert not client.transport.reading
        assert len(client.protocol.pipeline) == 0
        assert client.budget.held == 19_000
        client.answering.set()
        for _ in range(1000):
            await settle()
        assert len(client.answers) == 1001
        assert client.transport.reading
        assert client.budget.held == 0

    asyncio.run(run())


@pytest.mark.parametrize("size", [10, 50_000])
def test_a_body_that_the_app_does_not_take_yet_is_not_read_on(size):
    async def run():
        client = Client()
        client.reading.clear()
        await client.send(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
        sent = 0
        while client.transport.reading and sent < 1_000_000:
            await client.send(chunk * (100_000 // size))
            sent += size * (100_000 // size)
            for _ in range(20):
                await settle()
        assert sent == 100_000
        client.reading.set()
        await settle()
        assert client.transport.reading
        await client.send(b"0\r\n\r\n")
        assert client.answers == [["POST", "/a", "x" * sent, ["transfer-encoding"]]]

    asyncio.run(run())


def test_pipelined_bytes_over_the_budget_close_the_connection_after_its_response():
    async def run():
        client = Client(budget=1000)
        client.answering.clear()
        await client.send(b"GET /a HTTP/1.1\r\n\r\n", b"GET /b HTTP/1.1\r\n\r\n" * 1000)
        client.answering.set()
        await settle()
        assert [answer[1] for answer in client.answers] == ["/a"]
        assert b"connection: close" in client.transport.written
        assert client.transport.closing
        assert client.refused == ["memory"]

    asyncio.run(run())


@pytest.mark.parametrize("before", [b"", b"GET /a HTTP/1.1\r\n\r\n"])
def test_empty_lines_before_a_request_are_read_over_and_the_connection_reads_on(before):
    async def run():
        client = Client()
        await client.send(before)
        await settle()
        await client.send(b"\r\n\r\n" * 500)
        await settle()
        assert client.transport.reading
        assert client.budget.held == 0
        await client.send(b"GET /b HTTP/1.1\r\n\r\n")
        assert [answer[1] for answer in client.answers][-1] == "/b"

    asyncio.run(run())


@pytest.mark.parametrize("before", [b"", b"GET /a HTTP/1.1\r\n\r\n"])
def test_empty_lines_without_room_to_keep_them_end_the_connection(before):
    async def run():
        client = Client(budget=100)
        await client.send(before)
        await settle()
        await client.send(b"\r\n\r\n" * 500 + b"GET /b HTTP/1.1\r\n\r\n")
        assert client.transport.aborted
        assert client.refused == ["memory"]

    asyncio.run(run())


def test_a_trailer_is_no_header_and_does_not_authorize():
    async def run():
        client = Client(token="secret")
        field = b"Authorization: Bearer secret\r\n"
        head = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
        await client.send(head + b"\r\n0\r\n" + field + b"\r\n")
        assert client.transport.written.startswith(b"HTTP/1.1 401 ")
        await client.send(head + field + b"\r\n0\r\n\r\n")
        assert client.answers == [["POST", "/a", "", ["transfer-encoding", "authorization"]]]

    asyncio.run(run())


@pytest.mark.parametrize(
    "request_",
    [
        b"\0\1\2 not HTTP\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\n\nGET / HTTP/1.1\n\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    ],
)
def test_malformed_http_is_answered_in_json(request_):
    async def run():
        client = Client()
        await client.send(request_)
        status, error = client.error
        assert (status, client.refused) == (400, ["malformed"])
        assert error.startswith("not valid HTTP/1.1: ")
        assert client.transport.closing

    asyncio.run(run())


def test_heads_up_to_the_limits_are_accepted_and_larger_ones_refused():
    async def run():
        head = b"GET /a HTTP/1.1\r\nX: \r\n\r\n"
        long = head.replace(b"X: ", b"X: " + b"x" * (MAX_HEAD - len(head)))
        many = b"GET /a HTTP/1.1\r\n" + b"a:b\r\n" * MAX_FIELDS + b"\r\n"
        for request in (long, many):
            client = Client()
            await client.send(request)
            assert len(client.answers) == 1
        for request, part in (
            (long.replace(b"X", b"XX"), "is too large"),
            (many.replace(b"\r\n\r\n", b"\r\nc:d\r\n\r\n"), "256 fields"),
        ):
            client = Client()
            await client.send(request)
            assert client.error[0] == 431
            assert part in client.error[1]

    asyncio.run(run())


def test_an_unread_body_is_discarded_up_to_the_size_limit():
    async def run():
        client = Client(token="secret", body=5000)
        await client.send(b"POST /a HTTP/1.1\r\nContent-Length: 9000\r\n\r\n" + bytes(100))
        assert client.transport.written.startswith(b"HTTP/1.1 401 ")
        await client.send(bytes(3000))
        assert not client.transport.closing
        await client.send(bytes(3000))
        assert client.transport.aborted

    asyncio.run(run())


def test_an_answer_has_its_time_in_all_not_for_each_part():
    async def run():
        clock = LoopClock()
        client = Client(timeout=3)
        await client.send(b"GET /a HTTP/1.1\r\n\r\n")
        client.protocol.pause_writing()
        client.protocol.resume_writing()  # the client has read a part
        clock.now += 2
        client.protocol.pause_writing()
        await settle()
        assert not client.transport.aborted
        clock.now += 2
        await settle()
        assert client.transport.aborted
        assert client.refused == ["answer"]

    asyncio.run(run())


def test_nothing_is_read_behind_a_connect_and_the_connection_is_closed():
    async def run():
        client = Client()
        await client.send(b"CONNECT /v2 HTTP/1.1\r\nHost: x\r\n\r\n" + b"a" * 100)
        assert [answer[:2] for answer in client.answers] == [["CONNECT", "/v2"]]
        assert client.transport.closing

    asyncio.run(run())


@pytest.mark.parametrize(
    "fields",
    [
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
    ],
)
def test_a_transfer_encoding_other_than_chunked_is_not_implemented(fields):
    async def run():
        client = Client()
        await client.send(b"POST /a HTTP/1.1\r\n" + fields + b"\r\n0\r\n\r\n")
        assert client.error[0] == 501
        assert "chunked is the only" in client.error[1]
        assert client.transport.closing
        assert client.answers == []

    asyncio.run(run())


def test_a_head_may_take_its_time_and_an_idle_connection_more():
    async def run():
        clock = LoopClock()
        client = Client(timeout=4)
        for _ in range(2):
            for part in (b"POST /a HTTP/1.1\r\n", b"Content-", b"Length: 2\r\n\r\na", b"b"):
                await client.send(part)
                clock.now += 1.3
        assert [answer[:3] for answer in client.answers] == [["POST", "/a", "ab"]] * 2
        clock.now += 3
        await client.send(b"GET /b HTTP/1.1\r\n\r\n")
        assert len(client.answers) == 3
        assert client.refused == []

    asyncio.run(run())


def test_each_phase_has_its_own_deadline_though_one_timer_serves_all():
    """One timer serves all phases: it notices a shorter later deadline and ignores past ones."""

    async def run():
        clock = LoopClock()
        client = Client(timeout=2)
        await client.send(b"GET /a HTTP/1.1\r\n\r\n")
        clock.now += 3  # the head's deadline has passed, but it had arrived
        await settle()
        assert not client.transport.closing
        await client.send(b"GET /b HTTP/1.1\r\n")
        clock.now += 3
        await settle()
        assert client.transport.closing
        assert b"HTTP/1.1 408 " in client.transport.written
        assert client.refused == ["head"]

    asyncio.run(run())


def test_a_client_that_half_closes_after_its_request_gets_the_answer():
    async def run():
        client = Client()
        client.answering.clear()
        await client.send(b"POST /a HTTP/1.1\r\nContent-Length: 2\r\n\r\nab")
        assert client.protocol.eof_received()
        assert not client.transport.closing
        client.answering.set()
        await settle()
        assert client.answers[0][:3] == ["POST", "/a", "ab"]
        assert b"connection: close" in client.transport.written
        assert client.transport.closing

    asyncio.run(run())


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /a HT",
        b"POST /a HTTP/1.1\r\nContent-Length: 2\r\n\r\na",
        b"GET /a HTTP/1.1\r\n\r\n",
    ],
)
def test_a_client_that_half_closes_without_a_pending_request_is_closed(sent):
    async def run():
        client = Client()
        await client.send(sent)
        assert not client.protocol.eof_received()

    asyncio.run(run())


def test_an_answer_has_the_date_at_which_it_begins(monkeypatch):
    """It may come long after its request, also while the server stops."""

    async def run():
        seconds = iter((1e9, 1e9 + 60, 1e9 + 120))
        monkeypatch.setattr(time, "time", lambda: next(seconds))
        clock = LoopClock()
        client = Client(timeout=2)
        client.answering.clear()
        await client.send(b"GET /a HTTP/1.1\r\n\r\n")
        assert client.transport.written == b""
        client.answering.set()
        await settle()
        assert dates(client) == [b"Sun, 09 Sep 2001 01:46:40 GMT"]
        await client.send(b"GET /b HTTP/1.1\r\n\r\n")
        assert dates(client)[1:] == [b"Sun, 09 Sep 2001 01:47:40 GMT"]
        await client.send(b"GET /c")
        clock.now += 3
        await settle()
        assert b"HTTP/1.1 408 " in client.transport.written
        assert dates(client)[2:] == [b"Sun, 09 Sep 2001 01:48:40 GMT"]

    asyncio.run(run())


def dates(client):
    return re.findall(rb"\r\ndate: (.*?)\r\n", client.transport.written)


def test_a_refused_connection_gets_its_answer_and_is_drained_within_bounds():
    async def run():
        clock = LoopClock()
        state = ServerState()
        state.connections.update(range(10 + MAX_SURPLUS))
        client = Client(state=state)
        assert client.error[0] == 503
        assert client.transport.ended
        assert not client.transport.closing  # closing would reset it and lose the response
        await client.send(b"GET /a HTTP/1.1\r\n\r\n")
        assert client.answers == []
        await client.send(bytes(MAX_HEAD))
        assert client.transport.aborted
        waiting = Client(state=state)
        clock.now += 2
        await settle()
        assert waiting.transport.aborted
        state.connections.update(range(10 + 2 * MAX_SURPLUS))
        assert Client(state=state).transport.closing

    asyncio.run(run())
