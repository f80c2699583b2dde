"""The report of latencies under LoadGen."""

from __future__ import annotations

from ...._base.figure_style import GRAY, OCHRE, RED, SILVER
from ..report.blocks import busy_note, conditions, figure_title
from ..report.document import Document, Notes, Table, Text
from ..report.figure import Axis, Figure, Panel, Series, names_axis
from ..report.text import seconds_text
from ..results.result import Result
from .serving import ServingRow, server_overhead

_PERCENTILES = ("p50", "p90", "p99")
_SERVERS = (
    " *-server* engines were asked through fanin serve on this machine, the others in the "
    "benchmark's own process."
)
_COLORS = {"dense": GRAY, "condensed": RED}
_COLORS |= {"dense-server": SILVER, "condensed-server": OCHRE}


def serving_document(result: Result[ServingRow]) -> Document:
    """Report on the engines in each scenario."""
    table = _table(result)
    excluded = [
        f"{row.scenario}: {row.engine} is excluded ({row.excluded})"
        for row in result.cases
        if row.excluded
    ]
    overhead = server_overhead(result)
    served = []
    if overhead is not None:
        gap = seconds_text(overhead)
        served = [
            f"condensed, one query after another: the server adds {gap} to the median latency"
        ]
    blocks = [
        table,
        Notes(
            [
                *busy_note(result.machine),
                *served,
                "MLPerf-style: measured with MLCommons' LoadGen, but no MLPerf results",
                *excluded,
            ]
        ),
        Text(
            "SingleStream: one query after another. Server: queries of a Poisson process, "
            f"{result.facts['rate']:.1f} a second, the same for every engine, so that waiting "
            "counts. Latencies are LoadGen's, medians over the turns, which the engines took one "
            "after another. *valid*: LoadGen's own word on the run's length and, for Server, on "
            f"the 99th percentile ({seconds_text(result.spec['target_latency'])} at most). Answers "
            "were compared with the dense model's."
            + (_SERVERS if result.spec.get("server") else "")
        ),
        *conditions(result),
    ]
    return Document(result.title, blocks, [table], _figure(result))


def _table(result: Result[ServingRow]) -> Table:
    """Lay out medians over the turns, and dense's 99th percentile over each engine's."""
    dense = {
        row.scenario: row for row in result.cases if row.engine == "dense" and not row.excluded
    }
    rows = []
    for row in sorted(result.cases, key=lambda row: row.scenario, reverse=True):
        if row.excluded:
            rows.append([row.scenario, row.engine, "excluded", *[""] * 6])
            continue
        base = dense.get(row.scenario)
        valid = sum(turn.valid for turn in row.turns)
        rows.append(
            [
                row.scenario,
                row.engine,
                *(seconds_text(row.latency(share)) for share in _PERCENTILES),
                f"{base.latency('p99') / row.latency('p99'):.2f}×" if base else "",
                f"{sum(turn.rate for turn in row.turns) / len(row.turns):.1f}",
                str(sum(turn.queries for turn in row.turns)),
                f"{valid} of {len(row.turns)}",
            ]
        )
    headings = ("scenario", "engine", *_PERCENTILES, "p99, dense over it", "queries/s", "queries")
    return Table((*headings, "valid turns"), rows, title=result.title)


def _figure(result: Result[ServingRow]) -> Figure:
    """Show the latency percentiles of each scenario."""
    panels = []
    for scenario in dict.fromkeys(row.scenario for row in result.cases):
        series = [
            Series(
                row.engine,
                "bars",
                range(len(_PERCENTILES)),
                [row.latency(share) * 1e3 for share in _PERCENTILES],
                color=_COLORS[row.engine],
            )
            for row in result.cases
            if row.scenario == scenario and not row.excluded
        ]
        panels.append(Panel(series, names_axis(_PERCENTILES), Axis("latency, ms"), scenario))
    return Figure(figure_title(result), panels, shared=False)
