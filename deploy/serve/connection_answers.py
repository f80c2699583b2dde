"""What a connection answers or adds by itself, before or around the app."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from email.utils import formatdate
from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from .errors import error_body
from .guard import OPEN, Receive, Scope, Send, answer

FULL = "the server has reached its connection limit; try again later"


def error_response(status: int, error: str) -> bytes:
    """Return a whole error response, after which the connection closes."""
    body, headers = error_body(status, error)
    headers["date"] = _date(int(time.time())).decode()
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return b"%bconnection: close\r\n%b\r\n%b" % (STATUS_LINE[status], fields.encode(), body)


def dated(app: Any) -> Any:
    """Add to each answer the date at which it begins, which may be long after its request."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_dated(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                date = (b"date", _date(int(time.time())))
                message = {**message, "headers": [date, *message.get("headers", ())]}
            await send(message)

        await app(scope, receive, send_dated)

    return serve


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


def health_only(app: Any, on_refusal: Callable[[str], None]) -> Any:
    """Answer only health; all else is refused and counted."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].removesuffix("/") in OPEN:
            await app(scope, receive, send)
            return
        on_refusal("connections")
        await answer(send, 503, FULL)

    return serve
