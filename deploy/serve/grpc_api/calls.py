"""Bounds and guards every call: token, message, deadline, bytes held, log.

All methods are registered as streams, although clients call them with one request and get one
response, which is the same on the wire. grpc would read the whole message of a unary call before
asking anyone, without a time limit; so the token is checked first, and the message has its time.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from typing import TYPE_CHECKING, Any

import grpc

from ..errors import BudgetExceededError, RequestError
from ..inference import CLIENT_GONE
from ..logs import event
from ..tracing import RESPONSE, Trace
from .call import Call
from .service import OPEN, UNREAD, Method, Service

if TYPE_CHECKING:
    from ..state import ServerState

_log = logging.getLogger("fanin.serve")

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.OUT_OF_RANGE,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""Status of gRPC for each HTTP status with which the same request would be answered."""

# Most characters of an error: it travels in a header, and clients limit those to 8 KiB.
_MOST_DETAILS = 1000
# Health is still answered to so many calls above the limit.
SURPLUS = 32


class Calls:
    """Serves the calls of one process."""

    def __init__(self, state: ServerState):
        self._state = state
        settings = state.settings
        self._methods = Service(state).methods
        self._token = None if settings.token is None else f"Bearer {settings.token}"
        # grpc allocates a message before it shows any of it, so messages that are arriving are
        # bounded by their number.
        self._receiving = asyncio.Semaphore(max(1, settings.buffered // settings.max_body))
        self._tasks: set[asyncio.Task[Any]] = set()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return grpc's handlers of all methods."""
        return [_Handlers(self._methods, self)]

    async def cut_off(self) -> None:
        """Answer all calls with UNAVAILABLE."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    async def serve(self, path: str, context: grpc.aio.ServicerContext) -> None:
        """Serve one call."""
        start = time.perf_counter()
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        metadata = [(str(name), value) for name, value in context.invocation_metadata() or ()]
        texts = [(name, value) for name, value in metadata if isinstance(value, str)]
        trace = Trace.of(texts, self._state.settings.otel)
        left = context.time_remaining()
        deadline = math.inf if left is None else time.monotonic() + left
        timeout = self._state.settings.timeout
        call = Call(self._state.budget.lease(), trace, timeout, deadline)
        status, details = 200, ""
        try:
            self._admit(path, texts)
            await self._read(path, call, context)
            response = await self._methods[path](call)
            call.lease.resize(len(response))
            # Until the client has read it, or its connection has ended: grpc cannot drop an
            # answer, so this keeps holding its bytes.
            await context.write(response)
        except RequestError as error:
            status, details = error.status, str(error)
        except asyncio.CancelledError:
            status, details = 503, "the server stopped during the request; try again"
            if not self._state.draining:
                status = CLIENT_GONE
                raise
        except Exception:
            status, details = 500, "internal server error; see the server's log"
            _log.exception("unhandled exception in a call")
        finally:
            call.lease.release()
            self._tasks.discard(task)
            self._report(path, context, call, status, time.perf_counter() - start)
        if trace is not None:
            context.set_trailing_metadata(((RESPONSE, trace.response),))
        if status != 200:
            await context.abort(_CODES[status], _header_text(details))

    def _admit(self, path: str, metadata: list[tuple[str, str]]) -> None:
        limit = self._state.settings.max_connections
        if len(self._tasks) > limit and path not in OPEN:
            self._state.metrics.count_refusal("connections")
            raise RequestError("the server has reached its limit of calls; try again later", 503)
        if self._token is None or path in OPEN:
            return
        given = [value for name, value in metadata if name == "authorization"]
        if len(given) != 1 or not hmac.compare_digest(given[0].encode(), self._token.encode()):
            raise RequestError("a token is required: authorization: Bearer …", 401)

    async def _read(self, path: str, call: Call, context: grpc.aio.ServicerContext) -> None:
        if path in UNREAD:
            return
        seconds = self._state.settings.timeout
        try:
            async with asyncio.timeout(seconds), self._receiving:
                body = await context.read()
                if body is grpc.aio.EOF:
                    raise RequestError("the call has no message")
                self._hold(call, body)
        except TimeoutError:
            raise RequestError(f"the message did not arrive within {seconds:g} s", 408) from None

    def _hold(self, call: Call, body: bytes) -> None:
        try:
            call.lease.take(len(body))
        except BudgetExceededError:
            self._state.metrics.count_refusal("memory")
            raise
        call.body = body

    def _report(
        self,
        path: str,
        context: grpc.aio.ServicerContext,
        call: Call,
        status: int,
        seconds: float,
    ) -> None:
        if not self._state.settings.access_log and status < 500:
            return
        event(
            _log,
            "request",
            logging.WARNING if status >= 500 else logging.INFO,
            method="GRPC",
            path=path,
            status=status,
            client=context.peer()[:100],
            ms=round(seconds * 1e3, 3),
            **(call.trace.fields() if call.trace is not None else {}),
            **call.log,
        )


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, methods: dict[str, Method], calls: Calls):
        self._known = {path: _handler(path, calls) for path in methods}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._known.get(details.method)


def _handler(path: str, calls: Calls) -> grpc.RpcMethodHandler:
    async def serve(_requests: Any, context: grpc.aio.ServicerContext) -> None:
        await calls.serve(path, context)

    return grpc.stream_stream_rpc_method_handler(serve)


def _header_text(details: str) -> str:
    """Return an error as it may stand in a header."""
    text = details if len(details) <= _MOST_DETAILS else details[: _MOST_DETAILS - 1] + "…"
    return text.encode("utf-8", "replace").decode()
