"""JSON of any size: bounded before a parser sees it, read and written off the event loop.

A parser in C keeps the interpreter's lock from its first byte to its last, also on a thread of its
own, and so do all others that were compared (orjson, msgspec, jiter, ijson's events aside, which
cost a second a mebibyte): nobody is answered meanwhile. So what is large goes through the lock in
small pieces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .errors import RequestError

# Text up to here is parsed in a few milliseconds, whatever it holds.
BRIEF = 1 << 16
# Copied in as long.
BRIEF_BYTES = 1 << 22
# Values up to here are written in about a millisecond.
BRIEF_VALUES = 4096
# Values that one tensor may have in JSON, in either direction.
MOST_VALUES = 1 << 21

# What a text may hold of each mark, within strings as well, and the bytes that one can cost when
# it is parsed: an empty list is 72 bytes from two, an object with one key 232 from six.
_MARKS = {
    ",": (MOST_VALUES, 40),
    "[": (1 << 18, 96),
    "{": (1 << 18, 240),
    ":": (1 << 17, 160),
    '"': (1 << 21, 32),
    "\\": (1 << 21, 4),
}
_PIECE = 1 << 20
_SPACE = " \t\n\r"


def is_brief(body: bytes | bytearray, header_length: str | None, strings: bool) -> bool:
    """Whether a body is read at once: all but long JSON and, with ``strings``, many of them.

    Its JSON ends after ``header_length`` bytes, where that is given.
    """
    if len(body) <= BRIEF:
        return True
    return not strings and header_length is not None and len(header_length) < 5


def is_brief_answer(arrays: Sequence[np.ndarray], binary: bool) -> bool:
    """Whether outputs are written at once."""
    if binary and all(array.dtype.kind != "O" for array in arrays):
        return sum(array.nbytes for array in arrays) <= BRIEF_BYTES
    return sum(array.size for array in arrays) <= BRIEF_VALUES


def cost_of_answer(arrays: Sequence[np.ndarray], binary: bool) -> int:
    """Bytes that writing the outputs takes: a number has up to 24 characters, a comma aside."""
    return sum(array.nbytes if binary else 25 * array.size for array in arrays)


def parse(text: memoryview, hold: Callable[[int], None]) -> Any:
    """Parse JSON. RequestError, 413, where it holds too much; ValueError where it is not JSON.

    ``hold`` is told how many bytes a large one will take, and may refuse.
    """
    if len(text) <= BRIEF:
        return _BRIEF.decode(str(text, "utf-8"))
    hold(_cost(text))
    # Its own look for the end of leading space takes five times as long as strip.
    return _LARGE.decode(str(text, "utf-8").strip(_SPACE))


def write(array: np.ndarray) -> str:
    """Write an array's elements as a flat JSON list. RequestError, 422, where there are too many.

    ValueError for what JSON cannot carry.
    """
    if array.size > MOST_VALUES:
        raise RequestError(
            f"an output has {array.size} elements, more than this server writes as JSON "
            f"({MOST_VALUES}); ask for binary data",
            422,
        )
    flat = array.reshape(-1)
    pieces = (
        ENCODER.encode(flat[at : at + BRIEF_VALUES].tolist())[1:-1]
        for at in range(0, flat.size, BRIEF_VALUES)
    )
    return f"[{','.join(pieces)}]"


def _cost(text: memoryview) -> int:
    """Bytes that parsing takes at most; RequestError where a mark comes too often."""
    codes = np.frombuffer(text, np.uint8)
    counts = dict.fromkeys(_MARKS, 0)
    ascii_only = True
    for at in range(0, len(codes), _PIECE):  # NumPy lets go of the interpreter's lock meanwhile
        piece = codes[at : at + _PIECE]
        ascii_only = ascii_only and int(piece.max()) < 128
        for mark, (most, _) in _MARKS.items():
            counts[mark] += int(np.count_nonzero(piece == ord(mark)))
            if counts[mark] > most:
                raise RequestError(
                    f"the JSON of the request has more than {most} times the character {mark} "
                    "(in strings, too); send large tensors flat, or as binary data",
                    413,
                )
    cost = sum(counts[mark] * each for mark, (_, each) in _MARKS.items())
    return cost + len(text) * (1 if ascii_only else 4)


def _not_json(word: str) -> float:
    raise ValueError(f"{word} is not JSON, send it as binary data")


def _float(text: str) -> float:
    return float(text)


def _int(text: str) -> int:
    return int(text)


# Made once: json.loads and json.dumps make a new one for each call that has options.
_BRIEF = json.JSONDecoder(parse_constant=_not_json)
# Functions in Python: at their entry other threads get their turn, so numbers keep nobody waiting.
_LARGE = json.JSONDecoder(parse_constant=_not_json, parse_float=_float, parse_int=_int)
ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False)
