"""The interface of whatever the benchmark times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol, runtime_checkable

import numpy as np


class Engine(Protocol):
    """One way to compute a layer or a model.

    The benchmark owns the input arrays and changes their content between runs, so ``run`` must read
    them each time: an engine that returns the answer of an earlier run is caught by its output.

    Attributes:
        name: short and unique within a comparison, such as ``dense``.
        form: how the work is expressed to the runtime, such as ``Gemm(transB=1)``.
        threads: in use after ``prepare``, not merely requested.
        precision: type that it computes in, one of PRECISIONS; it sets the tolerance.
        version: after ``prepare``: library that computes, such as ``onnxruntime 1.23.2``.
        call_seconds: after ``prepare``: cost of a call apart from the layer. None for ONNX Runtime,
            whose null session is timed in the same rounds.

    """

    name: str
    form: str
    threads: int
    precision: str
    version: str
    call_seconds: float | None

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Load, pack and allocate everything, so that ``run`` only computes.

        Args:
            inputs: live arrays by name, C-contiguous and 64-byte aligned.

        Raises:
            Exception: of any type when it cannot; its text becomes the reason in the report.

        """

    def run(self) -> None:
        """Compute the outputs from the current content of the inputs."""

    def output(self) -> Sequence[np.ndarray]:
        """Return the outputs of the last run, as copies or views."""

    def close(self) -> None:
        """Free everything. Called once, even after a failed ``prepare``."""


@runtime_checkable
class SelfTimedEngine(Engine, Protocol):
    """An engine in another process, which times its own runs; process switches are not timed."""

    def time_runs(
        self, lead_in: float, count: int, numbers: Sequence[float] = (), condition: str = ""
    ) -> Sequence[int]:
        """Run untimed for ``lead_in`` seconds, then time ``count`` runs one by one.

        Args:
            lead_in: seconds of untimed runs.
            count: number of timed runs.
            numbers: none, or two that alternate as the first element of the input; the first of
                them is there in the last run.
            condition: one of CONDITIONS, established before each run.

        Returns:
            Nanoseconds of each timed run.

        """


class BaseEngine:
    """State that engines share; see Engine for the attributes."""

    call_seconds: float | None = None
    version = ""

    def __init__(self, name: str, form: str = "", threads: int = 0, precision: str = "float32"):
        self.name = name
        self.form = form
        self.threads = threads
        self.precision = precision

    def run(self) -> None:
        """See Engine."""

    def output(self) -> Sequence[np.ndarray]:
        """See Engine."""
        return []

    def close(self) -> None:
        """See Engine."""


class UnavailableEngine(BaseEngine):
    """Stands in for an engine that is not available here; ``prepare`` raises the reason."""

    def __init__(self, name: str, reason: str):
        super().__init__(name)
        self._reason = reason

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> NoReturn:  # noqa: ARG002
        """Raise EngineUnavailableError with the reason."""
        raise EngineUnavailableError(self._reason)


class EngineUnavailableError(Exception):
    """An engine that was requested is not installed."""


def aligned_copy(array: np.ndarray, alignment: int = 64) -> np.ndarray:
    """Copy to a C-contiguous array that starts on a cache line."""
    array = np.ascontiguousarray(array)
    buffer = np.empty(array.nbytes + alignment, np.uint8)
    start = -buffer.ctypes.data % alignment
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
