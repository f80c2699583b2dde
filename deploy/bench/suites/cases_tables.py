"""Tables of a layer's or a model's cases: a row for each engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..measure.statistics import Comparison, Spread
from ..report.document import Table
from ..report.text import range_text, ratio_text, seconds_text, short_ratio_text
from ..results.case import Case, EngineResult
from ..results.result import Result

_CONDITIONS = {"cold": "caches flushed", "paced": "after a pause"}
_MAIN = ("case", "engine", "run", "op", "run speed-up", "op speed-up", "first run", "error")
_TYPES = ("case", "engine", "type", "run", "run speed-up", "op speed-up", "error")
_INT8 = ("case", "engine", "run", "op", "run speed-up", "op speed-up", "rms error")
_Time = Callable[[Spread | None], str]
_Ratio = Callable[[Spread], str]


def _median(spread: Spread | None) -> str:
    return seconds_text(spread.median if spread else None)


def is_int8(result: Result[Case]) -> bool:
    """Return whether the result compares layers or models in 8 bits."""
    return result.spec.get("precision") == "int8"


def main_table(result: Result[Case]) -> Table:
    """Lay out all engines that compute in float32; of a comparison in 8 bits, all engines."""
    if is_int8(result):
        return _table(result, _INT8, _any, range_text)
    return _table(result, _MAIN, _is_float32, range_text)


def screen_table(result: Result[Case], caption: str) -> Table:
    """Lay out the medians, without the columns that a terminal has no room for."""
    ratio, title = short_ratio_text, result.title
    if is_int8(result):
        return _table(result, _INT8, _any, ratio=ratio, title=title, caption=caption)
    return _table(result, _MAIN[:-2], _is_float32, ratio=ratio, title=title, caption=caption)


def rivals_table(result: Result[Case]) -> Table | None:
    """Lay out the best of each other runtime's forms against condensed; None if there are none."""
    rows = []
    for case in result.cases:
        for rival in case.rivals:
            best = case.engine(rival.comparison.baseline)
            ratios = _speedups(rival.comparison, short_ratio_text).values()
            name = f"{best.name} (of {len(rival.forms)})"
            rows.append([case.title, name, _median(best.run), _median(best.op), *ratios])
    headings = ("case", "best form", "run", "op", "run speed-up", "op speed-up")
    title = "condensed against the best form of other runtimes"
    return Table(headings, rows, title=title) if rows else None


def runs_table(result: Result[Case]) -> Table | None:
    """Lay out percentiles of single runs, and medians under other conditions, if there are any."""
    counted = [one for case in result.cases for one in case.engines if _is_included(one)]
    known = {name for one in counted for name in (*one.percentiles, *one.conditions)}
    headings = ["case", "engine", *(name for name in ("p50", "p90", "p99") if name in known)]
    if len(headings) == 2:
        return None
    headings.append("first run")
    for name, text in _CONDITIONS.items():
        headings += [text, f"speed-up, {text}"] if name in known else []
    return _table(result, headings, _is_included, null=False)


def types_table(result: Result[Case]) -> Table | None:
    """Lay out engines that compute with narrower types, beside dense and condensed in float32."""

    def shown(one: EngineResult) -> bool:
        return _is_included(one) and (not _is_float32(one) or one.name in ("dense", "condensed"))

    if is_int8(result) or not any(
        _is_included(one) and not _is_float32(one) for case in result.cases for one in case.engines
    ):
        return None
    return _table(result, _TYPES, shown, null=False, words=3, title="By type")


def _any(engine: EngineResult) -> bool:  # noqa: ARG001
    return True


def _is_float32(engine: EngineResult) -> bool:
    return engine.precision == "float32"


def _is_included(engine: EngineResult) -> bool:
    return engine.excluded is None


def _table(
    result: Result[Case],
    headings: Sequence[str],
    shown: Callable[[EngineResult], bool],
    time: _Time = _median,
    ratio: _Ratio = ratio_text,
    *,
    null: bool = True,
    **more: Any,
) -> Table:
    """Lay out the engines that are ``shown``; op times only where there is a null session."""
    has_op = any(case.null is not None for case in result.cases)
    kept = [name for name in headings if has_op or not name.startswith("op")]
    rows: list[list[str]] = []
    for case in result.cases:
        title = case.title
        for engine in case.all_engines if null else case.engines:
            if shown(engine):
                cells = {"case": title, **_cells(case, engine, time, ratio)}
                rows.append([cells.get(name, "") for name in kept])
                title = ""  # once is enough
    return Table(kept, rows, **more)


def _cells(case: Case, engine: EngineResult, time: _Time, ratio: _Ratio) -> dict[str, str]:
    """Return all that any of the tables shows of an engine, by heading."""
    if engine.excluded is not None:
        return {"engine": engine.name, "run": "excluded"}
    cells = {
        "engine": engine.name,
        "type": engine.precision,
        "run": time(engine.run),
        "op": time(engine.op),
        "first run": seconds_text(engine.first_run_seconds),
        "rms error": "" if engine.rms_error is None else f"{engine.rms_error:.1e}",
        "error": "" if engine.error_after is None else f"{engine.error_after:.0e}",
    }
    cells |= {name: seconds_text(seconds) for name, seconds in engine.percentiles.items()}
    cells |= {_CONDITIONS[name]: _median(one) for name, one in engine.conditions.items()}
    compared = case.comparison(engine.name)
    if compared is not None:
        cells |= _speedups(compared, ratio)
        for name, spread in compared.conditions.items():
            cells[f"speed-up, {_CONDITIONS[name]}"] = ratio(spread)
    return cells


def _speedups(compared: Comparison, ratio: _Ratio) -> dict[str, str]:
    op = ratio(compared.op_ratio) if compared.op_ratio else "within noise"
    return {"run speed-up": ratio(compared.run_ratio), "op speed-up": op}
