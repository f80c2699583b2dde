"""The paper's figure: time of each kind of engine, in bars per sparsity, on a log axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from ..results.case import Case
from .families import KINDS, best_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#4d4d4d", "#8c8c8c", "#b58900", "#e07b39", "#7fb069", "#9d79bc", "#1f6f8b", "#d1495b")


def draw(title: str, cases: Sequence[Case], file: IO[bytes]) -> None:
    """Write the figure as PNG: a row per thread count, a column per batch.

    A bar is the median whole run of the kind's best engine, its error bar the quartiles over the
    rounds.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    threads = list(dict.fromkeys(case.facts["threads"] for case in cases)) or [1]
    batches = list(dict.fromkeys(case.batch for case in cases)) or [1]
    figure = Figure(
        figsize=(1.6 + 3.6 * len(batches), 1.4 + 2.6 * len(threads)), layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(threads), len(batches), sharey="col", squeeze=False)
    for row, count in enumerate(threads):
        for column, batch in enumerate(batches):
            shown = [one for one in cases if one.facts["threads"] == count and one.batch == batch]
            axis = axes[row][column]
            _draw_panel(axis, shown)
            axis.set_title(f"batch {batch}, {count} thread{'s' * (count > 1)}", fontsize=9)
        axes[row][0].set_ylabel("whole run, µs")
    handles = {
        label: handle
        for axis in axes.flat
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if handles:
        ordered = [name for name in KINDS if name in handles]
        figure.legend(
            [handles[name] for name in ordered],
            ordered,
            loc="outside lower center",
            ncols=min(8, 2 * len(batches)),
            frameon=False,
            fontsize=8,
        )
    figure.suptitle(title, fontsize=10)
    figure.savefig(file, format="png", dpi=150)


def _draw_panel(axis: Axes, cases: Sequence[Case]) -> None:
    width = 0.86 / len(KINDS)
    for number, (kind, colour) in enumerate(zip(KINDS, _COLOURS, strict=True)):
        shown = [(at, best_of(case, kind)) for at, case in enumerate(cases)]
        shown = [(at, engine.run) for at, engine in shown if engine is not None]
        if not shown:
            continue
        medians = [run.median * 1e6 for _, run in shown]
        errors = [
            [(run.median - run.q1) * 1e6 for _, run in shown],
            [(run.q3 - run.median) * 1e6 for _, run in shown],
        ]
        xs = [at + (number - (len(KINDS) - 1) / 2) * width for at, _ in shown]
        axis.bar(xs, medians, width, yerr=errors, color=colour, label=kind, capsize=1)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    axis.set_xticks(range(len(cases)), [_label(case) for case in cases], fontsize=8)
    axis.grid(axis="y", which="major", color="#ddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _label(case: Case) -> str:
    sparsity = f"{100 * case.sparsity:.3g} %"
    return sparsity if case.facts["mask"] == "random" else f"{sparsity}\ntrained"
