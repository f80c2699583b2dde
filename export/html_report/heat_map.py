"""A mask as a small picture: the density of its blocks in steps of one color, ablated in another.

The PNG has a palette and is written here, since the base install has no library for pictures. Its
colors are those of a light page; the page inverts them in dark mode, hues kept.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib

import numpy as np

from ..mask_summary import MaskSummary
from .text import percent, shape

STEPS = 24
"""Steps of density."""

EMPTY, PALE, DEEP = (242, 245, 249), (176, 212, 255), (10, 48, 105)
"""Colors of no weight in a block, of the fewest and of the most."""

ABLATED, ABLATED_ROW = (201, 74, 0), (255, 226, 199)
"""Colors of the margin beside ablated neurons, and of their rows."""

_GAP, _ROW, _MARGIN = STEPS + 1, STEPS + 2, STEPS + 3
"""Places in the palette: the gap, which is transparent, ablated rows, the first of the margin."""

_MARGIN_STEPS = 4
_WIDEST, _NARROWEST = 3.2, 1.8
"""Widths of a picture over its height."""


def picture(mask: MaskSummary) -> str:
    """Draw a mask as an <img> with its description."""
    places = _places(mask)
    ratio = min(_WIDEST, max(_NARROWEST, mask.shape[1] / mask.shape[0]))
    data = base64.b64encode(_png(places)).decode()
    return (
        f'<img class="map" alt="{description(mask)}" width="{places.shape[1]}" '
        f'height="{places.shape[0]}" style="aspect-ratio:{ratio:.3f}" '
        f'src="data:image/png;base64,{data}">'
    )


def description(mask: MaskSummary) -> str:
    """Say in words what a picture shows."""
    text = f"Heat map of a mask of {shape(mask.shape)} weights: "
    if is_exact(mask):
        text += "one cell for each weight"
    else:
        low, high = float(mask.density.min()), float(mask.density.max())
        text += f"{percent(low)} to {percent(high)} of the weights of a block are stored"
    gone = int(mask.neurons[mask.fan_ins == 0].sum())
    return text + (f"; {gone} of {mask.shape[0]} neurons are ablated" if gone else "")


def is_exact(mask: MaskSummary) -> bool:
    """Return whether every weight has a cell of its own."""
    return mask.density.shape == mask.shape


def _places(mask: MaskSummary) -> np.ndarray:
    """Return the place in the palette of each pixel."""
    most = float(mask.density.max()) or 1.0
    places = np.ceil(mask.density / most * STEPS - 1e-6).astype(np.uint8)
    if not mask.ablated.any():
        return places
    places[mask.ablated == 1] = _ROW
    rows, columns = places.shape
    width = max(1, math.ceil(columns / 32))
    shares = np.ceil(mask.ablated * _MARGIN_STEPS).astype(np.uint8)
    margin = np.where(shares == 0, 0, _MARGIN + shares - 1).astype(np.uint8)
    gap = np.full((rows, max(1, width // 3)), _GAP, np.uint8)
    return np.hstack([np.repeat(margin[:, None], width, axis=1), gap, places])


def _palette() -> list[tuple[int, int, int]]:
    ramp = [_between(PALE, DEEP, step / (STEPS - 1)) for step in range(STEPS)]
    margin = [
        _between(ABLATED_ROW, ABLATED, (step + 1) / _MARGIN_STEPS) for step in range(_MARGIN_STEPS)
    ]
    return [EMPTY, *ramp, EMPTY, ABLATED_ROW, *margin]


def _between(
    low: tuple[int, int, int], high: tuple[int, int, int], share: float
) -> tuple[int, int, int]:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(low, high, strict=True))
    return red, green, blue


def _png(places: np.ndarray) -> bytes:
    height, width = places.shape
    lines = np.zeros((height, width + 1), np.uint8)  # each begins with its filter, 0
    lines[:, 1:] = places
    opaque = bytearray(b"\xff" * len(_palette()))
    opaque[_GAP] = 0
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(channel for color in _palette() for channel in color)),
        (b"tRNS", bytes(opaque)),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
