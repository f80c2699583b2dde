"""Reads the protobuf wire format (https://protobuf.dev/programming-guides/encoding) in place.

What is accepted is interpreted as protobuf does: the last of several values counts, and the parts
of a split message are joined. Encodings that no ONNX writer uses and that readers may interpret
differently are refused: groups, fields with another wire type than their own, and numbers wider
than their type.

The file is read block by block. Mapping it would crash the process if it is truncated meanwhile,
and reading it whole could take gigabytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CUT_OFF = "it is cut off, or no protobuf message"
_OTHER_TYPE = "one of its fields has a different type than in ONNX"
_BLOCK = 1 << 16  # bytes read at once
_MAX_TEXT = _BLOCK  # bytes of a name; doc strings and metadata are not read

Span = tuple[int, int]
Value = int | Span | None  # a number, the span of bytes, or None for fixed-size types


class ModelFileError(ValueError):
    """The file is not a valid ONNX model, or incomplete."""


class FileBytes:
    """Random access to the bytes of an open file; raises ModelFileError beyond its current end."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._start, self._block = 0, b""

    def varint(self, at: int, end: int, bits: int) -> tuple[int, int]:
        """Decode the number at offset ``at``; return it and the offset after it."""
        value = 0
        for shift in range(0, bits, 7):
            if at >= end:
                break
            offset = at - self._start
            if not 0 <= offset < len(self._block):
                self._read(at)
                offset = 0
            byte = self._block[offset]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> bits:
                    break
                return value, at
        raise ModelFileError(_CUT_OFF)

    def between(self, start: int, end: int) -> bytes:
        """Return the bytes of a string."""
        if end - start > _MAX_TEXT:
            raise ModelFileError(f"a name in it has {end - start} bytes, more than {_MAX_TEXT}")
        if start == end:
            return b""  # of which there is nothing to read at the end of the file
        if start < self._start or end > self._start + len(self._block):
            self._read(start)
        found = self._block[start - self._start : end - self._start]
        if len(found) < end - start:
            raise ModelFileError("it is cut off")
        return found

    def _read(self, at: int) -> None:
        self._start, self._block = at, os.pread(self._descriptor, _BLOCK, at)
        if not self._block:
            raise ModelFileError("it is cut off")


class Message:
    """Selected fields of one message; several spans are parts of it, which protobuf joins."""

    def __init__(self, data: FileBytes, spans: Iterable[Span], wanted: Sequence[int]):
        self._data = data
        self._found: dict[int, list[Value]] = {}
        for span in spans:
            for number, value in fields(data, span):
                if number in wanted:
                    self._found.setdefault(number, []).append(value)

    def numbers(self) -> set[int]:
        """Return which of the wanted fields occur."""
        return set(self._found)

    def text(self, number: int) -> bytes:
        """Return a string: the last value, or empty if there is none."""
        values = self._found.get(number)
        return self._data.between(*as_span(values[-1])) if values else b""

    def integer(self, number: int) -> int:
        """Return an int64: the last value, or 0 if there is none."""
        value = self._found.get(number, [0])[-1]
        if not isinstance(value, int):
            raise ModelFileError(_OTHER_TYPE)
        return value - (1 << 64) if value >> 63 else value

    def spans(self, number: int) -> list[Span]:
        """Return the spans of submessages: several ones, or the parts of one."""
        return [as_span(value) for value in self._found.get(number, [])]


def fields(data: FileBytes, span: Span) -> Iterator[tuple[int, Value]]:
    """Yield the numbers and values of all fields in a span."""
    at, end = span
    while at < end:
        key, at = data.varint(at, end, 32)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ModelFileError("it is no protobuf message")
        value: Value = None
        if wire == _VARINT:
            value, at = data.varint(at, end, 64)
        elif wire == _BYTES:
            size, at = data.varint(at, end, 31)
            value = at, at + size
            at += size
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ModelFileError("it holds a protobuf group, which no ONNX file does")
        if at > end:
            raise ModelFileError(_CUT_OFF)
        yield number, value


def as_span(value: Value) -> Span:
    """Return the span of a field that must hold bytes."""
    if not isinstance(value, tuple):
        raise ModelFileError(_OTHER_TYPE)
    return value
