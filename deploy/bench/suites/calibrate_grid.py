"""Times of sessions that take turns at each point of a grid, on a machine of varying speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from ....ort_ops.format.condensed import CondensedWeight
from ...errors import SessionError
from ..engines.protocol import Engine
from ..engines.self_checked import SelfCheckedLayer
from ..measure.loop import measure
from ..measure.problem import Problem
from ..measure.timing import Progress, Timing

_Point = TypeVar("_Point")

_CPU_TIME = time.get_clock_info("thread_time").resolution <= 1e-7
"""Whether the system's clock of CPU time is fine enough; that of Windows is not."""

SHORTEST = 5e-8
"""Seconds; a difference of two sessions below it is noise."""


def measure_grid(
    points: Sequence[_Point],
    passes: int,
    measure_point: Callable[[_Point], Mapping[str, np.ndarray]],
    progress: Progress,
    threads: int = 1,
) -> dict[_Point, dict[str, float]]:
    """Return the seconds of each session at each point; see measure_rounds.

    With one thread they are those of fastest_rounds, with several those of fastest_of_each. Every
    pass is over the whole grid: a machine that is slow for a while is not slow at the same
    points in each. ``progress`` is called with the str() of each point.
    """
    rounds: dict[_Point, list[Mapping[str, np.ndarray]]] = {point: [] for point in points}
    for number in range(passes * len(points)):
        point = points[number % len(points)]
        progress(str(point), number / (passes * len(points)))
        rounds[point].append(measure_point(point))
    summarize = fastest_rounds if threads == 1 else fastest_of_each
    return {point: summarize(own) for point, own in rounds.items()}


def measure_rounds(
    engines: Sequence[Engine],
    problem: Problem,
    timing: Timing,
    where: str,
    *,
    null: Engine | None = None,
) -> dict[str, np.ndarray]:
    """Measure the engines in turn; returns the seconds of each in each round, by its name.

    With one thread they are CPU time, which other processes lengthen less.

    Raises:
        SessionError: an engine could not be measured ``where``, with its reason.

    """
    clock = time.thread_time_ns if timing.threads == 1 and _CPU_TIME else time.perf_counter_ns
    timed, base = measure(engines, problem, timing, null=null, clock=clock)
    results = [*timed, base] if null else timed
    for result in results:
        if result.excluded:
            raise SessionError(
                f"the calibration could not measure {result.name} {where}: {result.excluded}",
                "fanin doctor checks what it needs.",
            )
    return {result.name: np.array(result.rounds_seconds) for result in results}


def fastest_rounds(passes: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Return each session's median over the fastest third of all passes' rounds, the same for all.

    A machine that changes its speed, for a neighbor or its clock, does so for longer than a round:
    what is compared must come from the same rounds, and rounds in a slow spell are useless.
    """
    rounds = {name: np.concatenate([one[name] for one in passes]) for name in passes[0]}
    order = np.argsort(sum(rounds.values()))
    kept = order[: max(1, len(order) // 3)]
    return {name: float(np.median(times[kept])) for name, times in rounds.items()}


def fastest_of_each(passes: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Return each session's fastest round, itself a median: for sessions of several threads.

    Their turns lie far apart, since threads that spin must come to rest between them, and another
    process that takes one of their CPUs doubles a turn's time: it is not the same rounds that are
    disturbed. On two cores with two other busy processes, ratios of the same two sessions in two
    calibrations differed by up to 1.3 (convolutions) and 1.13 (layers) in nine points of ten, with
    fastest_rounds by 1.5 and 1.3.
    """
    return {name: float(min(one[name].min() for one in passes)) for name in passes[0]}


def above(seconds: Mapping[str, float], name: str, base: str) -> float:
    """Return how much longer one session takes than another, at least SHORTEST."""
    return max(seconds[name] - seconds[base], SHORTEST)


def dense_and_condensed(
    weights: Mapping[float, CondensedWeight], batch: int, folder: Path, threads: int = 1
) -> list[SelfCheckedLayer]:
    """Make the engine ``dense`` of the first layer, and ``condensed KEY`` of each."""
    from ....export.onnx_op import condensed_layer_model, dense_layer_model

    dense = next(iter(weights.values()))  # what a dense kernel multiplies does not change its time
    return [
        SelfCheckedLayer(
            "dense", dense_layer_model(dense, batch), dense, folder, threads, library=False
        )
    ] + [
        SelfCheckedLayer(
            f"condensed {key}",
            condensed_layer_model(weight, batch),
            weight,
            folder,
            threads,
            library=True,
        )
        for key, weight in weights.items()
    ]
