"""Reading idx files, the format of MNIST and its relatives (gzip or plain)."""

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np


class DataError(Exception):
    """Training data is missing or damaged; the message says where and what to do."""


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read a uint8 idx file with the given number of dimensions.

    Layout: two zero bytes, type 0x08 (uint8), number of dimensions, each size as a big-endian
    32-bit integer, then the values. Raises DataError, naming the file, when it is unreadable,
    not of this layout, or shorter or longer than its header says.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); fetch it again") from error
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(
            f"{path} is not an idx file of {dimensions}-dimensional bytes (it starts with "
            f"{content[:4].hex() or 'nothing'}); fetch it again"
        )
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    if len(content) - header != prod(shape):
        raise DataError(
            f"{path} should hold {prod(shape)} values {list(shape)} but holds "
            f"{len(content) - header}; fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
