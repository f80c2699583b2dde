"""A reader of protobuf's text format, for config.pbtxt, that needs no schema.

https://protobuf.dev/reference/protobuf/textformat-spec/ without extensions and ``Any``. Unlike a
reader with a schema it keeps every field, so that those unknown to the server can be named.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_MAX_DEPTH = 32
_TOKEN = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[A-Za-z_][A-Za-z0-9_.]*)
    |(?P<number>-?(?:0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[fF]?)
    |(?P<mark>[{}<>\[\]:,;])""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">"}

Message = dict[str, list[Any]]
"""Field → its values in order. A value is a str, int, float, Word, or a Message."""


class TextFormatError(ValueError):
    """Text that is not in the format; the message names the line."""


class Word(str):
    """A value without quotes: ``true``, ``false`` or the name of an enumerator."""

    __slots__ = ()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int


def parse(text: str) -> Message:
    """Parse a message; TextFormatError if the text is no message."""
    return _Reader(text).message(end=None, depth=0)


class _Reader:
    def __init__(self, text: str):
        self._tokens = [*_tokens(text)]
        self._at = 0

    def message(self, end: str | None, depth: int) -> Message:
        if depth > _MAX_DEPTH:
            raise self._error(f"is nested more than {_MAX_DEPTH} deep")
        fields: Message = {}
        while not self._take(end):
            name = self._next("word", "the name of a field")
            values = fields.setdefault(name, [])
            colon = self._take(":")
            if self._take("["):
                values += self._list(depth)
            else:
                values.append(self._value(colon, depth))
            self._take(",") or self._take(";")
        return fields

    def _list(self, depth: int) -> Iterator[Any]:
        if self._take("]"):
            return
        while True:
            yield self._value(True, depth)
            if self._take("]"):
                return
            if not self._take(","):
                raise self._error("is neither , nor ]")

    def _value(self, scalar_allowed: bool, depth: int) -> Any:
        for mark, closing in _CLOSING.items():
            if self._take(mark):
                return self.message(closing, depth + 1)
        if not scalar_allowed:
            raise self._error("is neither : nor {")
        token = self._peek()
        if token is None or token.kind == "mark":
            raise self._error("is no value")
        self._at += 1
        if token.kind == "word":
            return Word(token.text)
        if token.kind == "number":
            return _number(token.text)
        parts = [_unquoted(token)]
        while (following := self._peek()) is not None and following.kind == "string":
            parts.append(_unquoted(following))
            self._at += 1
        return "".join(parts)

    def _take(self, mark: str | None) -> bool:
        token = self._peek()
        if mark is None:  # the end of the text
            return token is None
        if token is None or token.text != mark or token.kind != "mark":
            return False
        self._at += 1
        return True

    def _next(self, kind: str, wanted: str) -> str:
        token = self._peek()
        if token is None or token.kind != kind:
            raise self._error(f"is not {wanted}")
        self._at += 1
        return token.text

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _error(self, problem: str) -> TextFormatError:
        token = self._peek()
        if token is None:
            return TextFormatError(f"the end of the text {problem}")
        return TextFormatError(f"line {token.line}: {token.text[:60]!r} {problem}")


def _tokens(text: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise TextFormatError(f"line {line}: {text[at : at + 20]!r} is not text format")
        if found.lastgroup != "space":
            yield _Token(str(found.lastgroup), found[0], line)
        line += found[0].count("\n")
        at = found.end()


def _number(text: str) -> int | float:
    try:
        return int(text, 0)
    except ValueError:
        return float(text.rstrip("fF"))


def _unquoted(token: _Token) -> str:
    raw = token.text[1:-1]
    try:
        return codecs.escape_decode(raw.encode())[0].decode()
    except ValueError as error:
        raise TextFormatError(f"line {token.line}: a string {error}") from None
