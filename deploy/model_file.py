"""What an ONNX file says of itself, read without the onnx package.

A serving environment has ONNX Runtime but not onnx. To name the node or the file behind a failed
load, this walks the protobuf wire format (https://protobuf.dev/programming-guides/encoding) and
jumps over the tensors. Field numbers are those of onnx.proto3.

The file is read piece by piece, neither mapped (one that is cut short meanwhile would end the
process) nor taken whole (it may hold gigabytes of weights).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_SIZE = 1 << 31  # protobuf's own limit; larger models keep their weights in data files
_MAX_NESTING = 32  # subgraphs within subgraphs; deeper is not a model but an attack


class ModelFileError(ValueError):
    """The file is not an ONNX model, or not a whole one."""


@dataclass(frozen=True)
class Node:
    """A node of the graph or of one of its subgraphs, with the names of its attributes."""

    name: str
    op_type: str
    domain: str
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExternalTensor:
    """An initializer whose bytes lie in another file, relative to the model's folder."""

    name: str
    location: str


@dataclass
class ModelFile:
    """The parts of a model that tell why it does not load."""

    opset_imports: dict[str, int] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    external: list[ExternalTensor] = field(default_factory=list)
    functions: set[tuple[str, str]] = field(default_factory=set)  # (domain, name)


def read_model_file(path: Path) -> ModelFile:
    """Scan the model at ``path``.

    Raises ModelFileError when it is not an ONNX model, OSError when it cannot be read.
    """
    state = path.stat()
    if not stat.S_ISREG(state.st_mode) and not stat.S_ISDIR(state.st_mode):
        raise ModelFileError("it is not a regular file")  # a pipe would wait for ever
    if state.st_size > _MAX_SIZE:
        raise ModelFileError("it is larger than 2 GiB, which no ONNX file is")
    if state.st_size == 0:
        raise ModelFileError("it is empty")
    with path.open("rb", buffering=0) as file:
        return _model(_FileBytes(file.fileno()), state.st_size)


class _FileBytes:
    """Bytes of an open file by place; ModelFileError behind its end, wherever that is by now."""

    _BLOCK = 1 << 16

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._start, self._block = 0, b""

    def byte(self, at: int) -> int:
        """Return one byte; those around it are read with it."""
        if not self._start <= at < self._start + len(self._block):
            self._start = at
            self._block = os.pread(self._descriptor, self._BLOCK, at)
            if not self._block:
                raise ModelFileError("it is cut off")
        return self._block[at - self._start]

    def text(self, start: int, end: int) -> str:
        """Return the text between two places."""
        found = os.pread(self._descriptor, end - start, start)
        if len(found) < end - start:
            raise ModelFileError("it is cut off")
        return found.decode("utf-8", errors="replace")


def _model(data: _FileBytes, size: int) -> ModelFile:
    model = ModelFile()
    has_graph = False
    for number, value in _fields(data, 0, size):
        if number == 7:
            has_graph = True
            _graph(data, value, model, 0)
        elif number == 8:
            entry = dict(_fields(data, *_span(value)))
            version = entry.get(2, 0)
            model.opset_imports[_text(data, entry.get(1))] = int(version)  # type: ignore[arg-type]
        elif number == 25:
            entry = dict(_fields(data, *_span(value)))
            model.functions.add((_text(data, entry.get(10)), _text(data, entry.get(1))))
            _function(data, value, model)
    if not has_graph:
        raise ModelFileError("it holds no graph")
    return model


_Value = int | tuple[int, int]


def _graph(data: _FileBytes, span: _Value, model: ModelFile, depth: int) -> None:
    if depth > _MAX_NESTING:
        raise ModelFileError(f"its subgraphs are nested more than {_MAX_NESTING} deep")
    for number, value in _fields(data, *_span(span)):
        if number == 1:
            _node(data, value, model, depth)
        elif number == 5:
            _initializer(data, value, model)
        elif number == 15:
            _sparse(data, value, model)


def _function(data: _FileBytes, span: _Value, model: ModelFile) -> None:
    """Take the tensors of a function's nodes; the nodes themselves are not the graph's."""
    body = ModelFile()
    for number, value in _fields(data, *_span(span)):
        if number == 7:
            _node(data, value, body, 0)
    model.external += body.external


def _sparse(data: _FileBytes, span: _Value, model: ModelFile) -> None:
    for number, value in _fields(data, *_span(span)):
        if number in (1, 2):  # values, indices
            _initializer(data, value, model)


def _node(data: _FileBytes, span: _Value, model: ModelFile, depth: int) -> None:
    texts = {3: "", 4: "", 7: ""}
    attributes = []
    for number, value in _fields(data, *_span(span)):
        if number in texts:
            texts[number] = _text(data, value)
        elif number == 5:  # attribute: name = 1, t = 5, g = 6, tensors = 10, graphs = 11
            for key, inner in _fields(data, *_span(value)):
                if key == 1:
                    attributes.append(_text(data, inner))
                elif key in (6, 11):
                    _graph(data, inner, model, depth + 1)
                elif key in (5, 10):
                    _initializer(data, inner, model)
                elif key in (22, 23):  # sparse_tensor, sparse_tensors
                    _sparse(data, inner, model)
    model.nodes.append(Node(texts[3], texts[4], texts[7], tuple(attributes)))


def _initializer(data: _FileBytes, span: _Value, model: ModelFile) -> None:
    name, location = "", None
    for number, value in _fields(data, *_span(span)):
        if number == 8:
            name = _text(data, value)
        elif number == 13:
            entry = dict(_fields(data, *_span(value)))
            if _text(data, entry.get(1)) == "location":
                location = _text(data, entry.get(2))
    if location is not None:
        model.external.append(ExternalTensor(name, location))


def _fields(data: _FileBytes, start: int, end: int) -> Iterator[tuple[int, _Value]]:
    """Field numbers and values of one message: a number, or the span of the bytes."""
    at = start
    while at < end:
        key, at = _varint(data, at, end)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ModelFileError("it is not an ONNX model")
        if wire == _VARINT:
            value, at = _varint(data, at, end)
            yield number, value
        elif wire == _BYTES:
            size, at = _varint(data, at, end)
            if at + size > end:
                raise ModelFileError("it is cut off or not an ONNX model")
            yield number, (at, at + size)
            at += size
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
            if at > end:
                raise ModelFileError("it is cut off or not an ONNX model")
        else:
            raise ModelFileError("it is not an ONNX model")


def _varint(data: _FileBytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data.byte(at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ModelFileError("it is cut off or not an ONNX model")


def _span(value: _Value) -> tuple[int, int]:
    if isinstance(value, int):
        raise ModelFileError("it is not an ONNX model")
    return value


def _text(data: _FileBytes, value: _Value | None) -> str:
    if value is None:
        return ""
    return data.text(*_span(value))
