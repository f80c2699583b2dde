"""Reading a request's body within the limits, also one that was compressed."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING

from .budget import Lease
from .errors import RequestError

if TYPE_CHECKING:
    from starlette.requests import Request

# zlib's own numbers: a gzip stream, and a zlib stream ("deflate" of HTTP).
_WINDOW = {"gzip": 31, "deflate": 15}
_PIECE = 1 << 20


def single_header(request: Request, name: str) -> str | None:
    """Return a header's value; RequestError (400) when it comes twice.

    A proxy in front may have gone by the other one.
    """
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise RequestError(f"the header {name} comes {len(values)} times")
    return values[0] if values else None


def lease_of(request: Request) -> Lease:
    """Return what the request holds of the server's budget; the guard gives it back."""
    lease: Lease = request.scope["fanin_lease"]
    return lease


async def read_body(request: Request, limit: int, timeout: float) -> bytes | bytearray:
    """Read at most ``limit`` bytes, as they come and after decompression.

    Raises RequestError: 413 over the limit, 408 when the client takes longer than ``timeout``
    seconds, 415 for an encoding other than gzip and deflate, 400 where the encoding is broken, 503
    when the server holds as many bytes as it may.
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
        raise RequestError(f"the body did not come within {timeout:g} s", 408) from None
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
                    body = bytearray(first)  # grows in place: joining parts holds them twice
                body += chunk
    except ClientDisconnect:
        raise RequestError("the client went away", 400) from None
    return first if body is None else body


def _decompress(raw: bytes | bytearray, encoding: str, limit: int, lease: Lease) -> bytearray:
    stream = zlib.decompressobj(_WINDOW[encoding])
    data, at = bytearray(), 0
    try:
        while not stream.eof:
            # What it did not come to in the last piece, else the next one.
            part = stream.unconsumed_tail or memoryview(raw)[at : (at := at + _PIECE)]
            piece = stream.decompress(part, _PIECE)
            if not part and not piece:
                break
            lease.take(len(piece))
            data += piece
            if len(data) > limit:
                raise _too_large(limit)
    except zlib.error as error:
        raise RequestError(f"the body is not {encoding}: {error}") from None
    if not stream.eof or stream.unused_data or at < len(raw):
        raise RequestError(f"the {encoding} stream of the body is cut off or has more behind it")
    return data


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the body is larger than this server takes ({limit} bytes)", 413)
