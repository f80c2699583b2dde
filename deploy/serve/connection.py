"""Connections whose request has a head that does not end, in time or in bytes, are closed.

uvicorn bounds the time between requests, and this server that of bodies and their size.
"""

from __future__ import annotations

import asyncio
import json

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Bytes of a head after the piece (at most 256 KiB) in which it begins.
_LARGEST = 1 << 16


def connection_class(timeout: float) -> type[HttpToolsProtocol]:
    """Make uvicorn's protocol with a bound, in seconds, of the time that a request's head takes."""

    class Connection(HttpToolsProtocol):
        _watch: asyncio.TimerHandle | None = None
        _in_head = False
        _heads = 0
        _size = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait(self.timeout_keep_alive, in_head=False)

        def connection_lost(self, exc: Exception | None) -> None:
            self._wait(None, in_head=False)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            before = self._heads if self._in_head else None
            super().data_received(data)
            if self._in_head and self._heads == before:
                self._size += len(data)
                if self._size > _LARGEST:
                    self._refuse("431 Request Header Fields Too Large", "is too large")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._heads += 1
            self._size = 0
            self._wait(timeout, in_head=True)

        def on_headers_complete(self) -> None:
            self._wait(None, in_head=False)
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self._in_head and not self.transport.is_closing():
                self._wait(self.timeout_keep_alive, in_head=False)

        def _wait(self, seconds: float | None, *, in_head: bool) -> None:
            if self._watch is not None:
                self._watch.cancel()
            self._in_head = in_head
            self._watch = None if seconds is None else self.loop.call_later(seconds, self._late)

        def _late(self) -> None:
            if self._is_answering():  # a head that was sent ahead, behind one that is served
                self._wait(timeout, in_head=self._in_head)
            elif self._in_head:
                self._refuse("408 Request Timeout", f"did not come within {timeout:g} s")
            elif not self.transport.is_closing():
                self.transport.close()

        def _is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _refuse(self, status: str, reason: str) -> None:
            if self.transport.is_closing():
                return
            if not self._is_answering():
                body = json.dumps({"error": f"the head of the request {reason}"})
                self.transport.write(
                    f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
                    f"content-length: {len(body)}\r\n\r\n{body}".encode()
                )
            self.transport.close()

    return Connection
