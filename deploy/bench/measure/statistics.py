"""Summaries of repeated measurements: medians and spread, never the mean of noisy times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

_RESAMPLES = 1000


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and range of one figure over the rounds.

    ``interval`` is the 95 % bootstrap confidence interval of the median (percentiles of the medians
    of 1,000 resamples); None in results of earlier versions.
    """

    median: float
    q1: float
    q3: float
    min: float
    max: float
    count: int
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize at least one value; quartiles by linear interpolation."""
        if not len(values):
            raise ValueError("no values to summarize")
        low, q1, median, q3, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1)).tolist()
        return cls(median, q1, q3, low, high, len(values), _interval(values))

    @property
    def iqr(self) -> float:
        """Distance between the quartiles."""
        return self.q3 - self.q1


@dataclass(frozen=True)
class Comparison:
    """Speed-up of one engine over another: ratios of times taken in the same round.

    ``run_ratio`` compares whole runs. ``op_ratio`` compares them less the null call of each; it is
    None where there is no such call or where the difference says nothing, and ``op_note`` says why.
    ``conditions`` are run ratios of rounds under other conditions, by name.
    """

    baseline: str
    engine: str
    run_ratio: Spread
    op_ratio: Spread | None
    op_note: str | None
    conditions: dict[str, Spread] = field(default_factory=dict)

    @property
    def best_ratio(self) -> Spread:
        """The op ratio, or the run ratio where that is None."""
        return self.op_ratio or self.run_ratio


class RoundTimes(NamedTuple):
    """Seconds per round of one engine's run, and of its null call in the same rounds.

    ``conditions`` are seconds per round of runs under other conditions.
    """

    name: str
    times: Sequence[float]
    null: Sequence[float] | None
    conditions: Mapping[str, Sequence[float]] = MappingProxyType({})


def compare(baseline: RoundTimes, engine: RoundTimes) -> Comparison:
    """Return the speed-up of ``engine`` over ``baseline``, which took turns in the same rounds."""
    (base_name, base_times, base_null, _), (name, times, null, _) = baseline, engine
    op: Spread | None = None
    note: str | None = "no null session was run"
    if base_null is not None and null is not None:
        note = _noise(base_name, base_times, base_null) or _noise(name, times, null)
        if note is None:
            base_ops, ops = less(base_times, base_null), less(times, null)
            op = _ratios(base_ops, ops)
    conditions = {
        condition: _ratios(seconds, engine.conditions[condition])
        for condition, seconds in baseline.conditions.items()
        if condition in engine.conditions
    }
    return Comparison(base_name, name, _ratios(base_times, times), op, note, conditions)


def _ratios(base: Sequence[float], own: Sequence[float]) -> Spread:
    return Spread.of([slow / fast for slow, fast in zip(base, own, strict=True)])


def _interval(values: Sequence[float]) -> tuple[float, float]:
    # The same values always give the same interval.
    drawn = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(np.asarray(values)[drawn], axis=1), (0.025, 0.975)).tolist()
    return low, high


def _noise(name: str, times: Sequence[float], null: Sequence[float]) -> str | None:
    """Return why the op time of ``name`` is not distinguishable from noise; None if it is."""
    op = less(times, null)
    short = sum(time <= 0 for time in op)
    if short:
        return f"{name} took no longer than the null session in {short} of {len(op)} rounds"
    noise = Spread.of(null).iqr
    median = Spread.of(op).median
    if median <= noise:
        return (
            f"the op time of {name}, {median * 1e6:.2f} µs, is within the null session's noise "
            f"(quartiles {noise * 1e6:.2f} µs apart)"
        )
    return None


def less(times: Sequence[float], null: Sequence[float]) -> list[float]:
    """Subtract the null call of the same round from each time."""
    return [own - zero for own, zero in zip(times, null, strict=True)]
