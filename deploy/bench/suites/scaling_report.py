"""The report of a scaling with threads or with the batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..measure.statistics import Spread
from ..report.blocks import figure_title
from ..report.document import Bullets, Document, Notes, Section, Table, Text
from ..report.figure import Axis, Figure, Panel, Series
from ..report.text import seconds_text, threads_text
from ..results.case import Case
from ..results.plain import from_plain
from ..results.result import Result
from .cases_report import cases_document
from .layer import sparsity_text
from .planned import Planned, planned_table


def scaling_document(result: Result[Case]) -> Document:
    """Report on the cases; the figure has a line per engine and value of the other setting."""
    series = [
        Series.of_spreads(label, "line", list(places.items()), scale=1e6)
        for label, places in _lines(result).items()
    ]
    ticks = {place: str(place) for place in sorted({_place(case, result) for case in result.cases})}
    x = Axis(result.spec["axis"], log=2, ticks=ticks)
    panel = Panel(series, x, Axis("whole run, µs (band: quartiles)", log=10))
    document = cases_document(result, Figure(figure_title(result), [panel]))
    if result.spec["axis"] != "threads":
        return document
    summary, *measurements = document.blocks
    tables = [threads_table(result.cases)]
    blocks: list[Section | Text | Bullets | Table] = [
        *tables,
        Text(
            "Medians of whole runs. *over dense*: both on the same number of threads. *speed-up*: "
            "over the fewest threads; *efficiency*: that, as a share of what so many more threads "
            "could give."
        ),
    ]
    if result.facts.get("planned"):
        plans = planned_table([from_plain(Planned, one) for one in result.facts["planned"]])
        tables.append(plans)
        blocks += [
            Section("Planned, not measured"),
            plans,
            Text(
                "What the plans over threads promise (docs/kernels.md), with the library's rates "
                "and costs of a dispatch; of networks, for their condensed layers alone. No "
                "machine ran this. *weights of a thread*: packed weights that the thread with most "
                "of them reads, which should fit the L2 cache of a core."
            ),
        ]
    blocks.append(Notes(result.facts.get("no_plan", ())))
    return replace(
        document,
        blocks=[summary, *blocks, Section("Measurements"), *measurements],
        screen=[*document.screen, *tables],
    )


def threads_table(cases: Sequence[Case]) -> Table:
    """Lay out what each number of threads gives: a row for each, of one layer or network together.

    Speed-ups are over the fewest threads measured.
    """
    headings = (
        "case",
        "threads",
        "dense",
        "condensed",
        "over dense",
        "speed-up of dense",
        "of condensed",
        "efficiency of condensed",
    )
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(_setting(case), []).append(case)
    rows = []
    for setting, own in groups.items():
        first = min(own, key=_threads)
        for case in sorted(own, key=_threads):
            compared = case.comparison("condensed")
            speedup = _speedup(first, case, "condensed")
            more = _threads(case) / _threads(first)
            rows.append(
                [
                    setting if case is first else "",
                    str(_threads(case)),
                    *(seconds_text(_median(case, name)) for name in ("dense", "condensed")),
                    f"{compared.run_ratio.median:.2f}×" if compared else "",
                    _ratio(_speedup(first, case, "dense")),
                    _ratio(speedup),
                    "" if speedup is None else f"{speedup / more:.0%}",
                ]
            )
    return Table(headings, rows, words=1, title="Over threads")


def _setting(case: Case) -> str:
    """Name all but the threads."""
    what = case.facts.get("network")
    if what is None:
        what = "" if case.sparsity is None else sparsity_text(case.sparsity)
    return f"{what}, batch {case.batch}"


def _threads(case: Case) -> int:
    threads: int = case.facts["threads"]
    return threads


def _median(case: Case, name: str) -> float | None:
    run = next((one.run for one in case.engines if one.name == name), None)
    return run.median if run else None


def _speedup(first: Case, case: Case, name: str) -> float | None:
    before, now = _median(first, name), _median(case, name)
    return None if before is None or now is None else before / now


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"


def _lines(result: Result[Case]) -> dict[str, dict[int, Spread]]:
    lines: dict[str, dict[int, Spread]] = {}
    by_threads = result.spec["axis"] == "threads"
    for case in result.cases:
        other = f"batch {case.batch}" if by_threads else threads_text(_threads(case))
        if "network" in case.facts:
            other = _setting(case)
        for engine in case.engines:
            if engine.run is not None:
                # Dense once, whatever the sparsity.
                alike = engine.name == "dense" or case.sparsity is None
                sparse = "" if alike else f" {case.sparsity:.0%}"
                line = lines.setdefault(f"{engine.name}{sparse}, {other}", {})
                line[_place(case, result)] = engine.run
    return lines


def _place(case: Case, result: Result[Case]) -> int:
    return _threads(case) if result.spec["axis"] == "threads" else case.batch
