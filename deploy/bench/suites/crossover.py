"""The sparsity above which condensed is faster than dense, measured and as export predicts it."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....ort_ops.format.condensed import CondensedWeight
from ...cpus import available_cpus
from ..engines.onnx_models import null_session
from ..measure.layer_problem import self_checked_problem
from ..measure.loop import measure
from ..measure.pinning import pinned
from ..measure.statistics import RoundTimes, Spread, compare
from ..measure.timing import Measurement, Progress, Timing
from ..requirements import require
from ..results.plain import to_plain
from ..results.result import Recorder, Result
from .calibrate_grid import dense_and_condensed
from .random_layer import random_sparse_layer
from .specs import check_batches, spec_facts

TIE = 1.1
"""Ratio of times below which either form is acceptable: the cost model is no more precise."""


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

    ``speedup`` is of the op, or of the whole run where the op is too short to be measured. ``auto``
    is the form that ``export --policy auto`` chooses; ``agrees``: it is the faster one, or the two
    are within TIE of each other. Both are for as many threads, unless the result's facts lack
    ``predicted_by_threads``: then they are for one.
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
    """Sparsity above which condensed is faster; None if it is at none of those measured.

    0 means at all of them. ``auto`` is the same according to the exporter's predictions.
    """

    threads: int
    batch: int
    measured: float | None
    auto: float | None


CrossoverResult = Result[CrossoverPoint]
"""Its ``facts``: ``cost_model``, ``crossovers``, ``predicted_by_threads``, and the reasons in
``excluded``."""


def bench_crossover(
    spec: BenchCrossoverSpec, *, progress: Progress | None = None
) -> CrossoverResult:
    """Measure the layer at each number of threads and batch; all sparsities share their rounds."""
    require("onnx", "the benchmark makes its models with it")
    from ....export.cost_model import CostModel

    recorder = Recorder()
    settings = list(itertools.product(spec.threads, spec.batches))
    points: list[CrossoverPoint] = []
    crossovers: list[Crossover] = []
    excluded: list[str] = []
    for threads, batch in settings:
        if progress:
            progress(f"batch {batch}, threads {threads}", len(crossovers) / len(settings))
        with pinned(threads):
            found = _measure(spec, threads, batch, excluded)
        sparsities = [one.sparsity for one in found]
        measured = crossing(sparsities, [one.speedup.median for one in found])
        predicted = crossing(sparsities, [one.predicted for one in found])
        crossovers.append(Crossover(threads, batch, measured, predicted))
        points += found
    return recorder.result(
        "crossover",
        f"Crossover of a layer {spec.in_features} → {spec.out_features}",
        spec_facts(spec),
        spec.timing(max(spec.threads)),
        tuple(points),
        cost_model="; ".join(CostModel.of_this_machine(n).origin for n in spec.threads),
        crossovers=to_plain(crossovers),
        excluded=excluded,
        predicted_by_threads=True,
    )


def crossing(sparsities: list[float], ratios: list[float]) -> float | None:
    """Return where the ratio last rises above 1, interpolating its logarithm linearly.

    0 when it is above 1 everywhere, None when it is not above 1 at the end or there are no ratios.
    """
    if not ratios or ratios[-1] <= 1:
        return None
    low = max((at for at, ratio in enumerate(ratios) if ratio <= 1), default=None)
    if low is None:
        return 0.0
    (x0, x1), (y0, y1) = sparsities[low : low + 2], np.log(ratios[low : low + 2])
    return float(x0 + (x1 - x0) * -y0 / (y1 - y0))


def _measure(
    spec: BenchCrossoverSpec, threads: int, batch: int, excluded: list[str]
) -> list[CrossoverPoint]:
    """Measure one setting; excluded engines are added to ``excluded``, with the reasons."""
    from ....export.forms import Chooser

    sizes = (spec.in_features, spec.out_features)
    weights = {sparsity: _weight(spec, sparsity) for sparsity in spec.sparsities}
    with tempfile.TemporaryDirectory(prefix="fanin-bench-") as scratch:
        folder = Path(scratch)
        (base, *others), null = measure(
            dense_and_condensed(weights, batch, folder, threads),
            self_checked_problem(batch, spec.in_features, spec.seed),
            spec.timing(threads),
            null=null_session(folder, batch, *sizes, threads),
        )
    excluded += [
        f"batch {batch}, threads {threads}: {one.name} is excluded ({one.excluded})"
        for one in (base, *others, null)
        if one.excluded
    ]
    if base.excluded:
        return []
    chooser = Chooser.of("auto", batch, portable=False, threads=threads)
    costs = chooser.costs
    dense_seconds = costs.dense(batch, *sizes[::-1])
    points = []
    for (sparsity, weight), condensed in zip(weights.items(), others, strict=True):
        if condensed.excluded is None:
            speedup = _speedup(base, condensed, null)
            predicted = dense_seconds / costs.condensed(batch, *sizes[::-1], weight.values.size)
            auto = chooser.choose(weight, batch).form
            slower = 1 / speedup.median if auto == "condensed" else speedup.median
            point = (threads, batch, sparsity, speedup, predicted, auto, slower <= TIE)
            points.append(CrossoverPoint(*point))
    return points


def _speedup(base: Measurement, condensed: Measurement, null: Measurement) -> Spread:
    zeros = null.rounds_seconds if null.excluded is None else None
    both = (RoundTimes(one.name, one.rounds_seconds, zeros) for one in (base, condensed))
    return compare(*both).best_ratio


def _weight(spec: BenchCrossoverSpec, sparsity: float) -> CondensedWeight:
    rng = np.random.default_rng([spec.seed, round(sparsity * 1e6)])
    fan_in = max(1, round((1 - sparsity) * spec.in_features))
    sizes = (spec.in_features, spec.out_features)
    return random_sparse_layer("random", rng, *sizes, spec.out_features, fan_in)
