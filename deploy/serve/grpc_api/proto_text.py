"""Builds message classes at run time from a description in the language of .proto files.

protobuf's Python package reads descriptors, not .proto files, and a compiler would leave generated
code in the repository. So this reads the part of the language that the protocol needs: messages,
nested messages, ``repeated``, ``map`` and ``oneof``.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in ("bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64")
}
_TOKEN = re.compile(r"\s*(?://[^\n]*\s*)*([A-Za-z_][\w.]*|\d+|[{}<>=;,])")


def message_classes(package: str, text: str) -> dict[str, type[Any]]:
    """Create the classes of messages.

    They live in a pool of their own: another package of the same process, such as a client, may
    have registered messages of the same names.

    Args:
        package: The messages' package.
        text: ``message`` definitions.

    Returns:
        The class of each top-level message, by its name.

    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"fanin/{package}.proto", package=package, syntax="proto3"
    )
    tokens = _Tokens(text)
    while tokens.take("message"):
        _read_message(tokens, file.message_type.add())
    _resolve(file.message_type, f".{package}", {})
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{package}.{message.name}")
        )
        for message in file.message_type
    }


class _Tokens:
    def __init__(self, text: str):
        self._words = _TOKEN.findall(text)[::-1]

    def next(self) -> str:
        word: str = self._words.pop()
        return word

    def peek(self) -> str:
        return self._words[-1] if self._words else ""

    def take(self, word: str) -> bool:
        if self.peek() != word:
            return False
        self._words.pop()
        return True

    def expect(self, word: str) -> None:
        found = self.next()
        if found != word:
            raise ValueError(f"{found!r} where {word!r} belongs")


def _read_message(tokens: _Tokens, message: Any) -> None:
    message.name = tokens.next()
    tokens.expect("{")
    while not tokens.take("}"):
        if tokens.take("message"):
            _read_message(tokens, message.nested_type.add())
        elif tokens.take("oneof"):
            message.oneof_decl.add(name=tokens.next())
            tokens.expect("{")
            while not tokens.take("}"):
                _read_field(tokens, message).oneof_index = len(message.oneof_decl) - 1
        else:
            _read_field(tokens, message)


def _read_field(tokens: _Tokens, message: Any) -> Any:
    repeated = tokens.take("repeated")
    kind = tokens.next()
    if kind == "map":
        kind, repeated = _read_map(tokens, message), True
    field = message.field.add(name=tokens.next(), label=3 if repeated else 1)
    tokens.expect("=")
    field.number = int(tokens.next())
    tokens.expect(";")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, kind
    return field


def _read_map(tokens: _Tokens, message: Any) -> str:
    """Declare the message that holds an entry of a map, and return its name."""
    tokens.expect("<")
    key = tokens.next()
    tokens.expect(",")
    value = tokens.next()
    tokens.expect(">")
    name = "".join(part.capitalize() for part in tokens.peek().split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    for number, (field, kind) in enumerate((("key", key), ("value", value)), 1):
        added = entry.field.add(name=field, number=number, label=1)
        if kind in _SCALARS:
            added.type = _SCALARS[kind]
        else:
            added.type, added.type_name = _Field.TYPE_MESSAGE, kind
    return name


def _resolve(messages: Any, scope: str, known: dict[str, str]) -> None:
    """Replace the names of message types by full ones, those of inner scopes first."""
    known = known | {message.name: f"{scope}.{message.name}" for message in messages}
    for message in messages:
        inner = f"{scope}.{message.name}"
        nested = known | {one.name: f"{inner}.{one.name}" for one in message.nested_type}
        for field in message.field:
            if field.type == _Field.TYPE_MESSAGE:
                field.type_name = nested[field.type_name]
        _resolve(message.nested_type, inner, known)
