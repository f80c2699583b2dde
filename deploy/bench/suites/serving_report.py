"""Latencies under LoadGen as files and as a table."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from ..report.tables import Grid
from ..report.text import seconds_text
from .cases_report import busy_note, plain, write_report
from .serving import ServingResult

_PERCENTILES = ("p50", "p90", "p99")
_COLOURS = {"dense": "#4d4d4d", "condensed": "#d1495b"}


def save_serving_report(result: ServingResult, folder: Path) -> list[Path]:
    """See ServingResult.save."""

    def picture(file: IO[bytes]) -> None:
        draw(result, file)

    return write_report(folder, result.to_dict(), _markdown(result), picture)


def serving_grid(result: ServingResult) -> Grid:
    """Lay out medians over the turns, and dense's 99th percentile over each engine's."""
    dense = {row.scenario: row for row in result.rows if row.engine == "dense" and not row.excluded}
    rows = []
    for row in sorted(result.rows, key=lambda row: row.scenario, reverse=True):
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
    return Grid(result.title, (*headings, "valid turns"), rows)


def serving_notes(result: ServingResult) -> list[str]:
    """Say what the numbers are not, and which engines do not count."""
    notes = busy_note(result.machine)
    notes.append("MLPerf-style: measured with MLCommons' LoadGen, but no MLPerf results")
    return notes + [
        f"{row.scenario}: {row.engine} is excluded ({row.excluded})"
        for row in result.rows
        if row.excluded
    ]


def draw(result: ServingResult, file: IO[bytes]) -> None:
    """Write the figure as PNG: latency percentiles of each scenario."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scenarios = list(dict.fromkeys(row.scenario for row in result.rows))
    figure = Figure(figsize=(1.5 + 3.4 * len(scenarios), 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(scenarios), squeeze=False)[0]
    for axis, scenario in zip(axes, scenarios, strict=True):
        shown = [row for row in result.rows if row.scenario == scenario and not row.excluded]
        for number, row in enumerate(shown):
            xs = [at + 0.4 * (number - 0.5) for at in range(len(_PERCENTILES))]
            heights = [row.latency(share) * 1e3 for share in _PERCENTILES]
            axis.bar(xs, heights, 0.4, color=_COLOURS[row.engine], label=row.engine)
        axis.set_xticks(range(len(_PERCENTILES)), _PERCENTILES)
        axis.set_title(scenario, fontsize=9)
        axis.set_ylabel("latency, ms")
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{result.title}\n{result.machine.get('cpu') or ''}", fontsize=10)
    figure.savefig(file, format="png", dpi=150)


def _markdown(result: ServingResult) -> str:
    lines = [
        f"# {result.title}",
        "",
        *serving_grid(result).to_markdown(),
        "",
        *(f"- {note}" for note in serving_notes(result)),
        "",
        "SingleStream: one query after another. Server: queries of a Poisson process, "
        f"{result.rate:.1f} a second, the same for every engine, so that waiting counts. Latencies "
        "are LoadGen's, medians over the turns, which the engines took one after another. "
        "*valid*: LoadGen's own word on the run's length and, for Server, on the 99th percentile "
        f"({seconds_text(result.spec['target_latency'])} at most). Answers were compared with the "
        "dense model's.",
        "",
        "## Conditions",
        "",
        *(f"- {key}: {plain(value)}" for key, value in result.machine.items() if key != "kernels"),
        f"- spec: {plain(result.spec)}",
        f"- load average after: {plain(result.load_average_after)}",
        f"- measured: {result.created}, {result.seconds:.0f} s",
    ]
    return "\n".join(lines) + "\n"
