"""Reading a request's body within the limits, also one that was compressed."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING

from .errors import RequestError

if TYPE_CHECKING:
    from starlette.requests import Request

# zlib's own numbers: a gzip stream, and a zlib stream ("deflate" of HTTP).
_WINDOW = {"gzip": 31, "deflate": 15}


def single_header(request: Request, name: str) -> str | None:
    """Return a header's value; RequestError (400) when it comes twice.

    A proxy in front may have gone by the other one.
    """
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise RequestError(f"the header {name} comes {len(values)} times")
    return values[0] if values else None


async def read_body(request: Request, limit: int, timeout: float) -> bytes:
    """Read at most ``limit`` bytes, as they come and after decompression.

    Raises RequestError: 413 over the limit, 408 when the client takes longer than ``timeout``
    seconds, 415 for an encoding other than gzip and deflate, 400 where the encoding is broken.
    """
    encoding = (single_header(request, "Content-Encoding") or "identity").strip().lower()
    if encoding not in (*_WINDOW, "identity"):
        raise RequestError("the content encoding is neither gzip nor deflate", 415)
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and len(announced) < 20 and int(announced) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(timeout):
            raw = await _read(request, limit)
    except TimeoutError:
        raise RequestError(f"the body did not come within {timeout:g} s", 408) from None
    return raw if encoding == "identity" else _decompress(raw, encoding, limit)


async def _read(request: Request, limit: int) -> bytes:
    from starlette.requests import ClientDisconnect

    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
    except ClientDisconnect:
        raise RequestError("the client went away", 400) from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _decompress(raw: bytes, encoding: str, limit: int) -> bytes:
    stream = zlib.decompressobj(_WINDOW[encoding])
    try:
        data = stream.decompress(raw, limit + 1)
    except zlib.error as error:
        raise RequestError(f"the body is not {encoding}: {error}") from None
    if len(data) > limit:
        raise _too_large(limit)
    if not stream.eof or stream.unused_data:
        raise RequestError(f"the {encoding} stream of the body is cut off or has more behind it")
    return data


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the body is larger than this server takes ({limit} bytes)", 413)
