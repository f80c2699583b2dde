"""The outermost layer of the app: authentication, access log, draining, unhandled exceptions.

Plain ASGI, since the framework's middleware class costs a task and two queues per request.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from .budget import Budget
from .errors import error_body
from .logs import event
from .tracing import PARENT, RESPONSE, STATE, Trace

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_log = logging.getLogger("fanin.serve")

# Probes of an orchestrator, which carry no token.
OPEN = ("/v2/health/live", "/v2/health/ready")

_TRACE_FIELDS = (PARENT.encode(), STATE.encode())

# Bytes of a response sent at a time; the next ones wait until the client has read these.
_PIECE = 1 << 16
# Most characters of a path in the log.
_LOGGED = 1000

_NO_UPGRADE = (
    "this server speaks only HTTP/1.1: send the request without Upgrade (Java's HttpClient: "
    "version(HTTP_1_1), curl: --http1.1)"
)


class Guard:
    """Wraps the app; while ``draining()``, every response tells the client to disconnect.

    ``spans`` tells that they are sent, so that requests without a trace begin one.
    """

    def __init__(
        self,
        app: App,
        token: str | None,
        budget: Budget,
        draining: Callable[[], bool],
        access_log: bool,
        spans: bool = False,
    ):
        self._app = app
        self._budget = budget
        self._token = None if token is None else f"Bearer {token}".encode()
        self._draining = draining
        self._access_log = access_log
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0
        upgrade = _asks_for_upgrade(scope)
        trace = scope["fanin_trace"] = self._trace(scope)

        async def forward(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # After 408 and 413 a body may still be arriving; after a requested upgrade the
                # parser reads nothing more.
                if self._draining() or status in (408, 413) or upgrade:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
                if trace is not None:
                    field = (RESPONSE.encode(), trace.response.encode())
                    message["headers"] = [*message.get("headers", ()), field]
            for part in _in_pieces(message):
                await send(part)

        lease = scope["fanin_lease"] = self._budget.lease()
        try:
            if not self._allowed(scope):
                await answer(forward, 401, "a token is required: Authorization: Bearer …")
            elif upgrade and _has_body(scope):
                # The parser takes the body for another protocol and would pass on an empty one.
                await answer(forward, 400, _NO_UPGRADE)
            else:
                await self._app(scope, receive, forward)
        except asyncio.CancelledError:
            if not self._draining():
                raise
            if not status:
                await answer(forward, 503, "the server stopped during the request; try again")
        except Exception:
            _log.exception("unhandled exception in a request")
            if not status:
                await answer(forward, 500, "internal server error; see the server's log")
        finally:
            lease.release()
        if self._access_log or status >= 500:
            event(
                _log,
                "request",
                logging.WARNING if status >= 500 else logging.INFO,
                method=scope["method"],
                path=scope["path"][:_LOGGED],
                status=status,
                client=(scope.get("client") or [None])[0],
                ms=round((time.perf_counter() - start) * 1e3, 3),
                **(trace.fields() if trace is not None else {}),
                **scope.get("fanin", {}),
            )

    def _trace(self, scope: Scope) -> Trace | None:
        found = [
            (name.decode(), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name in _TRACE_FIELDS
        ]
        return Trace.of(found, self._spans) if found or self._spans else None

    def _allowed(self, scope: Scope) -> bool:
        if self._token is None or scope["path"].removesuffix("/") in OPEN:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._token)


def _in_pieces(message: MutableMapping[str, Any]) -> Iterator[MutableMapping[str, Any]]:
    body = message.get("body", b"")
    if len(body) <= _PIECE:
        yield message
        return
    last = (len(body) - 1) // _PIECE
    for number in range(last + 1):
        more = number < last or message.get("more_body", False)
        part = body[number * _PIECE : (number + 1) * _PIECE]
        yield {**message, "body": part, "more_body": more}


def _asks_for_upgrade(scope: Scope) -> bool:
    headers = scope["headers"]
    return any(name == b"upgrade" for name, _ in headers) and any(
        name == b"connection" and b"upgrade" in value.lower() for name, value in headers
    )


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 "))
        for name, value in scope["headers"]
    )


async def answer(send: Send, status: int, error: str) -> None:
    """Send an error response."""
    body, headers = error_body(status, error)
    fields = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
