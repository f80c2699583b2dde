"""Tensors of requests and responses, as JSON values and as bytes.

Open Inference Protocol V2, "Tensor Data" and the binary tensor data extension: row-major, little
endian, unpadded. BOOL is one byte per element; an element of BYTES is its length (4 bytes) followed
by its content.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import bounded_json
from .datatypes import NUMPY
from .errors import RequestError

_LENGTH = np.dtype("<u4")

_JSON_WORDS = {
    **{type(None): "null", bool: "true or false", str: "strings", list: "lists", dict: "objects"},
    **{int: "integers", float: "numbers with a fraction or an exponent"},
}


def from_json(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> np.ndarray:
    """Decode a tensor from nested or flat JSON lists; RequestError if it does not fit."""
    if not isinstance(data, list):
        raise RequestError(f"input '{name}': data is not a list")
    flat = _flatten(name, shape, data)
    wanted = math.prod(shape)
    if len(flat) != wanted:
        raise RequestError(
            f"input '{name}': data has {len(flat)} elements, its shape {list(shape)} has {wanted}"
        )
    kinds = set(map(type, flat))
    allowed, words = _json_kinds(datatype)
    if not kinds <= allowed:
        odd = ", ".join(sorted(_JSON_WORDS[kind] for kind in kinds - allowed))
        hint = "; NaN and infinity go as binary data" if odd == "null" and float in allowed else ""
        raise RequestError(f"input '{name}': {datatype} takes {words}, not {odd}{hint}")
    if datatype == "BYTES" and any("\ud800" <= char <= "\udfff" for char in "".join(flat)):
        raise RequestError(f"input '{name}': a string holds a lone surrogate")
    dtype = NUMPY[datatype]
    if dtype.kind in "iu" and flat:
        limits = np.iinfo(dtype)
        if min(flat) < limits.min or max(flat) > limits.max:
            raise RequestError(f"input '{name}': data does not fit into {datatype}")
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, dtype).reshape(shape)
    except OverflowError:  # an integer larger than any floating-point number
        raise RequestError(f"input '{name}': data does not fit into {datatype}") from None
    # JSON has no infinity, so an infinite element was too large for the type.
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(f"input '{name}': data does not fit into {datatype}")
    return array


def from_bytes(name: str, datatype: str, shape: tuple[int, ...], raw: memoryview) -> np.ndarray:
    """Decode a tensor from its bytes; the array may share their memory."""
    if datatype == "BYTES":
        return _strings(name, shape, raw)
    dtype = NUMPY[datatype]
    wanted = math.prod(shape) * dtype.itemsize
    if len(raw) != wanted:
        raise RequestError(
            f"input '{name}': {len(raw)} bytes were sent, but {datatype} of shape "
            f"{list(shape)} has {wanted}"
        )
    if datatype == "BOOL" and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
        raise RequestError(f"input '{name}': a BOOL is the byte 0 or 1")
    array = np.frombuffer(raw, dtype).reshape(shape)
    # The JSON before it may have any length, but ONNX Runtime needs aligned elements.
    return np.require(array, requirements="A")


def to_json(name: str, array: np.ndarray) -> str:
    """Encode an output as a flat JSON list; RequestError for NaN and infinity."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(
            f"output '{name}' holds NaN or infinity, which JSON cannot express; request binary "
            "data",
            422,
        )
    return bounded_json.write(array)


def to_bytes(array: np.ndarray) -> bytes:
    """Encode an output for the binary tensor data extension."""
    if array.dtype.kind != "O":
        return array.tobytes()
    parts = []
    for item in array.reshape(-1):
        raw = item if isinstance(item, bytes) else str(item).encode()
        parts += [len(raw).to_bytes(4, "little"), raw]
    return b"".join(parts)


def _json_kinds(datatype: str) -> tuple[set[type], str]:
    if datatype == "BOOL":
        return {bool}, "true and false"
    if datatype == "BYTES":
        return {str}, "strings"
    if NUMPY[datatype].kind == "f":
        return {int, float}, "numbers"
    return {int}, "integers"


def _flatten(name: str, shape: tuple[int, ...], data: list[Any]) -> list[Any]:
    """Return one row-major list; nested lists must match the shape exactly."""
    if not any(isinstance(item, list) for item in data):
        return data
    flat = data
    fits = len(data) == (shape[0] if shape else 1)
    for size in shape[1:]:
        fits = fits and all(isinstance(item, list) and len(item) == size for item in flat)
        if not fits:
            break
        flat = [element for item in flat for element in item]
    if not fits:
        raise RequestError(f"input '{name}': the nested lists do not have the shape {list(shape)}")
    return flat


def _strings(name: str, shape: tuple[int, ...], raw: memoryview) -> np.ndarray:
    items: list[str] = []
    at, wanted = 0, math.prod(shape)
    while at < len(raw):
        if len(items) == wanted or at + _LENGTH.itemsize > len(raw):
            raise RequestError(f"input '{name}': its bytes do not hold {wanted} elements of BYTES")
        size = int.from_bytes(raw[at : at + _LENGTH.itemsize], "little")
        at += _LENGTH.itemsize
        if at + size > len(raw):
            raise RequestError(f"input '{name}': element {len(items)} of BYTES is truncated")
        try:
            items.append(str(raw[at : at + size], "utf-8"))
        except UnicodeDecodeError:
            raise RequestError(f"input '{name}': element {len(items)} is not UTF-8") from None
        at += size
    if len(items) != wanted:
        raise RequestError(f"input '{name}': {len(items)} elements of BYTES, not {wanted}")
    array = np.empty(wanted, object)
    array[:] = items
    return array.reshape(shape)
