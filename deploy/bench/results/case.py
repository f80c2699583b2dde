"""One setting of a benchmark: what was measured of its engines, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ..measure.breakdown import Breakdown
from ..measure.statistics import Comparison, RoundTimes, Spread, compare
from ..measure.timing import Measurement, Warmup
from .plain import RAW


@dataclass(frozen=True)
class EngineResult:
    """One engine in one case. Times are in seconds; ``excluded`` says why its times do not count.

    ``run`` spreads the whole run over the rounds, ``op`` the run less the null session of the same
    round, or less ``call_seconds`` for an engine that is not ONNX Runtime; both are None for an
    excluded engine, ``op`` also without a null session. ``percentiles`` (p50, p90, and p99 from 100
    runs on) are of all timed runs of all rounds; ``conditions`` spread the runs of the rounds under
    other conditions.
    """

    name: str
    version: str
    form: str
    threads: int
    load_seconds: float | None
    first_run_seconds: float | None
    warmup: Warmup | None
    repeats: int | None
    run: Spread | None
    op: Spread | None
    error_before: float | None
    error_after: float | None
    excluded: str | None
    percentiles: dict[str, float] = field(default_factory=dict)
    conditions: dict[str, Spread] = field(default_factory=dict)
    precision: str = "float32"
    call_seconds: float | None = None
    rounds_seconds: tuple[float, ...] = field(default=(), metadata=RAW)

    @property
    def run_seconds(self) -> float:
        """Median run of an engine that counts."""
        if self.run is None:
            raise ValueError(f"{self.name} is excluded ({self.excluded})")
        return self.run.median


@dataclass(frozen=True)
class Rival:
    """How much faster the condensed engine is than the fastest of a family of other engines.

    ``forms`` are all engines of the family that count; the one of least op time (of least run time
    without null calls) is the ``comparison``'s baseline.
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

    def engine(self, name: str) -> EngineResult:
        """Return the engine of that name; KeyError when it took no part."""
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise KeyError(name)

    def comparison(self, engine: str) -> Comparison | None:
        """Return how that engine compares with the first one; None where it does not."""
        return next((one for one in self.comparisons if one.engine == engine), None)


def make_case(
    title: str,
    batch: int,
    sparsity: float | None,
    facts: dict[str, Any],
    measurements: Sequence[Measurement],
    null: Measurement | None,
    families: Mapping[str, Sequence[str]] | None = None,
) -> Case:
    """Make the case of these measurements; every engine is compared with the first one.

    ``families`` are the names of the engines of each family that ``condensed`` has for a rival.
    """
    base, *others = (_series(one, null) for one in measurements)
    counts = {one.name for one in measurements if one.excluded is None}
    comparisons = tuple(
        compare(base, other) for other in others if base.name in counts and other.name in counts
    )
    series = {one.name: one for one in (base, *others) if one.name in counts}
    rivals = tuple(
        _rival(family, [series[name] for name in names if name in series], series["condensed"])
        for family, names in (families or {}).items()
        if "condensed" in series and not counts.isdisjoint(names)
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
    """Give the engine its null calls: its own, else those of the null session if there is one."""
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


def _rival(family: str, forms: Sequence[RoundTimes], condensed: RoundTimes) -> Rival:
    def typical(one: RoundTimes) -> float:
        zeros = one.null or [0.0] * len(one.times)
        return Spread.of([own - zero for own, zero in zip(one.times, zeros, strict=True)]).median

    best = min(forms, key=typical)
    return Rival(family, tuple(one.name for one in forms), compare(best, condensed))


def _engine_result(measured: Measurement, null_times: Sequence[float] | None) -> EngineResult:
    counts = measured.excluded is None
    times = measured.rounds_seconds
    op = None
    if counts and null_times is not None:
        op = Spread.of([own - zero for own, zero in zip(times, null_times, strict=True)])
    taken = {
        one.name: getattr(measured, one.name)
        for one in fields(EngineResult)
        if hasattr(measured, one.name)
    }
    return EngineResult(
        **{
            **taken,
            "run": Spread.of(times) if counts else None,
            "op": op,
            "percentiles": _percentiles(measured.runs_seconds) if counts else {},
            "conditions": {
                name: Spread.of(seconds) for name, seconds in measured.conditions.items() if counts
            },
            "rounds_seconds": tuple(times),
        }
    )
