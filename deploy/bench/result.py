"""What a benchmark returns: plain data, the content of results.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .measure import Measurement, Timing, Warmup
from .statistics import Comparison, Spread, compare

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class EngineResult:
    """One engine in one case. Times are in seconds; ``excluded`` says why its times do not count.

    ``run`` spreads the whole run over the rounds, ``op`` the run less the null session of the same
    round; both are None for an excluded engine, ``op`` also without a null session.
    """

    name: str
    version: str
    form: str
    threads: int
    load_seconds: float | None
    first_run_seconds: float | None
    warmup: Warmup | None
    repeats: int | None
    rounds_seconds: tuple[float, ...]
    run: Spread | None
    op: Spread | None
    error_before: float | None
    error_after: float | None
    excluded: str | None


@dataclass(frozen=True)
class Case:
    """One setting of a benchmark: the engines' times and what follows from them.

    ``facts`` are the numbers of the case that belong to no engine (fan-in, bytes, kernel).
    """

    title: str
    batch: int
    sparsity: float | None
    facts: dict[str, Any]
    engines: tuple[EngineResult, ...]
    null: EngineResult | None
    comparisons: tuple[Comparison, ...]

    def engine(self, name: str) -> EngineResult:
        """Return the engine of that name; KeyError when it took no part."""
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise KeyError(name)


@dataclass(frozen=True)
class Result:
    """A finished benchmark, with everything that is needed to judge or to repeat it."""

    kind: Literal["layer", "model"]
    title: str
    created: str
    seconds: float
    spec: dict[str, Any]
    timing: Timing
    machine: dict[str, Any]
    load_average_after: list[float] | None
    cases: tuple[Case, ...]
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return it as numbers, texts, lists and dicts only."""
        return dataclasses.asdict(self)

    def save(self, folder: str | Path) -> list[Path]:
        """Write results.json, results.md and results.png into ``folder``; returns their paths.

        The folder is made when missing; each file is replaced as a whole or not at all. Raises
        OSError when it cannot be written.
        """
        from .report import save_report

        return save_report(self, Path(folder))


def threads_text(threads: int) -> str:
    """Write a number of threads."""
    return "1 thread" if threads == 1 else f"{threads} threads"


def make_case(
    title: str,
    batch: int,
    sparsity: float | None,
    facts: dict[str, Any],
    measurements: Sequence[Measurement],
    null: Measurement | None,
) -> Case:
    """Make the case of these measurements; every engine is compared with the first one."""
    usable_null = null if null is not None and null.excluded is None else None
    null_times = usable_null.rounds_seconds if usable_null else None
    base, *others = measurements
    comparisons = tuple(
        compare((base.name, base.rounds_seconds), (other.name, other.rounds_seconds), null_times)
        for other in others
        if base.excluded is None and other.excluded is None
    )
    return Case(
        title=title,
        batch=batch,
        sparsity=sparsity,
        facts=facts,
        engines=tuple(_engine_result(one, null_times) for one in measurements),
        null=_engine_result(null, None) if null is not None else None,
        comparisons=comparisons,
    )


def _engine_result(measured: Measurement, null_times: Sequence[float] | None) -> EngineResult:
    counts = measured.excluded is None
    times = measured.rounds_seconds
    op = None
    if counts and null_times is not None:
        op = Spread.of([own - zero for own, zero in zip(times, null_times, strict=True)])
    return EngineResult(
        name=measured.name,
        version=measured.version,
        form=measured.form,
        threads=measured.threads,
        load_seconds=measured.load_seconds,
        first_run_seconds=measured.first_run_seconds,
        warmup=measured.warmup,
        repeats=measured.repeats,
        rounds_seconds=tuple(times),
        run=Spread.of(times) if counts else None,
        op=op,
        error_before=measured.error_before,
        error_after=measured.error_after,
        excluded=measured.excluded,
    )
