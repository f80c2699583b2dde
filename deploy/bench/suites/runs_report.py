"""Single runs of a result: percentiles, cold caches, paced arrivals, and engines of other types."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..measure.statistics import Comparison, Spread
from ..report.tables import Grid
from ..report.text import seconds_text
from ..results.case import Case, EngineResult
from ..results.result import Result

_CONDITIONS = {"cold": "caches flushed", "paced": "after a pause"}


def ratio_text(spread: Spread) -> str:
    """Write a speed-up: median, bootstrap interval, range."""
    low, high = spread.interval
    return f"{spread.median:.2f}× ({low:.2f}–{high:.2f}) [{spread.min:.2f}–{spread.max:.2f}]"


def runs_grid(result: Result) -> Grid | None:
    """Lay out the percentiles of single runs, beside runs under other conditions; None without."""
    conditions = [
        name for name in _CONDITIONS if any(name in one.conditions for _, one in _counted(result))
    ]
    percentiles = [
        name
        for name in ("p50", "p90", "p99")
        if any(name in one.percentiles for _, one in _counted(result))
    ]
    if not percentiles:
        return None
    headings = ["case", "engine", *percentiles, "first run"]
    for name in conditions:
        headings += [_CONDITIONS[name], f"speed-up, {_CONDITIONS[name]}"]

    def cells(case: Case, engine: EngineResult) -> list[str]:
        row = [seconds_text(engine.percentiles.get(name)) for name in percentiles]
        row.append(seconds_text(engine.first_run_seconds))
        compared = _comparison(case, engine)
        for name in conditions:
            spread = engine.conditions.get(name)
            ratio = compared.conditions.get(name) if compared else None
            row.append(seconds_text(spread.median if spread else None))
            row.append(ratio_text(ratio) if ratio else "")
        return row

    return Grid("Single runs", headings, list(_rows(result, lambda _: True, cells)))


def types_grid(result: Result) -> Grid | None:
    """Lay out engines that compute with narrower types, beside those of float32 that they rival."""
    if all(one.precision == "float32" for _, one in _counted(result)):
        return None

    def cells(case: Case, engine: EngineResult) -> list[str]:
        compared = _comparison(case, engine)
        error = engine.error_after
        return [
            engine.precision,
            seconds_text(engine.run.median),
            ratio_text(compared.run_ratio) if compared else "",
            ratio_text(compared.op_ratio) if compared and compared.op_ratio else "",
            "" if error is None else f"{error:.0e}",
        ]

    def shown(engine: EngineResult) -> bool:
        return engine.precision != "float32" or engine.name in ("dense", "condensed")

    headings = ("case", "engine", "type", "run", "run speed-up", "op speed-up", "error")
    rows = list(_rows(result, shown, cells))
    return Grid("By type", headings, rows, words=3)


def _counted(result: Result) -> Iterator[tuple[Case, EngineResult]]:
    for case in result.cases:
        for engine in case.engines:
            if engine.excluded is None:
                yield case, engine


def _rows(
    result: Result,
    shown: Callable[[EngineResult], bool],
    cells: Callable[[Case, EngineResult], list[str]],
) -> Iterator[list[str]]:
    titled = None
    for case, engine in _counted(result):
        if shown(engine):
            yield ["" if case is titled else case.title, engine.name, *cells(case, engine)]
            titled = case


def _comparison(case: Case, engine: EngineResult) -> Comparison | None:
    return next((one for one in case.comparisons if one.engine == engine.name), None)
