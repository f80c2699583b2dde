"""Connections that are bounded in bytes and time in each phase: head, body, answer, and between.

uvicorn's protocol on httptools, with the parts that buffer without bound taken over. Its parser
cannot be stopped at the end of a request, so it is given no byte behind that end before the request
is answered; what else has come by then is kept, at most one read, and nothing more is read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .budget import Budget
from .guard import OPEN, Receive, Scope, Send, answer

# Bytes and fields of a head; bytes of a chunked body's sizes, extensions and trailers.
LARGEST_HEAD = 1 << 16
MOST_FIELDS = 256
LARGEST_FRAMING = 1 << 16
# Bytes of such framing that a byte of content pays for: chunks of one byte have five.
_PAID = 8
# Connections over the limit that may ask for health, or be told that there are too many, and the
# seconds that they have for it.
SURPLUS = 32
_SURPLUS_SECONDS = 5.0
# As many more are told so at once, and drained for a while: closing a connection whose request is
# unread resets it, and the client never sees the answer. The rest are closed without it.
_DRAIN_SECONDS = 1.0

# Bytes of a chunked body that are parsed before others get their turn, a stop counted as so many:
# each may hold thousands of chunks.
_TURN, _STOP = 1 << 13, 64

_FULL = "this server has as many connections as it takes; try again later"
_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Limits:
    """What bounds a process's connections. ``timeout`` and ``keep_alive`` are in seconds.

    ``refused`` is called with what was exceeded, ``counted`` with 1 and -1 as connections come and
    go.
    """

    timeout: float
    connections: int
    body: int
    budget: Budget
    refused: Callable[[str], None]
    counted: Callable[[int], None]


class _Flow(FlowControl):
    """Does not resume reading while bytes that came ahead of their turn are kept."""

    kept = False

    def resume_reading(self) -> None:
        if not self.kept:
            super().resume_reading()


class _Connection(HttpToolsProtocol):
    """A connection from its first byte to its last; ``limits`` is set by a subclass."""

    limits: Limits
    # Phases come and go faster than timers are worth: one timer looks whether the deadline of the
    # phase has passed, and is set anew only where that comes sooner.
    _watch: asyncio.TimerHandle | None = None
    _watch_at = 0.0
    _deadline: float | None = None
    _in_head = False
    _unread: asyncio.TimerHandle | None = None
    _answer_end: float | None = None  # when the answer that is being sent has to be read
    _surplus = False
    _in_body = False
    _complete = False  # the request that was begun last
    _upgraded = False  # nothing that follows is HTTP
    _draining = False  # nothing that follows is looked at
    _unsupported = False  # a transfer encoding other than chunked
    _overrun = False
    _left: int | None = None  # bytes of the body, where the head tells
    _size = 0  # bytes of the head, or of a chunked body's framing
    _discarded = 0
    _ahead = b""
    _tail = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._lease = self.limits.budget.lease()
        self.limits.counted(1)
        over = len(self.connections) - self.limits.connections
        if over > 0:
            self._surplus = True
            self._wait(min(_SURPLUS_SECONDS, self.limits.timeout))
            self.app = _only_health(self.app, self.limits.refused)
        else:
            self._wait(self.timeout_keep_alive)
        if over > 2 * SURPLUS:
            self._refuse(503, _FULL, "connections")
        elif over > SURPLUS:
            self.limits.refused("connections")
            self.transport.write(_error_response(503, _FULL))
            self.transport.write_eof()
            self._draining = True
            self._wait(min(_DRAIN_SECONDS, self.limits.timeout))

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        if self._watch is not None:
            self._watch.cancel()
        self._take_ahead()
        if self._unread is not None:
            self._unread.cancel()
        self.limits.counted(-1)
        super().connection_lost(exc)

    # Bytes from the client

    def data_received(self, data: bytes) -> None:
        if self._draining:
            self._discarded += len(data)
            if self._discarded > LARGEST_HEAD:
                self._abort()
            return
        at = work = 0
        while at < len(data) and not self._upgraded and not self.transport.is_closing():
            if self._waits():
                self._keep(data[at:])
                return
            if work > _TURN:
                self._keep(data[at:])
                self.loop.call_soon(self._go_on)
                return
            end = self._next_end(data, at)
            if not self._in_body or self._left is None:
                work += _STOP + end - at
                self._size += end - at
                if not self._in_body and self._size > LARGEST_HEAD:
                    self._refuse(431, "the head of the request is too large", "head")
                    return
            self._parse(memoryview(data)[at:end])
            at = end

    def _waits(self) -> bool:
        """Whether a request is complete and its answer is not."""
        return self._complete and not self.cycle.response_complete

    def _next_end(self, data: bytes, at: int) -> int:
        """Find where the parser may have to stop: the end of a head or of a body."""
        if self._in_body and self._left is not None:
            end = min(len(data), at + self._left)
            self._left -= end - at
            return end
        # A chunked body ends like a head. What is found within it is a stop too many.
        joint = (self._tail + data[at : at + 3]).find(_END)
        if joint >= 0:
            end = at + joint + len(_END) - len(self._tail)
        else:
            found = data.find(_END, at)
            end = len(data) if found < 0 else found + len(_END)
        if self._in_body:
            end = min(end, at + _TURN)
        # What ends with it has been found; else the next bytes may complete it.
        last = self._tail + data[max(at, end - 4) : end]
        self._tail = b"" if last.endswith(_END) else last[-3:]
        return end

    def _parse(self, part: memoryview) -> None:
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            self._upgraded = True
            if self._complete:
                self.cycle.keep_alive = False  # CONNECT as well: what follows is never read
        except httptools.HttpParserCallbackError:
            self._refuse(400, "this is not HTTP/1.1: the target cannot be read", "malformed")
            return
        except httptools.HttpParserError as error:
            self._refuse(400, f"this is not HTTP/1.1: {error}", "malformed")
            return
        if self._overrun:
            self._refuse(400, "this is not HTTP/1.1: two requests in one", "malformed")
        elif self._unsupported:
            self._refuse(501, "of the transfer encodings, this server reads chunked alone", "head")
        elif not self._in_body and len(self.headers or ()) > MOST_FIELDS:
            self._refuse(431, f"the head has more than {MOST_FIELDS} fields", "head")
        elif self._in_body and self._left is None and self._size > LARGEST_FRAMING:
            self._refuse(
                431, "the sizes, extensions and trailers of the chunked body are too large", "head"
            )
        elif self._discarded > self.limits.body:
            self._abort()

    def _keep(self, data: bytes) -> None:
        """Keep what came before its turn, and read no more until then."""
        self.flow.pause_reading()
        self.flow.kept = True  # type: ignore[attr-defined]
        if self._lease.try_take(len(data)):
            self._ahead += data
            return
        self.limits.refused("memory")
        if self._waits():
            self._end_with_answer()
        else:
            self._abort()

    def _take_ahead(self) -> bytes:
        ahead, self._ahead = self._ahead, b""
        if ahead:
            self._lease.release()
        self.flow.kept = False  # type: ignore[attr-defined]
        return ahead

    def _go_on(self) -> None:
        """Go on with what was kept."""
        ahead = self._take_ahead()
        if self.transport.is_closing():
            return
        if ahead:
            self.data_received(ahead)
        cycle = self.cycle
        # There is none yet where all that came were empty lines before the first request.
        if cycle is None or cycle.response_complete or len(cycle.body) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()  # else whoever takes the body does so

    # What the parser finds

    def on_message_begin(self) -> None:
        self._overrun = self._waits()
        if not self._overrun:
            super().on_message_begin()
            self._complete = False
            if not self._surplus:
                self._wait(self.limits.timeout, in_head=True)

    def on_url(self, url: bytes) -> None:
        if not self._overrun:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers are no headers: a proxy in front has not seen them. One too many is refused.
        if not self._in_body and not self._overrun and len(self.headers) <= MOST_FIELDS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._overrun or len(self.headers) > MOST_FIELDS:
            return
        self._wait(None)
        names = dict(self.headers)
        self._left = int(names.get(b"content-length", 0))
        if b"transfer-encoding" in names:
            self._left = None
            codings = [value for name, value in self.headers if name == b"transfer-encoding"]
            if b",".join(codings).strip().lower() != b"chunked":
                self._unsupported = True
                return
        super().on_headers_complete()  # raises where the target cannot be read
        self._in_body = True
        self._size = self._discarded = 0
        if self._surplus:
            self._end_with_answer()

    def on_body(self, body: bytes) -> None:
        if not self._in_body or self._overrun:
            return
        self._size = max(0, self._size - (1 + _PAID) * len(body))
        if self.cycle.response_complete:
            self._discarded += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._in_body or self._overrun:
            return
        self._in_body, self._complete, self._size = False, True, 0
        super().on_message_complete()
        if self.cycle.response_complete:
            self._wait(self.timeout_keep_alive)

    # Answers

    def on_response_complete(self) -> None:
        """Go on with what came ahead; the rest of a body that nobody read is discarded."""
        self.server_state.total_requests += 1
        self._answer_end = None
        ends = self.transport.is_closing() or self._in_body
        self._wait(self.limits.timeout if ends else self.timeout_keep_alive)
        self._go_on()

    def _end_with_answer(self) -> None:
        """Close behind the answer, and tell so where it has not begun."""
        cycle = self.cycle
        cycle.keep_alive = False
        cycle.default_headers = [*cycle.default_headers, (b"connection", b"close")]

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._answer_end is None:
            self._answer_end = self.loop.time() + self.limits.timeout
        if self._unread is None:
            self._unread = self.loop.call_at(self._answer_end, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _cut_off(self) -> None:
        self.limits.refused("answer")
        self._abort()

    def _refuse(self, status: int, error: str, reason: str) -> None:
        """Answer with an error, where no answer was begun, and close."""
        self.limits.refused(reason)
        if self._in_body:
            if self.cycle.response_started:
                self._abort()
                return
            self.cycle.disconnected = True  # whoever waits for the body ends without an answer
        self.transport.write(_error_response(status, error))
        self.transport.close()
        self._wait(self.limits.timeout)

    # Time

    def _wait(self, seconds: float | None, *, in_head: bool = False) -> None:
        """Give the phase that begins ``seconds``, or for ever, and drop the last one's deadline."""
        self._in_head = in_head
        if seconds is None:
            self._deadline = None
            return
        self._deadline = self.loop.time() + seconds
        if self._watch is None or self._deadline < self._watch_at:
            self._look_later()

    def _look_later(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = None
        if self._deadline is not None:
            self._watch_at = self._deadline
            self._watch = self.loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        if self._deadline is None or self.loop.time() < self._deadline:
            self._look_later()
            return
        self._watch = self._deadline = None
        if self._in_head:
            self._late_head()
        else:
            self._abort()

    def _late_head(self) -> None:
        seconds = self.limits.timeout
        self._refuse(408, f"the head of the request did not come within {seconds:g} s", "head")

    def _abort(self) -> None:
        """Close without waiting for the client to read what is left of an answer."""
        self.transport.abort()


def connection_class(limits: Limits) -> type[HttpToolsProtocol]:
    """Make the class of connections with these limits."""
    return type("BoundedConnection", (_Connection,), {"limits": limits})


def _error_response(status: int, error: str) -> bytes:
    body = json.dumps({"error": error}).encode()
    lines = [
        STATUS_LINE[status],
        b"content-type: application/json\r\nconnection: close\r\n",
        b"retry-after: 1\r\n" if status == 503 else b"",
        b"content-length: %d\r\n\r\n" % len(body),
        body,
    ]
    return b"".join(lines)


def _only_health(app: Any, refused: Callable[[str], None]) -> Any:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].removesuffix("/") in OPEN:
            await app(scope, receive, send)
            return
        refused("connections")
        await answer(send, 503, _FULL)

    return serve
