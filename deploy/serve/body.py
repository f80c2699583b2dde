"""Reads request bodies, compressed or not, within limits on size and time."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING

from .budget import Lease
from .errors import RequestError

if TYPE_CHECKING:
    from starlette.requests import Request

# wbits of zlib for each content encoding; HTTP's "deflate" is a zlib stream.
_WINDOW = {"gzip": 31, "deflate": 15}
_CHUNK = 1 << 20


def single_header(request: Request, name: str) -> str | None:
    """Return the value of a header that must not be repeated.

    A proxy may have acted on the other value.

    Raises:
        RequestError: 400 if the header occurs more than once.

    """
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise RequestError(f"the header {name} occurs {len(values)} times")
    return values[0] if values else None


def lease_of(request: Request) -> Lease:
    """Return the request's share of the buffer budget; the guard releases it."""
    lease: Lease = request.scope["fanin_lease"]
    return lease


async def read_body(request: Request, limit: int, timeout: float) -> bytes | bytearray:
    """Read a request body and decompress it.

    Args:
        request: The request; its lease grows by the bytes received and decompressed.
        limit: Largest size in bytes, both as received and after decompression.
        timeout: Seconds for the whole body to arrive.

    Returns:
        The decompressed body.

    Raises:
        RequestError: 400 for a corrupt or truncated body, 408 after ``timeout``, 413 above
            ``limit``, 415 for encodings other than gzip and deflate, 503 if the server's buffer
            budget is exhausted.

    """
    encoding = (single_header(request, "Content-Encoding") or "identity").strip().lower()
    if encoding not in (*_WINDOW, "identity"):
        raise RequestError("the content encoding is neither gzip nor deflate", 415)
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    lease = lease_of(request)
    try:
        async with asyncio.timeout(timeout):
            raw = await _read(request, limit, lease)
    except TimeoutError:
        raise RequestError(f"the request body did not arrive within {timeout:g} s", 408) from None
    if encoding == "identity":
        return raw
    return await asyncio.to_thread(_decompress, raw, encoding, limit, lease)


async def _read(request: Request, limit: int, lease: Lease) -> bytes | bytearray:
    from starlette.requests import ClientDisconnect

    first, body = b"", None
    try:
        async for chunk in request.stream():
            lease.take(len(chunk))
            if lease.held > limit:
                raise _too_large(limit)
            if not first:
                first = chunk
            elif chunk:
                if body is None:
                    body = bytearray(first)  # grows in place; joining chunks would hold them twice
                body += chunk
    except ClientDisconnect:
        raise RequestError("the client disconnected", 400) from None
    return first if body is None else body


def _decompress(raw: bytes | bytearray, encoding: str, limit: int, lease: Lease) -> bytearray:
    stream = zlib.decompressobj(_WINDOW[encoding])
    data, at = bytearray(), 0
    try:
        while not stream.eof:
            # First the input that the last output chunk left unprocessed, then the next input.
            part = stream.unconsumed_tail or memoryview(raw)[at : (at := at + _CHUNK)]
            piece = stream.decompress(part, _CHUNK)
            if not part and not piece:
                break
            lease.take(len(piece))
            data += piece
            if len(data) > limit:
                raise _too_large(limit)
    except zlib.error as error:
        raise RequestError(f"the body is not {encoding}: {error}") from None
    if not stream.eof or stream.unused_data or at < len(raw):
        raise RequestError(f"the {encoding} body is truncated or followed by other data")
    return data


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the request body exceeds the limit of {limit} bytes", 413)
