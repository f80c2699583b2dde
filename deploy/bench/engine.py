"""What the benchmark asks of anything that it times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np


class Engine(Protocol):
    """One way to compute a layer or a model.

    The benchmark owns the input arrays and changes their content between runs, so ``run`` must read
    them each time: an engine that answers from an earlier run is found out by its output.
    """

    name: str
    """Short and unique in a comparison, such as ``dense``."""
    version: str
    """Of the library that computes, such as ``onnxruntime 1.23.2``."""
    form: str
    """How the work is expressed to it, such as ``Gemm(transB=1)``."""
    threads: int
    """In force after ``prepare``, not just asked for."""

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Load, pack and allocate everything, so that ``run`` only computes.

        Raises any exception when it cannot; its text becomes the reason in the report.
        """

    def run(self) -> None:
        """Compute the outputs from the present content of the inputs."""

    def output(self) -> Sequence[np.ndarray]:
        """Return the outputs of the last run, as copies or views."""

    def close(self) -> None:
        """Free everything. Called once, also after a failed ``prepare``."""


def aligned_copy(array: np.ndarray, alignment: int = 64) -> np.ndarray:
    """Copy to a C-contiguous array that starts on a cache line, equally good for every engine."""
    array = np.ascontiguousarray(array)
    buffer = np.empty(array.nbytes + alignment, np.uint8)
    start = -buffer.ctypes.data % alignment
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
