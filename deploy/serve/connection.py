"""HTTP connections bounded in bytes and time in every phase: head, body, response, idle.

Extends uvicorn's httptools protocol and replaces the parts that buffer without bound. The parser
cannot be stopped at the end of a request, so it gets no bytes beyond that end until the request is
answered. Bytes that arrive earlier (at most one read) are held back, and reading stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .budget import Budget
from .connection_answers import FULL, dated, error_response, health_only

# Most bytes and fields of a head; most bytes of chunk sizes, extensions and trailers in a body.
MAX_HEAD = 1 << 16
MAX_FIELDS = 256
MAX_FRAMING = 1 << 16
# Bytes of chunked framing allowed for each byte of content; a chunk of one byte needs five.
_FRAMING_PER_BYTE = 8
# Connections above the limit that may still ask for health (all else is answered 503), and their
# time for it in seconds.
MAX_SURPLUS = 32
_SURPLUS_SECONDS = 5.0
# As many more are answered 503 at once and drained for a while: closing a connection with an unread
# request resets it, and the client never sees the response. Any beyond are closed immediately.
_DRAIN_SECONDS = 1.0

# Bytes of chunked body parsed before other tasks get a turn, and how many of them a parser stop
# counts for: one slice may hold thousands of chunks.
_PARSE_SLICE, _STOP_COST = 1 << 13, 64

_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Limits:
    """Bounds of a process's connections.

    Attributes:
        timeout: Seconds for a request's head, and for the client to read a response.
        connections: Most connections.
        body: Most bytes of an unread body that are discarded.
        budget: Bounds the bytes of pipelined requests that are held back.
        on_refusal: Called with the reason (one of ``metrics.REASONS``) when a limit is exceeded.
        on_count_change: Called with 1 when a connection opens and with -1 when it closes.

    """

    timeout: float
    connections: int
    body: int
    budget: Budget
    on_refusal: Callable[[str], None]
    on_count_change: Callable[[int], None]


class _HeldFlowControl(FlowControl):
    """Does not resume reading while bytes are held back."""

    held_back = False

    def resume_reading(self) -> None:
        if not self.held_back:
            super().resume_reading()


class _Connection(HttpToolsProtocol):
    """One connection; a subclass sets ``limits``."""

    limits: Limits
    # Phases change too often to set a timer for each. One timer checks the deadline of the current
    # phase, and is only reset when the next deadline is earlier.
    _timer: asyncio.TimerHandle | None = None
    _timer_at = 0.0
    _deadline: float | None = None
    _in_head = False
    _read_timer: asyncio.TimerHandle | None = None
    _read_deadline: float | None = None  # for the client to have read the current response
    _surplus = False
    _in_body = False
    _complete = False  # the last request has been received in full
    _upgraded = False  # what follows is not HTTP
    _draining = False  # what follows is discarded
    _unsupported = False  # a transfer encoding other than chunked
    _overrun = False
    _body_left: int | None = None  # bytes of the body still to come, if the head gives its length
    _size = 0  # bytes of the head, or of a chunked body's framing
    _discarded = 0
    _pending = b""
    _tail = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _HeldFlowControl(transport)
        self._lease = self.limits.budget.lease()
        self.limits.on_count_change(1)
        over = len(self.connections) - self.limits.connections
        if over > 0:
            self._surplus = True
            self._set_deadline(min(_SURPLUS_SECONDS, self.limits.timeout))
            self.app = health_only(self.app, self.limits.on_refusal)
        else:
            self._set_deadline(self.timeout_keep_alive)
        self.app = dated(self.app)
        if over > 2 * MAX_SURPLUS:
            self._refuse(503, FULL, "connections")
        elif over > MAX_SURPLUS:
            self.limits.on_refusal("connections")
            self.transport.write(error_response(503, FULL))
            self.transport.write_eof()
            self._draining = True
            self._set_deadline(min(_DRAIN_SECONDS, self.limits.timeout))

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        if self._timer is not None:
            self._timer.cancel()
        self._take_pending()
        if self._read_timer is not None:
            self._read_timer.cancel()
        self.limits.on_count_change(-1)
        super().connection_lost(exc)

    # Bytes from the client

    def data_received(self, data: bytes) -> None:
        if self._draining:
            self._discarded += len(data)
            if self._discarded > MAX_HEAD:
                self._abort()
            return
        at = work = 0
        while at < len(data) and not self._upgraded and not self.transport.is_closing():
            if self._awaits_response():
                self._hold_back(data[at:])
                return
            if work > _PARSE_SLICE:
                self._hold_back(data[at:])
                self.loop.call_soon(self._resume)
                return
            end = self._next_stop(data, at)
            if not self._in_body or self._body_left is None:
                work += _STOP_COST + end - at
                self._size += end - at
                if not self._in_body and self._size > MAX_HEAD:
                    self._refuse(431, "the request head is too large", "head")
                    return
            self._parse(memoryview(data)[at:end])
            at = end

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep open for the answer what the client has half-closed after its request."""
        if self._draining or not self._awaits_response():
            return False  # closes
        self._close_after_response()
        return True

    def _awaits_response(self) -> bool:
        """Return whether a request has been received in full but not answered."""
        return self._complete and not self.cycle.response_complete

    def _next_stop(self, data: bytes, at: int) -> int:
        """Return the next offset where the parser may have to stop: the end of a head or body."""
        if self._in_body and self._body_left is not None:
            end = min(len(data), at + self._body_left)
            self._body_left -= end - at
            return end
        # A chunked body ends as a head does. A match inside the body is only one stop too many.
        joint = (self._tail + data[at : at + 3]).find(_END)
        if joint >= 0:
            end = at + joint + len(_END) - len(self._tail)
        else:
            found = data.find(_END, at)
            end = len(data) if found < 0 else found + len(_END)
        if self._in_body:
            end = min(end, at + _PARSE_SLICE)
        # A match that ends here has been handled; otherwise the next bytes may complete one.
        last = self._tail + data[max(at, end - 4) : end]
        self._tail = b"" if last.endswith(_END) else last[-3:]
        return end

    def _parse(self, part: memoryview) -> None:
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            self._upgraded = True
            if self._complete:
                self.cycle.keep_alive = False  # CONNECT, too: what follows is never read
        except httptools.HttpParserCallbackError:
            self._refuse(400, "not valid HTTP/1.1: the target cannot be parsed", "malformed")
            return
        except httptools.HttpParserError as error:
            self._refuse(400, f"not valid HTTP/1.1: {error}", "malformed")
            return
        if self._overrun:
            self._refuse(400, "not valid HTTP/1.1: two requests in one", "malformed")
        elif self._unsupported:
            self._refuse(501, "chunked is the only supported transfer encoding", "head")
        elif not self._in_body and len(self.headers or ()) > MAX_FIELDS:
            self._refuse(431, f"the request head has more than {MAX_FIELDS} fields", "head")
        elif self._in_body and self._body_left is None and self._size > MAX_FRAMING:
            self._refuse(
                431, "the chunk sizes, extensions and trailers of the body are too large", "head"
            )
        elif self._discarded > self.limits.body:
            self._abort()

    def _hold_back(self, data: bytes) -> None:
        """Hold back bytes that came too early, and stop reading until their turn."""
        self.flow.pause_reading()
        self.flow.held_back = True  # type: ignore[attr-defined]
        if self._lease.try_take(len(data)):
            self._pending += data
            return
        self.limits.on_refusal("memory")
        if self._awaits_response():
            self._close_after_response()
        else:
            self._abort()

    def _take_pending(self) -> bytes:
        ahead, self._pending = self._pending, b""
        if ahead:
            self._lease.release()
        self.flow.held_back = False  # type: ignore[attr-defined]
        return ahead

    def _resume(self) -> None:
        """Process the bytes that were held back."""
        ahead = self._take_pending()
        if self.transport.is_closing():
            return
        if ahead:
            self.data_received(ahead)
        cycle = self.cycle
        # There is no cycle yet if only empty lines preceded the first request.
        if cycle is None or cycle.response_complete or len(cycle.body) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()  # otherwise the consumer of the body does

    # Parser callbacks

    def on_message_begin(self) -> None:
        self._overrun = self._awaits_response()
        if not self._overrun:
            super().on_message_begin()
            self._complete = False
            if not self._surplus:
                self._set_deadline(self.limits.timeout, in_head=True)

    def on_url(self, url: bytes) -> None:
        if not self._overrun:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers are not headers: a proxy in front has not seen them. The first field above the
        # limit is kept, so that the head is refused.
        if not self._in_body and not self._overrun and len(self.headers) <= MAX_FIELDS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._overrun or len(self.headers) > MAX_FIELDS:
            return
        self._set_deadline(None)
        names = dict(self.headers)
        self._body_left = int(names.get(b"content-length", 0))
        if b"transfer-encoding" in names:
            self._body_left = None
            codings = [value for name, value in self.headers if name == b"transfer-encoding"]
            if b",".join(codings).strip().lower() != b"chunked":
                self._unsupported = True
                return
        super().on_headers_complete()  # raises if the target cannot be parsed
        self._in_body = True
        self._size = self._discarded = 0
        if self._surplus:
            self._close_after_response()

    def on_body(self, body: bytes) -> None:
        if not self._in_body or self._overrun:
            return
        self._size = max(0, self._size - (1 + _FRAMING_PER_BYTE) * len(body))
        if self.cycle.response_complete:
            self._discarded += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._in_body or self._overrun:
            return
        self._in_body, self._complete, self._size = False, True, 0
        super().on_message_complete()
        if self.cycle.response_complete:
            self._set_deadline(self.timeout_keep_alive)

    # Responses

    def on_response_complete(self) -> None:
        """Process what was held back; the unread rest of a body is discarded."""
        self.server_state.total_requests += 1
        self._read_deadline = None
        ends = self.transport.is_closing() or self._in_body
        self._set_deadline(self.limits.timeout if ends else self.timeout_keep_alive)
        self._resume()

    def _close_after_response(self) -> None:
        """Close the connection after the response, and announce it if it has not begun."""
        cycle = self.cycle
        cycle.keep_alive = False
        cycle.default_headers = [*cycle.default_headers, (b"connection", b"close")]

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._read_deadline is None:
            self._read_deadline = self.loop.time() + self.limits.timeout
        if self._read_timer is None:
            self._read_timer = self.loop.call_at(self._read_deadline, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _cut_off(self) -> None:
        self.limits.on_refusal("answer")
        self._abort()

    def _refuse(self, status: int, error: str, reason: str) -> None:
        """Send an error response, unless one has begun, and close."""
        self.limits.on_refusal(reason)
        if self._in_body:
            if self.cycle.response_started:
                self._abort()
                return
            self.cycle.disconnected = True  # ends whoever waits for the body, without a response
        self.transport.write(error_response(status, error))
        self.transport.close()
        self._set_deadline(self.limits.timeout)

    # Timeouts

    def _set_deadline(self, seconds: float | None, *, in_head: bool = False) -> None:
        """Replace the deadline: ``seconds`` from now, or none."""
        self._in_head = in_head
        if seconds is None:
            self._deadline = None
            return
        self._deadline = self.loop.time() + seconds
        if self._timer is None or self._deadline < self._timer_at:
            self._arm_timer()

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._deadline is not None:
            self._timer_at = self._deadline
            self._timer = self.loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        if self._deadline is None or self.loop.time() < self._deadline:
            self._arm_timer()
            return
        self._timer = self._deadline = None
        if self._in_head:
            self._head_timed_out()
        else:
            self._abort()

    def _head_timed_out(self) -> None:
        seconds = self.limits.timeout
        self._refuse(408, f"the request head did not arrive within {seconds:g} s", "head")

    def _abort(self) -> None:
        """Close without waiting for the client to read the rest of a response."""
        self.transport.abort()


def connection_class(limits: Limits) -> type[HttpToolsProtocol]:
    """Create a connection class for uvicorn with these limits."""
    return type("BoundedConnection", (_Connection,), {"limits": limits})
