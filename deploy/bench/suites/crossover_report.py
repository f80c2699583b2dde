"""A crossover as files and as tables."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from ..report.tables import Grid
from .cases_report import busy_note, conditions, write_report
from .crossover import TIE, CrossoverResult
from .runs_report import ratio_text


def save_crossover_report(result: CrossoverResult, folder: Path) -> list[Path]:
    """See CrossoverResult.save."""

    def picture(file: IO[bytes]) -> None:
        draw(result, file)

    return write_report(folder, result.to_dict(), _markdown(result), picture)


def crossover_grid(result: CrossoverResult) -> Grid:
    """Lay out the sparsity from which on condensed is faster: a row per batch."""
    threads = list(dict.fromkeys(one.threads for one in result.crossovers))
    rows = []
    for batch in dict.fromkeys(one.batch for one in result.crossovers):
        own = {one.threads: one for one in result.crossovers if one.batch == batch}
        cells = [_sparsity(own[count].measured) for count in threads]
        rows.append([str(batch), *cells, _sparsity(own[threads[0]].auto)])
    headings = ["batch", *(f"{count} thread{'s' * (count > 1)}" for count in threads)]
    return Grid(result.title, [*headings, "predicted by auto"], rows, words=0)


def crossover_notes(result: CrossoverResult) -> list[str]:
    """Say how often the exporter's choice was the slower form, and what it cost."""
    wrong = [one for one in result.points if not one.agrees]
    count = len(result.points)
    notes = busy_note(result.machine)
    notes.append(
        f"export --policy auto takes the faster form, or one within {TIE - 1:.0%} of it, at "
        f"{count - len(wrong)} of {count} points (its cost model: {result.cost_model})"
    )
    for one in wrong:
        slower = 1 / one.speedup.median if one.auto == "condensed" else one.speedup.median
        notes.append(
            f"batch {one.batch}, {one.sparsity:.0%} sparse, threads {one.threads}: auto takes "
            f"{one.auto}, which is {slower:.2f} times as slow as the other form"
        )
    return notes + list(result.excluded)


def draw(result: CrossoverResult, file: IO[bytes]) -> None:
    """Write the figure as PNG: crossover sparsity against batch, a line per number of threads."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    colours = ("#d1495b", "#1f6f8b", "#b58900", "#6a994e")
    lines = {}
    for number, threads in enumerate(dict.fromkeys(one.threads for one in result.crossovers)):
        own = [one for one in result.crossovers if one.threads == threads]
        lines[f"measured, {threads} thread{'s' * (threads > 1)}"] = (
            [(one.batch, one.measured) for one in own],
            {"color": colours[number % len(colours)], "marker": "o"},
        )
        lines["predicted by export --policy auto"] = (
            [(one.batch, one.auto) for one in own],
            {"color": "#777", "linestyle": "--", "marker": "."},
        )
    for label, (places, style) in lines.items():
        # A layer that is dense at every sparsity measured has its crossover at the top.
        ys = [100 * (1.0 if at is None else at) for _, at in places]
        axis.plot([batch for batch, _ in places], ys, label=label, **style)
    axis.set_xscale("log", base=2)
    batches = sorted({one.batch for one in result.crossovers})
    axis.set_xticks(batches, [str(batch) for batch in batches])
    axis.set_ylim(-2, 102)
    axis.set_xlabel("batch")
    axis.set_ylabel("sparsity above which condensed is faster, %")
    axis.grid(color="#ddd", linewidth=0.6)
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{result.title}\n{result.machine.get('cpu') or ''}", fontsize=10)
    figure.savefig(file, format="png", dpi=150)


def _markdown(result: CrossoverResult) -> str:
    points = Grid(
        "",
        ("batch", "threads", "sparsity", "measured speed-up", "predicted", "auto takes", "agrees"),
        [
            [
                str(one.batch),
                str(one.threads),
                f"{one.sparsity:.0%}",
                ratio_text(one.speedup),
                f"{one.predicted:.2f}×",
                one.auto,
                "yes" if one.agrees else "no",
            ]
            for one in result.points
        ],
        words=0,
    )
    lines = [
        f"# {result.title}",
        "",
        *crossover_grid(result).to_markdown(),
        "",
        "Notes:",
        "",
        *(f"- {note}" for note in crossover_notes(result)),
        "",
        "The sparsity above which CondensedGemm takes less time than the dense Gemm (op times: "
        "each less a null session, same round), interpolated between those measured; *under all* "
        "and *none*: it does at all of them, at none of them. The prediction is of the exporter's "
        "cost model, for one thread. Speed-ups: median (95 % bootstrap interval) [min–max].",
        "",
        "## Points",
        "",
        *points.to_markdown(),
        "",
        "## Conditions",
        "",
        *(f"- {line}" for line in conditions(result)),
    ]
    return "\n".join(lines) + "\n"


def _sparsity(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.0%}" if value else "under all"
