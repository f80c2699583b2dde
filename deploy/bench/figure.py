"""The figure of a result: speed-up over dense, with its spread."""

from __future__ import annotations

from typing import IO

from .result import Case, Result
from .statistics import Spread

_COLOURS = {"run": "#1f6f8b", "op": "#e07a5f"}
_LABELS = {"run": "whole session.run", "op": "op time (less the null session)"}


def draw(result: Result, file: IO[bytes]) -> None:
    """Write the figure as PNG: a panel per batch (layer) or one panel over the batches (model).

    A bar is the median speed-up over the dense engine in the same round, the thick line spans the
    quartiles and the thin one the range. The dashed line at 1 is dense.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _panels(result)
    figure = Figure(figsize=(1.5 + 3.6 * len(panels), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, bars) in zip(axes, panels, strict=True):
        _draw_panel(axis, title, bars)
    axes[0].set_ylabel("speed-up over ONNX Runtime dense")
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(f"{result.title}\n{result.machine.get('cpu') or ''}", fontsize=10)
    figure.savefig(file, format="png", dpi=150)


_Bars = list[tuple[str, dict[str, Spread]]]


def _panels(result: Result) -> list[tuple[str, _Bars]]:
    """Panels of (title, bars); a bar has a label and the spreads of ``run`` and ``op``."""
    if result.kind == "model":
        return [("", [(f"batch {case.batch}", _spreads(case)) for case in result.cases])]
    batches = dict.fromkeys(case.batch for case in result.cases)
    return [
        (
            f"batch {batch}",
            [
                (f"{case.sparsity:.4g}", _spreads(case))
                for case in result.cases
                if case.batch == batch
            ],
        )
        for batch in batches
    ]


def _spreads(case: Case) -> dict[str, Spread]:
    for comparison in case.comparisons:
        if comparison.engine == "condensed":
            found = {"run": comparison.run, "op": comparison.op}
            return {name: spread for name, spread in found.items() if spread is not None}
    return {}


def _draw_panel(axis, title: str, bars: _Bars) -> None:
    series = [name for name in _COLOURS if any(name in spreads for _, spreads in bars)]
    width = 0.8 / max(len(series), 1)
    for number, name in enumerate(series):
        shown = [(at, spreads[name]) for at, (_, spreads) in enumerate(bars) if name in spreads]
        places = [at + (number - (len(series) - 1) / 2) * width for at, _ in shown]
        axis.bar(
            places,
            [spread.median for _, spread in shown],
            width * 0.92,
            color=_COLOURS[name],
            label=_LABELS[name],
        )
        axis.vlines(places, [s.min for _, s in shown], [s.max for _, s in shown], "#333", lw=1)
        axis.vlines(places, [s.q1 for _, s in shown], [s.q3 for _, s in shown], "#333", lw=3)
        for place, (_, spread) in zip(places, shown, strict=True):
            axis.annotate(
                f"{spread.median:.1f}×",
                (place, spread.max),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
    axis.axhline(1, color="#777", linestyle="--", linewidth=1)
    axis.set_xticks(range(len(bars)), [label for label, _ in bars])
    axis.set_title(title, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(y=0.12)
