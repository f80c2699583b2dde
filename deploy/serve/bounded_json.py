"""JSON with bounded cost: checked before parsing, and processed so that other threads can run.

C parsers hold the GIL from the first byte to the last, even on a thread of their own; this was
measured for json, orjson, msgspec and jiter. (ijson does not, but takes a second per MiB.) So large
documents are processed in small steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .errors import RequestError

# Text of at most this many bytes parses in a few milliseconds, whatever it holds.
SMALL_TEXT = 1 << 16
# Bytes that are copied in as much time.
SMALL_BYTES = 1 << 22
# Values that are written in about a millisecond.
SMALL_VALUES = 4096
# Most values of one tensor in JSON, in either direction.
MAX_VALUES = 1 << 21

# For each structural character: how often a text may hold it (in strings, too) and how many bytes
# of parsed objects it can cost at most. "[]" becomes 72 bytes, '{"":0}' 232.
_MARKS = {
    ",": (MAX_VALUES, 40),
    "[": (1 << 18, 96),
    "{": (1 << 18, 240),
    ":": (1 << 17, 160),
    '"': (1 << 21, 32),
    "\\": (1 << 21, 4),
}
_CHUNK = 1 << 20
_SPACE = " \t\n\r"


def is_small_request(body: bytes | bytearray, header_length: str | None, strings: bool) -> bool:
    """Return whether a request body can be decoded on the event loop.

    Args:
        body: The whole body.
        header_length: Value of the header that gives the length of the JSON part, if any.
        strings: Whether the model takes BYTES tensors, which are decoded one string at a time.

    Returns:
        False for long JSON, and for long bodies that may hold many strings.

    """
    if len(body) <= SMALL_TEXT:
        return True
    return not strings and header_length is not None and len(header_length) < 5


def is_small_response(arrays: Sequence[np.ndarray], binary: bool) -> bool:
    """Return whether outputs can be encoded on the event loop."""
    if binary and all(array.dtype.kind != "O" for array in arrays):
        return sum(array.nbytes for array in arrays) <= SMALL_BYTES
    return sum(array.size for array in arrays) <= SMALL_VALUES


def response_size(arrays: Sequence[np.ndarray], binary: bool) -> int:
    """Return the bytes that encoded outputs take; a number has up to 24 characters and a comma."""
    return sum(array.nbytes if binary else 25 * array.size for array in arrays)


def parse(text: memoryview, hold: Callable[[int], None]) -> Any:
    """Parse a JSON text.

    Args:
        text: UTF-8.
        hold: Called with the bytes that parsing a large text may take; raises to refuse them.

    Raises:
        RequestError: 413 if the text has too many elements.
        ValueError: If the text is not JSON.

    """
    if len(text) <= SMALL_TEXT:
        return _small_decoder.decode(str(text, "utf-8"))
    hold(_parsing_cost(text))
    # The decoder skips leading whitespace five times slower than strip.
    return _large_decoder.decode(str(text, "utf-8").strip(_SPACE))


def write(array: np.ndarray) -> str:
    """Write an array's elements as a flat JSON list.

    Raises:
        RequestError: 422 if there are too many.
        ValueError: If an element is NaN or infinite, which JSON cannot express.

    """
    if array.size > MAX_VALUES:
        raise RequestError(
            f"an output has {array.size} elements, more than this server writes as JSON "
            f"({MAX_VALUES}); request binary data",
            422,
        )
    flat = array.reshape(-1)
    pieces = (
        ENCODER.encode(flat[at : at + SMALL_VALUES].tolist())[1:-1]
        for at in range(0, flat.size, SMALL_VALUES)
    )
    return f"[{','.join(pieces)}]"


def _parsing_cost(text: memoryview) -> int:
    """Return an upper bound of the bytes that parsing takes; RequestError above a count limit."""
    codes = np.frombuffer(text, np.uint8)
    counts = dict.fromkeys(_MARKS, 0)
    ascii_only = True
    for at in range(0, len(codes), _CHUNK):  # NumPy releases the GIL meanwhile
        piece = codes[at : at + _CHUNK]
        ascii_only = ascii_only and int(piece.max()) < 128
        for mark, (most, _) in _MARKS.items():
            counts[mark] += int(np.count_nonzero(piece == ord(mark)))
            if counts[mark] > most:
                raise RequestError(
                    f"the JSON has more than {most} of the character {mark} "
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


# Reused: json.loads and json.dumps build a new one for each call with options.
_small_decoder = json.JSONDecoder(parse_constant=_not_json)
# Python functions: other threads get a turn whenever one is entered, so numbers block nobody.
_large_decoder = json.JSONDecoder(parse_constant=_not_json, parse_float=_float, parse_int=_int)
ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False)
