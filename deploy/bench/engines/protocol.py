"""What the benchmark asks of anything that it times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol, runtime_checkable

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
    precision: str
    """What it computes in, one of PRECISIONS: how far its outputs may be off."""
    call_seconds: float | None
    """After ``prepare``: what a call costs besides the layer. None for ONNX Runtime, whose null
    session is timed in the rounds."""

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


@runtime_checkable
class SelfTimedEngine(Engine, Protocol):
    """An engine in another process, which times its own runs: switching to it is in no figure."""

    def time_runs(
        self, lead_in: float, count: int, numbers: Sequence[float] = (), condition: str = ""
    ) -> Sequence[int]:
        """Run untimed for ``lead_in`` seconds, then time ``count`` runs; returns nanoseconds.

        Two ``numbers`` take turns in the first place of the input, the first of them at the last
        run. ``condition`` (see CONDITIONS) is brought about before each run.
        """


class UnavailableEngine:
    """Stands for an engine that cannot be had here; it is excluded with the reason."""

    version = form = ""
    threads = 0
    precision = "float32"
    call_seconds: float | None = None

    def __init__(self, name: str, reason: str):
        self.name = name
        self._reason = reason

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> NoReturn:  # noqa: ARG002
        """Raise the reason."""
        raise EngineUnavailableError(self._reason)

    def run(self) -> None:
        """Never called, since ``prepare`` fails."""

    def output(self) -> Sequence[np.ndarray]:
        """Never called, since ``prepare`` fails."""
        return []

    def close(self) -> None:
        """Nothing to free."""


class EngineUnavailableError(Exception):
    """An engine that was asked for is not installed."""


def aligned_copy(array: np.ndarray, alignment: int = 64) -> np.ndarray:
    """Copy to a C-contiguous array that starts on a cache line, equally good for every engine."""
    array = np.ascontiguousarray(array)
    buffer = np.empty(array.nbytes + alignment, np.uint8)
    start = -buffer.ctypes.data % alignment
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
