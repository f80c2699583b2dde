"""The figure of a result: speed-up over dense, with its spread."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from ..measure.statistics import Spread
from ..results.case import Case
from ..results.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"run": "#1f6f8b", "op": "#d1495b"}
_LABELS = {"run": "whole session.run", "op": "op time (less the null session)"}

# One place on the x axis: its label, and the spreads of "run" and "op" where they exist.
_Place = tuple[str, dict[str, Spread]]


def draw(result: Result, file: IO[bytes]) -> None:
    """Write the figure as PNG: a panel per batch (layer) or one panel over the batches (model).

    A dot is the median of the condensed engine's speed-up over dense in the same round, the wide
    band spans the quartiles, the thin one the range. The axis is logarithmic, so that twice as fast
    and half as fast are equally far from the dashed line of dense.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _panels(result)
    figure = Figure(figsize=(1.6 + 3.4 * len(panels), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, places) in zip(axes, panels, strict=True):
        _draw_panel(axis, title, places)
        axis.set_xlabel("sparsity" if result.kind == "layer" else "")
    axes[0].set_ylabel("speed-up over ONNX Runtime dense")
    _label_axis(axes[0])
    legend = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if legend:
        figure.legend(
            legend.values(), legend.keys(), loc="outside lower center", ncols=2, frameon=False
        )
    figure.suptitle(f"{result.title}\n{result.machine.get('cpu') or ''}", fontsize=10)
    figure.savefig(file, format="png", dpi=150)


def _panels(result: Result) -> list[tuple[str, list[_Place]]]:
    if result.kind == "model":
        return [("", [(case.title, _spreads(case)) for case in result.cases])]
    return [
        (
            f"batch {batch}",
            [
                (_label(case, result), _spreads(case))
                for case in result.cases
                if case.batch == batch
            ],
        )
        for batch in dict.fromkeys(case.batch for case in result.cases)
    ]


def _label(case: Case, result: Result) -> str:
    sparsity = f"{100 * (case.sparsity or 0):.4g} %"
    several = len({one.facts.get("mask") for one in result.cases}) > 1
    return f"{sparsity}\n{case.facts['mask']}" if several else sparsity


def _spreads(case: Case) -> dict[str, Spread]:
    for comparison in case.comparisons:
        if comparison.engine == "condensed":
            found = {"run": comparison.run_ratio, "op": comparison.op_ratio}
            return {name: spread for name, spread in found.items() if spread is not None}
    return {}


def _draw_panel(axis: Axes, title: str, places: list[_Place]) -> None:
    axis.set_yscale("log")
    axis.axhline(1, color="#777", linestyle="--", linewidth=1)
    series = [name for name in _COLOURS if any(name in spreads for _, spreads in places)]
    for name in series:
        colour = _COLOURS[name]
        shown = [(at, spreads[name]) for at, (_, spreads) in enumerate(places) if name in spreads]
        shift = 0.0 if len(series) == 1 else -0.14 if name == "run" else 0.14
        xs = [at + shift for at, _ in shown]
        axis.vlines(xs, [s.min for _, s in shown], [s.max for _, s in shown], colour, linewidth=1)
        quartiles = [s.q1 for _, s in shown], [s.q3 for _, s in shown]
        axis.vlines(xs, *quartiles, colour, linewidth=9, alpha=0.35)
        medians = [spread.median for _, spread in shown]
        axis.plot(xs, medians, "o", color=colour, markersize=5, label=_LABELS[name])
        below = name == "run" and len(series) > 1  # neighbours' numbers would touch
        for x, (_, spread) in zip(xs, shown, strict=True):
            axis.annotate(
                f"{spread.median:.{2 if spread.median < 10 else 1}f}×",
                (x, spread.min if below else spread.max),
                xytext=(0, -4 if below else 4),
                textcoords="offset points",
                ha="center",
                va="top" if below else "bottom",
                fontsize=7,
                color=colour,
            )
    axis.set_xticks(range(len(places)), [label for label, _ in places])
    axis.set_xlim(-0.5, len(places) - 0.5)
    axis.set_title(title, fontsize=9)
    axis.grid(axis="y", which="major", color="#ddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(y=0.15)


def _label_axis(axis: Axes) -> None:
    """Write 1×, 2×, 5×, 10× … instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axis.yaxis.set_minor_formatter(NullFormatter())
