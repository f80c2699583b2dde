"""Measures what it costs to start a run on several threads (``fanin calibrate``)."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from ....export.onnx_op import condensed_layer_model
from ....ort_ops.dispatch_cost import (
    SLEEPING,
    SPINNING,
    DispatchCalibration,
    DispatchCost,
    describe_cpus,
)
from ....ort_ops.format.condensed import CondensedWeight
from ...cpus import default_threads
from ...session import DISPATCH_KEY, SPINNING_KEY
from ..engines.kernels import pack
from ..engines.onnx_models import null_session
from ..engines.self_checked import SelfCheckedLayer
from ..measure.layer_problem import self_checked_problem
from ..measure.pinning import pinned
from ..measure.timing import Progress, Timing
from .calibrate_grid import measure_grid, measure_rounds
from .random_layer import random_sparse_layer
from .specs import thread_counts

# A layer whose weights fit L2, and whose samples take much work for what they read and write: the
# caller alone takes as long for a share as another core does. 32 samples take 30 µs with AVX-512.
_SIZE, _FAN_IN, _TILE = 256, 128, 32


class _Point(NamedTuple):
    """A number of threads, and whether those that wait spin."""

    threads: int
    spin: bool

    @property
    def batch(self) -> int:
        """Samples for the work of a run.

        Threads that sleep are given three times as much: if the caller were done with its share
        before they wake, it would take theirs, and hide what they cost.
        """
        return _TILE * self.threads * (1 if self.spin else 3)

    def __str__(self) -> str:
        return f"dispatch to {self.threads} threads, {'spinning' if self.spin else 'sleeping'}"


@dataclass(frozen=True)
class DispatchCalibrationSpec:
    """Numbers of threads, and how long each is measured.

    Attributes:
        threads: 2, 4, 8 … and all CPUs.
        passes: over all of them.
        timing: of every session.
        seed: of weights and inputs.

    """

    threads: tuple[int, ...] = field(default_factory=lambda: thread_counts(default_threads())[1:])
    passes: int = 3
    timing: Timing = field(default_factory=lambda: Timing(rounds=7, turn=0.005, max_warmup=0.1))
    seed: int = 0


def calibrate_dispatch(
    spec: DispatchCalibrationSpec | None = None,
    progress: Progress = lambda title, done: None,  # noqa: ARG005
) -> DispatchCalibration | None:
    """Measure a dispatch at each number of threads, those that wait spinning and sleeping.

    A small layer runs split between all threads, and in the same pool on the caller alone: the
    dispatch is what the first takes beyond its share of the second.

    Returns:
        The costs; None where there is a single CPU.

    Raises:
        SessionError: a session could not be measured, with its reason.

    """
    spec = DispatchCalibrationSpec() if spec is None else spec
    if not spec.threads:
        return None
    points = [_Point(threads, spin) for spin in (True, False) for threads in spec.threads]
    seconds = measure_grid(points, spec.passes, partial(_measure_point, spec), progress)

    def fit(spin: bool, assumed: DispatchCost) -> DispatchCost:
        times = {
            point.threads: _microseconds(point, own, spec.seed)
            for point, own in seconds.items()
            if point.spin == spin
        }
        return fit_dispatch(times, assumed)

    return DispatchCalibration(
        describe_cpus(), spec.threads, spinning=fit(True, SPINNING), sleeping=fit(False, SLEEPING)
    )


def fit_dispatch(times: Mapping[int, float], assumed: DispatchCost) -> DispatchCost:
    """Fit fixed + per_thread · n to measured times; neither is negative.

    The slope is the median of those between all pairs of points (Theil-Sen), so that a few wrong
    times do not move it.

    Args:
        times: microseconds of a dispatch by the number of threads.
        assumed: supplies the share of each thread where one number of threads was measured alone.

    """
    points = [(threads, max(0.0, time)) for threads, time in times.items()]
    slopes = [(b - a) / (m - n) for (n, a), (m, b) in itertools.combinations(points, 2)]
    slope = max(0.0, median(slopes)) if slopes else assumed.per_thread
    fixed = median(time - slope * threads for threads, time in points)
    if fixed < 0:
        fixed, slope = 0.0, median(time / threads for threads, time in points)
    return DispatchCost(round(fixed, 3), round(slope, 4))


def _measure_point(spec: DispatchCalibrationSpec, point: _Point) -> dict[str, np.ndarray]:
    threads, batch = point.threads, point.batch
    weight = _layer(spec.seed)
    spinning = {SPINNING_KEY: "1" if point.spin else "0"}
    costs = {"split": "0,0", "whole": "1e9,0"}  # a dispatch always pays, or never
    with tempfile.TemporaryDirectory() as scratch, pinned(threads):
        folder = Path(scratch)
        engines = [
            SelfCheckedLayer(
                name,
                condensed_layer_model(weight, batch),
                weight,
                folder,
                threads,
                library=True,
                entries={DISPATCH_KEY: cost, **spinning},
            )
            for name, cost in costs.items()
        ]
        return measure_rounds(
            engines,
            self_checked_problem(batch, _SIZE, spec.seed),
            replace(spec.timing, threads=threads),
            f"at {point}",
            # Of one output: what a large one takes to write is part of the layer's work.
            null=null_session(folder, batch, _SIZE, 1, threads),
        )


def _microseconds(point: _Point, seconds: Mapping[str, float], seed: int) -> float:
    """Return what the split run takes beyond the longest share of the whole one's work."""
    packed = pack(_layer(seed), point.batch, threads=point.threads)
    plan = packed.plan(point.batch, point.threads)
    work = seconds["whole"] - seconds["null"]
    share = work * plan.longest / plan.microseconds
    return 1e6 * (seconds["split"] - seconds["null"] - share)


def _layer(seed: int) -> CondensedWeight:
    return random_sparse_layer("random", np.random.default_rng(seed), _SIZE, _SIZE, _SIZE, _FAN_IN)
