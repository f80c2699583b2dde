"""Made-up calls of a language model's file with a cache: prefill, decoding, several new tokens.

Lengths of the inputs of such a file depend on each other: the mask is as long as past and new
tokens together. Sizes that are tried one for all inputs never fit, or fit by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

_PAST = "past"
_IDS, _MASK, _POSITIONS = "input_ids", "attention_mask", "position_ids"

_HEAD_SIZES = (64, 128, 96, 80, 32, 16, 256, 48, 112, 160, 192, 8)
"""Tried where a file calls the last dimension of its cache by a name."""


@dataclass(frozen=True)
class _Lengths:
    batch: int
    past: int
    new: int


_CALLS = (_Lengths(1, 0, 6), _Lengths(1, 6, 1), _Lengths(2, 4, 1), _Lengths(1, 4, 3))


def takes_cache(ports: Sequence[onnx.ValueInfoProto]) -> bool:
    """Say whether a file with these inputs takes token ids and a cache."""
    return any(port.name == _IDS for port in ports) and any(map(_is_cache, ports))


def decoder_feeds(
    ports: Sequence[onnx.ValueInfoProto], limits: Mapping[str, int], rng: np.random.Generator
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Make up inputs of a file that takes token ids and a cache; none for any other file.

    Args:
        ports: inputs of the file.
        limits: of the values of integer inputs, from the tables that they index.
        rng: for tokens and cache.

    Yields:
        The number of a call, and inputs for it by name. A call of which the size of heads is not
        known comes several times.

    """
    if not takes_cache(ports):
        return
    known = all(_sizes(port)[3] is not None for port in ports if _is_cache(port))
    for number, call in enumerate(_CALLS):
        for head in (0,) if known else _HEAD_SIZES:
            made = {port.name: _made(port, call, head, limits, rng) for port in ports}
            if any(array is None for array in made.values()):
                return
            yield number, {name: array for name, array in made.items() if array is not None}


def _is_cache(port: onnx.ValueInfoProto) -> bool:
    sizes = _sizes(port)
    return port.name.startswith(_PAST) and len(sizes) == 4 and sizes[1] is not None


def _sizes(port: onnx.ValueInfoProto) -> list[int | None]:
    return [
        dim.dim_value if dim.HasField("dim_value") else None
        for dim in port.type.tensor_type.shape.dim
    ]


def _made(
    port: onnx.ValueInfoProto,
    call: _Lengths,
    head: int,
    limits: Mapping[str, int],
    rng: np.random.Generator,
) -> np.ndarray | None:
    """Make up one input; None for one that decoders are not known to have."""
    kind = port.type.tensor_type.elem_type
    dtype = helper.tensor_dtype_to_np_dtype(kind) if kind else np.dtype(np.float32)
    sizes = _sizes(port)
    total = call.past + call.new

    def filled(*wanted: int) -> tuple[int, ...]:
        """Take a size that the file fixes as it is."""
        pairs = zip(sizes, wanted, strict=True)
        return tuple(want if size is None else size for size, want in pairs)

    if _is_cache(port):
        shape = filled(call.batch, 0, call.past, head)
        return rng.standard_normal(shape).astype(dtype)
    if len(sizes) != 2 or dtype.kind not in "iu":
        return None
    if port.name == _IDS:
        limit = limits.get(port.name, 2)
        return rng.integers(0, limit, filled(call.batch, call.new)).astype(dtype)
    if port.name == _MASK:
        return np.ones(filled(call.batch, total), dtype)
    if port.name == _POSITIONS:
        shape = filled(call.batch, call.new)
        return np.broadcast_to(call.past + np.arange(shape[1], dtype=dtype), shape).copy()
    return None
