"""Takes an infer request apart without copying its tensors.

https://protobuf.dev/programming-guides/encoding/. A parser would copy each raw tensor twice, and
turn a hostile message into objects of many times its size before anyone could count them.
"""

from __future__ import annotations

from ..errors import RequestError

RAW_FIELD = 7
"""Number of ``raw_input_contents`` in ModelInferRequest."""

# Most fields of a request: inputs, outputs, raw contents and parameters together.
MAX_FIELDS = 1024

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MOST_VARINT = 10  # bytes


def split(body: bytes) -> tuple[bytes, list[memoryview]]:
    """Split a ModelInferRequest.

    Args:
        body: The serialized message.

    Returns:
        The message without its raw contents, and those, which share the memory of ``body``.

    Raises:
        RequestError: If the message is truncated, or has more than MAX_FIELDS fields.

    """
    view = memoryview(body)
    rest: list[memoryview] = []
    raw: list[memoryview] = []
    at = fields = 0
    while at < len(view):
        fields += 1
        if fields > MAX_FIELDS:
            raise RequestError(f"the request has more than {MAX_FIELDS} fields", 413)
        start = at
        key, at = _varint(view, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _varint(view, at)
        elif kind == _LENGTH:
            size, at = _varint(view, at)
            if size > len(view) - at:
                raise _malformed("it is truncated")
            if key >> 3 == RAW_FIELD:
                raw.append(view[at : at + size])
                at += size
                continue
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise _malformed(f"a field has the wire type {kind}")
        if at > len(view):
            raise _malformed("it is truncated")
        rest.append(view[start:at])
    return b"".join(rest), raw


def length_field(number: int, size: int) -> bytes:
    """Return what precedes the content of a field of ``size`` bytes."""
    return _encoded(number << 3 | _LENGTH) + _encoded(size)


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _MOST_VARINT, 7):
        if at == len(view):
            raise _malformed("it is truncated")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _malformed("a number is too long")


def _encoded(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _malformed(problem: str) -> RequestError:
    return RequestError(f"the message is not a ModelInferRequest: {problem}")
