"""Engines of the kernel bench: a kernel through the binding, and plain reading beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np

from ....ort_ops import _native
from ....ort_ops.format.condensed import CondensedWeight
from .protocol import aligned_copy
from .quantized_layer import QuantizedLayer

_CALLS = 2000


def pack(
    weight: CondensedWeight, batch: int | None, kernel: str | None = None, threads: int = 1
) -> _native.PackedGemm:
    """Pack for one batch, by the kernel of that name or the one that the dispatch table takes.

    None packs for every batch. Layouts are cut as for a session of so many ``threads``.
    """
    return _native.PackedGemm(
        values=weight.values,
        indices=weight.indices,
        rows=weight.rows,
        bias=weight.bias,
        in_features=weight.in_features,
        out_features=weight.out_features,
        min_batch=batch or 1,
        max_batch=batch,
        kernel=kernel,
        threads=threads,
    )


def pack_int8(layer: QuantizedLayer, batch: int, threads: int = 1) -> _native.PackedQuantizedGemm:
    """Pack a layer of 8-bit integers for one batch, by the kernel that the dispatch table takes."""
    weight = CondensedWeight.from_dense(layer.integers.astype(np.float32))
    return _native.PackedQuantizedGemm(
        values=weight.values.astype(np.int8),
        indices=weight.indices,
        rows=weight.rows,
        in_features=weight.in_features,
        out_features=weight.out_features,
        min_batch=batch,
        max_batch=batch,
        threads=threads,
    )


class KernelEngine:
    """One kernel, forced by its name; None is the one that the dispatch table selects."""

    threads = 1
    precision = "float32"
    call_seconds: float | None = None
    version = "fanin"

    def __init__(self, weight: CondensedWeight, batch: int, kernel: str | None):
        start = time.perf_counter()
        self._packed = pack(weight, batch, kernel)
        self.pack_seconds = time.perf_counter() - start
        (self.info,) = self._packed.info()
        self.name = self.form = self.info.kernel
        self._y = aligned_copy(np.full((batch, weight.out_features), np.nan, np.float32))

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> None:
        """See Engine."""
        (self._x,) = inputs.values()

    def run(self) -> None:
        """See Engine."""
        self._packed.run(self._x, out=self._y)

    def output(self) -> Sequence[np.ndarray]:
        """See Engine."""
        return [self._y]

    def close(self) -> None:
        """See Engine."""
        del self._packed


class ReadEngine:
    """Reads a number of bytes in order: what memory allows for a layer of that size."""

    name = form = "read"
    version = ""
    threads = 1
    precision = "float32"
    call_seconds: float | None = None

    def __init__(self, size: int):
        self._size = size

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> None:  # noqa: ARG002
        """See Engine."""
        self._bytes = aligned_copy(np.ones(self._size, np.uint8))

    def run(self) -> None:
        """See Engine."""
        _native.read_once(self._bytes)

    def output(self) -> Sequence[np.ndarray]:
        """See Engine."""
        return []

    def close(self) -> None:
        """See Engine."""
        self._bytes = np.empty(0, np.uint8)


def call_seconds() -> tuple[float, float]:
    """Time the calls of a kernel and of the reading that have nothing to do."""
    one = np.ones((1, 1), np.float32)
    kernel = KernelEngine(CondensedWeight.from_dense(one, one[0]), 1, None)
    kernel.prepare({"x": one})
    read = ReadEngine(64)
    read.prepare({})
    return _typical(kernel.run, _CALLS), _typical(read.run, _CALLS)


def read_bytes_per_cycle(size: int, call: float) -> float:
    """Read that many bytes again and again; returns the typical rate, less ``call`` seconds."""
    read = ReadEngine(size)
    read.prepare({})
    seconds = _typical(read.run, 5 + (32 << 20) // size)
    return size / (max(seconds - call, 1e-9) * _native.clock_hertz())


def _typical(run: Callable[[], None], count: int) -> float:
    times = []
    for _ in range(count):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return median(times) / 1e9
