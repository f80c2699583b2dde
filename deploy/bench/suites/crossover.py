"""From which sparsity on condensed is faster than dense, and whether the exporter knows."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....ort_ops.format.condensed import CondensedWeight
from ...cpus import available_cpus
from ..engines.onnx_models import save_null_model
from ..engines.ort import OrtEngine
from ..engines.self_checked import SelfCheckedLayer
from ..measure.layer_problem import self_checked_problem
from ..measure.loop import measure
from ..measure.pinning import pinned
from ..measure.statistics import RoundTimes, Spread, compare
from ..measure.timing import Measurement, Progress, Timing
from ..requirements import require
from ..results.plain import to_plain
from ..results.result import Recorder, Result
from .random_layer import random_sparse_layer
from .specs import check_batches

TIE = 1.1
"""Ratio of times within which either form will do: the cost model's own grain is no finer."""


@dataclass(frozen=True)
class BenchCrossoverSpec:
    """One layer at all ``sparsities``, dense and condensed in the same rounds."""

    in_features: int = 768
    out_features: int = 768
    sparsities: tuple[float, ...] = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    batches: tuple[int, ...] = (1, 8, 32, 64, 256)
    threads: tuple[int, ...] = tuple(range(1, min(4, available_cpus()) + 1))
    rounds: int = 15
    turn: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        check_batches(self.batches)
        if len(self.sparsities) < 2 or list(self.sparsities) != sorted(set(self.sparsities)):
            raise ValueError(f"sparsities are {self.sparsities}; give two or more, increasing")
        if not 0 < self.sparsities[0] < self.sparsities[-1] < 1:
            raise ValueError(f"sparsities are {self.sparsities}; they must be above 0 and below 1")
        self.timing(1)

    def timing(self, threads: int) -> Timing:
        """How the cases are timed."""
        return Timing(threads=threads, rounds=self.rounds, turn=self.turn, max_warmup=0.3)


@dataclass(frozen=True)
class CrossoverPoint:
    """One sparsity: the speed-up of condensed over dense, measured and predicted.

    ``speedup`` is of the op, or of the whole run where the op is too short to be told from it.
    ``auto`` is the form that ``export --policy auto`` takes; ``agrees``: it is the faster one, or
    the two are within TIE of each other. The prediction is for one thread.
    """

    threads: int
    batch: int
    sparsity: float
    speedup: Spread
    predicted: float
    auto: str
    agrees: bool


@dataclass(frozen=True)
class Crossover:
    """Sparsity above which condensed is faster; None where it is at none of those measured.

    0 stands for: already at the least. ``auto`` is the same of the exporter's predictions.
    """

    threads: int
    batch: int
    measured: float | None
    auto: float | None


CrossoverResult = Result[CrossoverPoint]
"""A finished measurement. Its ``facts``: ``cost_model``, ``crossovers``, and ``excluded``, the
engines that did not count, with the reason."""


def bench_crossover(
    spec: BenchCrossoverSpec, *, progress: Progress | None = None
) -> CrossoverResult:
    """Measure the layer at each number of threads and batch; all sparsities share their rounds."""
    require("onnx", "the benchmark makes its models with it")
    from ....export.cost_model import CostModel

    recorder = Recorder()
    settings = list(itertools.product(spec.threads, spec.batches))
    points: list[CrossoverPoint] = []
    excluded: list[str] = []
    for number, (threads, batch) in enumerate(settings):
        if progress:
            progress(f"batch {batch}, threads {threads}", number / len(settings))
        with tempfile.TemporaryDirectory(prefix="fanin-bench-") as folder, pinned(threads):
            found, failed = _measure(spec, threads, batch, Path(folder))
        points += found
        excluded += failed
    crossovers = []
    for threads, batch in settings:
        own = [one for one in points if (one.threads, one.batch) == (threads, batch)]
        sparsities = [one.sparsity for one in own]
        measured, predicted = (
            crossing(sparsities, ratios)
            for ratios in ([one.speedup.median for one in own], [one.predicted for one in own])
        )
        crossovers.append(Crossover(threads, batch, measured, predicted))
    return recorder.result(
        "crossover",
        f"Crossover of a layer {spec.in_features} → {spec.out_features}",
        dataclasses.asdict(spec),
        spec.timing(max(spec.threads)),
        tuple(points),
        cost_model=CostModel.of_this_machine().machine,
        crossovers=to_plain(crossovers),
        excluded=excluded,
    )


def crossing(sparsities: list[float], ratios: list[float]) -> float | None:
    """Return where the ratio rises through 1 for good, by straight lines in its logarithm.

    0 when it is above 1 from the start, None when it is not at the end or there are no ratios.
    """
    if not ratios or ratios[-1] <= 1:
        return None
    low = max((at for at, ratio in enumerate(ratios) if ratio <= 1), default=None)
    if low is None:
        return 0.0
    (x0, x1), (y0, y1) = sparsities[low : low + 2], np.log(ratios[low : low + 2])
    return float(x0 + (x1 - x0) * -y0 / (y1 - y0))


def _measure(
    spec: BenchCrossoverSpec, threads: int, batch: int, folder: Path
) -> tuple[list[CrossoverPoint], list[str]]:
    from ....export.cost_model import CostModel
    from ....export.forms import Chooser
    from ....export.onnx_op import condensed_layer_model, dense_layer_model

    weights = {sparsity: _weight(spec, sparsity) for sparsity in spec.sparsities}
    first = weights[spec.sparsities[0]]
    dense = SelfCheckedLayer(
        "dense", dense_layer_model(first, batch), first, folder, threads, library=False
    )
    engines = [dense] + [
        SelfCheckedLayer(
            f"condensed {sparsity}",
            condensed_layer_model(weight, batch),
            weight,
            folder,
            threads,
            library=True,
        )
        for sparsity, weight in weights.items()
    ]
    null = folder / "null.onnx"
    save_null_model(null, batch, spec.in_features, spec.out_features)
    (base, *others), nothing = measure(
        engines,
        self_checked_problem(batch, spec.in_features, spec.seed),
        spec.timing(threads),
        null=OrtEngine("null", "null", null, threads, library=False),
    )
    excluded = [
        f"batch {batch}, threads {threads}: {one.name} is excluded ({one.excluded})"
        for one in (base, *others, nothing)
        if one.excluded
    ]
    if base.excluded:
        return [], excluded
    chooser = Chooser.of("auto", batch, portable=False)
    costs = CostModel.of_this_machine()
    points = []
    for (sparsity, weight), condensed in zip(weights.items(), others, strict=True):
        if condensed.excluded is None:
            speedup = _speedup(base, condensed, nothing)
            dense_seconds = costs.dense(batch, spec.out_features, spec.in_features)
            condensed_seconds = costs.condensed(
                batch, spec.out_features, spec.in_features, weight.values.size
            )
            predicted = dense_seconds / condensed_seconds
            auto = chooser.choose(weight, batch).form
            slower = 1 / speedup.median if auto == "condensed" else speedup.median
            point = (threads, batch, sparsity, speedup, predicted, auto, slower <= TIE)
            points.append(CrossoverPoint(*point))
    return points, excluded


def _speedup(base: Measurement, condensed: Measurement, nothing: Measurement) -> Spread:
    zeros = nothing.rounds_seconds if nothing.excluded is None else None
    series = (RoundTimes(one.name, one.rounds_seconds, zeros) for one in (base, condensed))
    compared = compare(*series)
    return compared.op_ratio or compared.run_ratio


def _weight(spec: BenchCrossoverSpec, sparsity: float) -> CondensedWeight:
    rng = np.random.default_rng([spec.seed, round(sparsity * 1e6)])
    fan_in = max(1, round((1 - sparsity) * spec.in_features))
    sizes = (spec.in_features, spec.out_features)
    return random_sparse_layer("random", rng, *sizes, spec.out_features, fan_in)
