"""Reader of idx files, the format of MNIST and its relatives (gzip or plain)."""

import gzip
import zlib
from io import BufferedIOBase
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .base import DataError

_MAX_VALUES = 1 << 30
"""EMNIST, the largest data set of this format, has 60 % of this."""


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read a uint8 idx file.

    Layout: two zero bytes, type 0x08 (uint8), number of dimensions, each size as a big-endian
    32-bit integer, then the values.

    Args:
        path: the file; read as gzip if its name ends in .gz.
        dimensions: number of dimensions that it must have.

    Raises:
        DataError: it is unreadable, not of this layout, or shorter or longer than its header says.

    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _read(path, file, dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); download it again") from error


def _read(path: Path, file: BufferedIOBase, dimensions: int) -> NDArray[np.uint8]:
    header = file.read(4 + 4 * dimensions)
    if len(header) < 4 + 4 * dimensions or header[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(
            f"{path} is not a {dimensions}-dimensional uint8 idx file (it starts with "
            f"{header[:4].hex() or 'nothing'}); download it again"
        )
    shape = tuple(int(size) for size in np.frombuffer(header, ">u4", dimensions, 4))
    count = prod(shape)
    if count > _MAX_VALUES:
        raise DataError(
            f"{path} declares {count} values {list(shape)}, more than any data set of this kind "
            "has; download it again"
        )
    # A small file can decompress to any size; one byte more than declared is enough to notice.
    content = file.read(count + 1)
    if len(content) != count:
        found = f"only {len(content)}" if len(content) < count else "more"
        raise DataError(
            f"{path} should hold {count} values {list(shape)} but holds {found}; download it again"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)
