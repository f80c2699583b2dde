"""One setting of a benchmark: what was measured of its engines, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from ..measure.breakdown import Breakdown
from ..measure.statistics import Comparison, RoundTimes, Spread, compare, less
from ..measure.timing import EngineRecord, Measurement
from .plain import RAW


@dataclass
class EngineResult(EngineRecord):
    """One engine in one case. Times are in seconds.

    Attributes:
        run: whole runs over the rounds; None for an excluded engine.
        op: runs less the null session of the same round, or less ``call_seconds`` for an engine
            that is not ONNX Runtime; None for an excluded engine and without a null session.
        percentiles: p50, p90 from 10 and p99 from 100 runs on, of all timed runs of all rounds.
        conditions: runs of the rounds under other conditions, by their names.
        rounds_seconds: raw figures of ``run``.

    """

    run: Spread | None = None
    op: Spread | None = None
    percentiles: dict[str, float] = field(default_factory=dict)
    conditions: dict[str, Spread] = field(default_factory=dict)
    rounds_seconds: tuple[float, ...] = field(default=(), metadata=RAW)

    @property
    def run_seconds(self) -> float:
        """Median run; raises ValueError for an excluded engine."""
        if self.run is None:
            raise ValueError(f"{self.name} is excluded ({self.excluded})")
        return self.run.median


@dataclass(frozen=True)
class Rival:
    """Speed-up of an engine of ours over the fastest of a family of other engines.

    ``forms`` are all engines of the family that are not excluded; the one with the shortest op time
    (run time without null calls) is the ``comparison``'s baseline.
    """

    family: str
    forms: tuple[str, ...]
    comparison: Comparison


@dataclass(frozen=True)
class Case:
    """One setting of a benchmark: the engines' times and what follows from them.

    ``facts`` are the numbers of the case that belong to no engine (fan-in, bytes, kernel).
    ``comparisons`` are with the first engine, ``rivals`` with the best of each other family.
    ``breakdowns`` say where the time of whole models goes; ``limit`` is the speed-up that the
    condensed model would have if its condensed nodes took no time.
    """

    title: str
    batch: int
    sparsity: float | None
    facts: dict[str, Any]
    engines: tuple[EngineResult, ...]
    null: EngineResult | None
    comparisons: tuple[Comparison, ...]
    rivals: tuple[Rival, ...] = ()
    breakdowns: tuple[Breakdown, ...] = ()
    limit: float | None = None

    @property
    def all_engines(self) -> tuple[EngineResult, ...]:
        """The engines and the null session."""
        return self.engines if self.null is None else (*self.engines, self.null)

    def engine(self, name: str) -> EngineResult:
        """Return the engine of that name; raises KeyError when there is none."""
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise KeyError(name)

    def comparison(self, engine: str) -> Comparison | None:
        """Return how that engine compares with the first one; None if one is excluded."""
        return next((one for one in self.comparisons if one.engine == engine), None)


def make_case(
    title: str,
    batch: int,
    sparsity: float | None,
    facts: dict[str, Any],
    measurements: Sequence[Measurement],
    null: Measurement | None,
    families: Mapping[str, Sequence[str]] | None = None,
    ours: Mapping[str, str] = MappingProxyType({}),
) -> Case:
    """Make the case of these measurements; every engine is compared with the first one.

    ``families`` are the names of the engines in each family that ours is compared with: the one
    that ``ours`` names for the family, else ``condensed``.
    """
    base, *others = (_series(one, null) for one in measurements)
    counts = {one.name for one in measurements if one.excluded is None}
    comparisons = tuple(
        compare(base, other) for other in others if base.name in counts and other.name in counts
    )
    series = {one.name: one for one in (base, *others) if one.name in counts}
    rivals = tuple(
        _rival(family, [series[name] for name in names if name in series], series[own])
        for family, names in (families or {}).items()
        if (own := ours.get(family, "condensed")) in series and not counts.isdisjoint(names)
    )
    return Case(
        title=title,
        batch=batch,
        sparsity=sparsity,
        facts=facts,
        engines=tuple(_engine_result(one, _series(one, null).null) for one in measurements),
        null=_engine_result(null, None) if null is not None else None,
        comparisons=comparisons,
        rivals=rivals,
    )


def _series(measured: Measurement, null: Measurement | None) -> RoundTimes:
    """Pair an engine with its null calls: its own, else those of the null session if any."""
    zeros = null.rounds_seconds if null is not None and null.excluded is None else None
    if measured.call_seconds is not None:
        zeros = [measured.call_seconds] * len(measured.rounds_seconds)
    return RoundTimes(measured.name, measured.rounds_seconds, zeros, measured.conditions)


def _percentiles(runs: Sequence[float]) -> dict[str, float]:
    shown = {50: 1, 90: 10, 99: 100}
    return {
        f"p{share}": float(np.percentile(runs, share))
        for share, least in shown.items()
        if len(runs) >= least
    }


def _rival(family: str, forms: Sequence[RoundTimes], ours: RoundTimes) -> Rival:
    def typical(one: RoundTimes) -> float:
        return Spread.of(less(one.times, one.null or [0.0] * len(one.times))).median

    best = min(forms, key=typical)
    return Rival(family, tuple(one.name for one in forms), compare(best, ours))


def _engine_result(measured: Measurement, null_times: Sequence[float] | None) -> EngineResult:
    result = EngineResult(
        **{one.name: getattr(measured, one.name) for one in fields(EngineRecord)},
        rounds_seconds=tuple(measured.rounds_seconds),
    )
    if measured.excluded is None:
        result.run = Spread.of(measured.rounds_seconds)
        if null_times is not None:
            result.op = Spread.of(less(measured.rounds_seconds, null_times))
        result.percentiles = _percentiles(measured.runs_seconds)
        result.conditions = {name: Spread.of(one) for name, one in measured.conditions.items()}
    return result
