"""The report of a crossover."""

from __future__ import annotations

from typing import Any

from ...._base.figure_style import BLUE, GRAY, GREEN, OCHRE, RED
from ..report.blocks import busy_note, conditions, figure_title
from ..report.document import Document, Notes, Section, Table, Text
from ..report.figure import Axis, Figure, Panel, Series
from ..report.text import ratio_text, threads_text
from ..results.plain import from_plain
from ..results.result import Result
from .crossover import TIE, Crossover, CrossoverPoint

_COLORS = (RED, BLUE, OCHRE, GREEN)


def crossover_document(result: Result[CrossoverPoint]) -> Document:
    """Report on the crossovers and on the points that they are between."""
    headings = ("batch", "threads", "sparsity", "measured speed-up", "predicted", "auto chooses")
    points = []
    for one in result.cases:
        setting = [str(one.batch), str(one.threads), f"{one.sparsity:.0%}"]
        speedups = [ratio_text(one.speedup), f"{one.predicted:.2f}×"]
        points.append([*setting, *speedups, one.auto, "yes" if one.agrees else "no"])
    found = [from_plain(Crossover, one) for one in result.facts["crossovers"]]
    table = _table(result, found)
    threads = "as many threads" if _by_threads(result) else "one thread"
    blocks = [
        table,
        Notes(_notes(result)),
        Text(
            "The sparsity above which CondensedGemm takes less time than the dense Gemm (op "
            "times, each minus a null session in the same round), interpolated between those "
            "measured; *always*: it does at all of them, *never*: at none of them. The prediction "
            f"is that of the exporter's cost model, for {threads}. Speed-ups: median (95 % "
            "bootstrap confidence interval) [min–max]."
        ),
        Section("Points"),
        Table((*headings, "agrees"), points, words=0),
        *conditions(result),
    ]
    return Document(result.title, blocks, [table], _figure(result, found))


def _by_threads(result: Result[Any]) -> bool:
    """Tell whether predictions are for the number of threads that was measured, not for one."""
    return bool(result.facts.get("predicted_by_threads"))


def _table(result: Result[Any], found: list[Crossover]) -> Table:
    """Lay out the crossovers: a row per batch size."""
    threads = list(dict.fromkeys(one.threads for one in found))
    # Of each number of threads, or behind all of them.
    predicted = threads if _by_threads(result) else threads[-1:]
    headings = ["batch"]
    for count in threads:
        headings += [threads_text(count), *["predicted by auto"] * (count in predicted)]
    rows = []
    for batch in dict.fromkeys(one.batch for one in found):
        row = [str(batch)]
        for one in (one for one in found if one.batch == batch):
            row.append(_sparsity(one.measured))
            row += [_sparsity(one.auto)] * (one.threads in predicted)
        rows.append(row)
    return Table(headings, rows, words=0, title=result.title)


def _notes(result: Result[CrossoverPoint]) -> list[str]:
    """List where the exporter chose the slower form, and what that costs."""
    wrong = [one for one in result.cases if not one.agrees]
    count = len(result.cases)
    notes = busy_note(result.machine)
    notes.append(
        f"export --policy auto chooses the faster form, or one within {TIE - 1:.0%} of it, at "
        f"{count - len(wrong)} of {count} points (its cost model: {result.facts['cost_model']})"
    )
    for one in wrong:
        slower = 1 / one.speedup.median if one.auto == "condensed" else one.speedup.median
        notes.append(
            f"batch {one.batch}, {one.sparsity:.0%} sparse, threads {one.threads}: auto "
            f"chooses {one.auto}, which takes {slower:.2f} times as long as the other form"
        )
    return notes + list(result.facts["excluded"])


def _figure(result: Result[Any], found: list[Crossover]) -> Figure:
    """Show the crossover against the batch size, a line per number of threads."""

    def line(label: str, places: dict[int, float | None], **style: Any) -> Series:
        # A layer that is dense at every sparsity measured has its crossover at the top.
        ys = [100 * (1.0 if at is None else at) for at in places.values()]
        return Series(label, "line", list(places), ys, **style)

    series = []
    for number, threads in enumerate(dict.fromkeys(one.threads for one in found)):
        measured = {one.batch: one.measured for one in found if one.threads == threads}
        color = _COLORS[number % len(_COLORS)]
        label = f"measured, {threads_text(threads)}"
        series.append(line(label, measured, color=color, marker="o"))
        if _by_threads(result):
            predicted = {one.batch: one.auto for one in found if one.threads == threads}
            label = f"predicted by export --policy auto, {threads_text(threads)}"
            series.append(line(label, predicted, color=color, style="--", marker="."))
    if not _by_threads(result):
        predicted = {one.batch: one.auto for one in found}
        label = "predicted by export --policy auto"
        series.append(line(label, predicted, color=GRAY, style="--", marker="."))
    ticks = {batch: str(batch) for batch in sorted({one.batch for one in found})}
    y = Axis("sparsity above which condensed is faster, %", limits=(-2, 102))
    return Figure(figure_title(result), [Panel(series, Axis("batch", log=2, ticks=ticks), y)])


def _sparsity(value: float | None) -> str:
    if value is None:
        return "never"
    return f"{value:.0%}" if value else "always"
