"""Measures what fanin export --device cuda chooses by (``fanin calibrate --device cuda``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....export.gpu_cost import MOST_ROWS, Gpu, condensed_seconds, dense_seconds
from ...errors import SessionError
from ..engines.protocol import EngineUnavailableError
from ..measure.timing import Progress
from ..requirements import RequirementError
from ..results.case import Case
from .cuda import BenchCudaSpec, bench_cuda

_SHARED_BYTES = {
    "7.5": 65_536,
    "8.0": 166_912,
    "8.6": 101_376,
    "8.9": 101_376,
    "9.0": 232_448,
    "10.0": 232_448,
    "12.0": 101_376,
}
"""Shared memory that a block can have, by compute capability."""

_LEAST_SHARED = 49_152

_TF32_SHARE = 0.5
"""Rate of TF32 as a share of bfloat16's, on every GPU that has both."""

_UNLUCKY = 10
"""Percentile of the layers that dense is predicted faster than, and condensed slower than."""


@dataclass(frozen=True)
class CudaCalibrationSpec:
    """The layers that are measured, of up to MOST_ROWS rows: above, dense is taken anyway."""

    shapes: tuple[tuple[int, int], ...] = ((768, 3072), (3072, 768), (1024, 1024))
    sparsities: tuple[float, ...] = (0.8, 0.9, 0.95)
    batches: tuple[int, ...] = (1, 2, 4, 8, MOST_ROWS)
    activations: tuple[str, ...] = ("float32", "bfloat16")
    rounds: int = 7

    def of(self, shape: tuple[int, int]) -> BenchCudaSpec:
        """Return the benchmark of one shape."""
        return BenchCudaSpec(
            shapes=(shape,),
            sparsities=self.sparsities,
            batches=self.batches,
            activations=self.activations,
            launches=("graph",),
            convolutions=False,
            rounds=self.rounds,
        )


def calibrate_cuda(
    spec: CudaCalibrationSpec = CudaCalibrationSpec(),
    progress: Progress = lambda title, done: None,  # noqa: ARG005
) -> Gpu:
    """Measure this machine's GPU: what it does at most, and layers in both forms.

    The predictions of the GPU's multiprocessors, bandwidth and clock are multiplied by one factor
    for each form. Both are on the careful side: nine of ten layers are slower dense, and faster
    condensed, than is predicted then.

    Raises:
        SessionError: there is no GPU, or no CUDA kernels or torch to measure it with.

    """
    gpu: Gpu | None = None
    ratios: list[tuple[float, float]] = []
    for number, shape in enumerate(spec.shapes):

        def report(title: str, done: float, number: int = number) -> None:
            progress(title, (number + done) / len(spec.shapes))

        try:
            result = bench_cuda(spec.of(shape), progress=report)
        except (EngineUnavailableError, RequirementError) as error:
            raise SessionError(
                f"no GPU can be measured here: {error}",
                "Export with --device cuda:NAME of a known GPU.",
            ) from error
        gpu = gpu or _gpu(result.facts["gpu"])
        ratios += _ratios(gpu, shape, result.cases)
    if gpu is None or not ratios:
        raise SessionError("no layer was measured", "Give at least one shape.")
    dense, condensed = np.array(ratios).T
    return replace(
        gpu,
        dense_factor=float(np.percentile(dense, _UNLUCKY)),
        condensed_factor=float(np.percentile(condensed, 100 - _UNLUCKY)),
    )


def _gpu(card: Mapping[str, Any]) -> Gpu:
    return Gpu(
        name=str(card["device"]),
        multiprocessors=int(card["multiprocessors"]),
        hertz=float(card["hertz"]),
        bytes_per_second=float(card["bytes_per_second"]),
        l2_bytes=int(card["l2_bytes"]),
        shared_bytes=_SHARED_BYTES.get(str(card["compute_capability"]), _LEAST_SHARED),
        tf32_macs=_TF32_SHARE * float(card["bfloat16_macs_per_second"]),
        half_macs=float(card["bfloat16_macs_per_second"]),
        measured=True,
    )


def _ratios(
    gpu: Gpu, shape: tuple[int, int], cases: Sequence[Case]
) -> Iterator[tuple[float, float]]:
    """Yield measured over predicted seconds of each layer, dense and condensed."""
    columns, outputs = shape
    for case in cases:
        kind = case.facts["type"]
        rival = case.engine("dense-tf32" if kind == "float32" else "dense").run_seconds
        ours = case.engine("condensed").run_seconds
        stored = round(columns * outputs * (1 - (case.sparsity or 0.0)))
        yield (
            rival / dense_seconds(gpu, case.batch, outputs, columns, kind),
            ours / condensed_seconds(gpu, case.batch, outputs, columns, stored, kind),
        )
