"""Measures what fanin export --device cuda chooses by (``fanin calibrate --device cuda``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....export.gpu_kernels import KERNELS, Layer, dense_seconds, family_of
from ....export.gpus import BFLOAT16_CAPABILITY, DENSE, Gpu
from ...errors import SessionError
from ..engines.protocol import EngineUnavailableError
from ..measure.timing import Progress
from ..requirements import RequirementError
from ..results.case import Case
from .cuda import BenchCudaSpec, bench_cuda

_SHARED_BYTES = {
    75: 65_536,
    80: 166_912,
    86: 101_376,
    87: 166_912,
    89: 101_376,
    90: 232_448,
    100: 232_448,
    120: 101_376,
}
"""Shared memory that a block can have, by compute capability."""

_LEAST_SHARED = 49_152

_TF32_SHARE = 0.5
"""Rate of TF32 as a share of bfloat16's, on every GPU that has both."""

_UNLUCKY = 10
"""Percentile of the layers that dense is predicted faster than, and a kernel slower than."""


@dataclass(frozen=True)
class CudaCalibrationSpec:
    """The layers that are measured: so large that a ring of copies reads them from memory."""

    shapes: tuple[tuple[int, int], ...] = ((4096, 4096), (4096, 14336), (14336, 4096))
    sparsities: tuple[float, ...] = (0.8, 0.95)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 128)
    activations: tuple[str, ...] = ("float32", "bfloat16")
    rounds: int = 7
    emulated: bool = False

    def of(self, shape: tuple[int, int], kind: str) -> BenchCudaSpec:
        """Return the benchmark of one shape in one type."""
        return BenchCudaSpec(
            shapes=(shape,),
            sparsities=self.sparsities,
            batches=self.batches,
            activations=(kind,),
            values=kind,
            launches=("ring",),
            conditions=(),
            convolutions=False,
            rounds=self.rounds,
            emulated=self.emulated,
            ring_kernels=True,
        )


def calibrate_cuda(
    spec: CudaCalibrationSpec = CudaCalibrationSpec(),
    progress: Progress = lambda title, done: None,  # noqa: ARG005
) -> Gpu:
    """Measure this machine's GPU: what it does at most, and layers dense and by each kernel.

    The predictions of the GPU's multiprocessors, bandwidth and clock are multiplied by one factor
    for each family of kernels, and one for dense. They are on the careful side: nine of ten layers
    are slower dense, and faster condensed, than is predicted then. A kernel that the card lacks or
    whose results are wrong there has no factor.

    Raises:
        SessionError: there is no GPU, or no CUDA kernels or torch to measure it with.

    """
    gpu: Gpu | None = None
    ratios: dict[str, list[float]] = {}
    plan = [(shape, kind) for shape in spec.shapes for kind in spec.activations]
    for number, (shape, kind) in enumerate(plan):
        if gpu and kind == "bfloat16" and not gpu.has_bfloat16:
            kind = "float16"

        def report(title: str, done: float, number: int = number) -> None:
            progress(title, (number + done) / len(plan))

        try:
            result = bench_cuda(spec.of(shape, kind), progress=report)
        except (EngineUnavailableError, RequirementError) as error:
            raise SessionError(
                f"no GPU can be measured here: {error}",
                "Export with --device cuda:NAME of a known GPU.",
            ) from error
        gpu = gpu or _gpu(result.facts["gpu"])
        for family, ratio in _ratios(gpu, shape, result.cases):
            ratios.setdefault(family, []).append(ratio)
    if gpu is None or not {DENSE} < set(ratios):
        raise SessionError(
            "no layer was measured dense and by a kernel",
            "fanin bench cuda says which engines fail, and why.",
        )
    return replace(
        gpu, factors={family: _factor(family, found) for family, found in ratios.items()}
    )


def _factor(family: str, ratios: Sequence[float]) -> float:
    percentile = _UNLUCKY if family == DENSE else 100 - _UNLUCKY
    return float(np.percentile(ratios, percentile))


def _gpu(card: Mapping[str, Any]) -> Gpu:
    capability = round(10 * float(card["compute_capability"]))
    half = float(card.get("bfloat16_macs_per_second") or card["float16_macs_per_second"])
    tf32 = capability >= BFLOAT16_CAPABILITY
    return Gpu(
        name=str(card["device"]),
        capability=capability,
        multiprocessors=int(card["multiprocessors"]),
        hertz=float(card["hertz"]),
        bytes_per_second=float(card["bytes_per_second"]),
        l2_bytes=int(card["l2_bytes"]),
        shared_bytes=_SHARED_BYTES.get(capability, _LEAST_SHARED),
        float32_macs=_TF32_SHARE * half if tf32 else float(card["float32_macs_per_second"]),
        half_macs=half,
        source="fanin calibrate",
    )


def _ratios(gpu: Gpu, shape: tuple[int, int], cases: Sequence[Case]) -> Iterator[tuple[str, float]]:
    """Yield measured over predicted seconds of each layer, dense and by each kernel."""
    columns, outputs = shape
    for case in cases:
        kind = case.facts["type"]
        stored = max(1, round(columns * outputs * (1 - (case.sparsity or 0.0))))
        layer = Layer(case.batch, outputs, columns, stored, kind)
        tensor_cores = "dense-tf32" if kind == "float32" and gpu.has_bfloat16 else "dense"
        for engine in case.engines:
            if engine.run is None:  # it failed, or its outputs are wrong
                continue
            if engine.name == tensor_cores:
                yield DENSE, engine.run_seconds / dense_seconds(gpu, layer)
            elif engine.name.startswith("kernel-"):
                family = family_of(engine.form.partition(",")[0])
                if family in KERNELS:
                    yield family, engine.run_seconds / KERNELS[family].seconds(gpu, layer)
