"""Tables of single runs: percentiles, cold caches, paced arrivals; and engines of other types."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..report.document import Table
from ..report.text import ratio_text, seconds_text
from ..results.case import Case, EngineResult
from ..results.result import Result

_CONDITIONS = {"cold": "caches flushed", "paced": "after a pause"}


def runs_table(result: Result[Case]) -> Table | None:
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
        compared = case.comparison(engine.name)
        for name in conditions:
            spread = engine.conditions.get(name)
            ratio = compared.conditions.get(name) if compared else None
            row.append(seconds_text(spread.median if spread else None))
            row.append(ratio_text(ratio) if ratio else "")
        return row

    return Table(headings, list(_rows(result, lambda _: True, cells)))


def types_table(result: Result[Case]) -> Table | None:
    """Lay out engines that compute with narrower types, beside those of float32 that they rival."""
    if all(one.precision == "float32" for _, one in _counted(result)):
        return None

    def cells(case: Case, engine: EngineResult) -> list[str]:
        compared = case.comparison(engine.name)
        error = engine.error_after
        return [
            engine.precision,
            seconds_text(engine.run_seconds),
            ratio_text(compared.run_ratio) if compared else "",
            ratio_text(compared.op_ratio) if compared and compared.op_ratio else "",
            "" if error is None else f"{error:.0e}",
        ]

    def shown(engine: EngineResult) -> bool:
        return engine.precision != "float32" or engine.name in ("dense", "condensed")

    headings = ("case", "engine", "type", "run", "run speed-up", "op speed-up", "error")
    return Table(headings, list(_rows(result, shown, cells)), words=3, title="By type")


def _counted(result: Result[Case]) -> Iterator[tuple[Case, EngineResult]]:
    for case in result.cases:
        for engine in case.engines:
            if engine.excluded is None:
                yield case, engine


def _rows(
    result: Result[Case],
    shown: Callable[[EngineResult], bool],
    cells: Callable[[Case, EngineResult], list[str]],
) -> Iterator[list[str]]:
    titled = None
    for case, engine in _counted(result):
        if shown(engine):
            yield ["" if case is titled else case.title, engine.name, *cells(case, engine)]
            titled = case
