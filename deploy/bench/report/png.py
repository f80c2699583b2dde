"""A figure as PNG, legible at 800 pixels wide."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from .figure import Axis, Figure, Panel, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AxisName = Literal["x", "y"]

_WIDTH, _NARROW, _ROW = 8.0, 6.4, 2.9
"""Inches; a page shows about 100 pixels for each."""
_DPI, _SMALL = 120, 8
_COLORS = 64
"""Colors in the file: with a palette it has a third of the size."""


def draw(figure: Figure, file: IO[bytes]) -> None:
    """Write the figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from PIL import Image  # which matplotlib writes its files with

    panels = figure.panels
    columns = max(1, min(figure.columns, len(panels)))
    rows = -(-max(1, len(panels)) // columns)
    width = _NARROW if columns == 1 else _WIDTH
    canvas = Canvas(figsize=(width, 1.2 + (_ROW if rows > 1 else 3.4) * rows), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(rows, columns, sharey=figure.shared, squeeze=False).flatten()
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel)
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis in canvas.axes:
        place = axis.get_subplotspec()
        if figure.shared and place is not None and not place.is_first_col():
            axis.set_ylabel("")
    _draw_legend(canvas)
    canvas.suptitle(figure.title, fontsize=10)
    drawn = io.BytesIO()
    canvas.savefig(drawn, format="png", dpi=_DPI)
    picture = Image.open(drawn).convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE)
    picture.save(file, format="png", optimize=True)


def _draw_panel(axis: Axes, panel: Panel) -> None:
    if panel.reference is not None:
        axis.axhline(panel.reference, color="#777", linestyle="--", linewidth=1)
    both: tuple[tuple[_AxisName, Axis], ...] = (("x", panel.x), ("y", panel.y))
    for name, made in both:
        _set_axis(axis, name, made)
    for kind in ("bars", "spans"):
        beside = [one for one in panel.series if one.kind == kind]
        width = 0.86 / max(1, len(beside)) if kind == "bars" else 0.28
        for number, series in enumerate(beside):
            shift = (number - (len(beside) - 1) / 2) * width
            xs = [x + shift for x in series.xs]
            below = kind == "spans" and number < len(beside) - 1  # neighbors' texts would touch
            (_draw_bars if kind == "bars" else _draw_spans)(axis, series, xs, width)
            _write_texts(axis, series, xs, below=below)
    for series in panel.series:
        if series.kind in ("line", "points"):
            _draw_line(axis, series)
            _write_texts(axis, series, series.xs, below=False)
    axis.set_title(panel.title, fontsize=9)
    axis.grid(axis="both" if panel.x.ticks is None else "y", color="#ddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(y=0.15)
    for name, made in both:
        if made.limits:
            getattr(axis, f"set_{name}lim")(*made.limits)


def _set_axis(axis: Axes, name: _AxisName, made: Axis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    own = getattr(axis, f"{name}axis")
    getattr(axis, f"set_{name}label")(made.label, fontsize=9)
    axis.tick_params(name, labelsize=_SMALL)
    if made.log:
        getattr(axis, f"set_{name}scale")("log", base=made.log)
        own.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        own.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.9g}{made.unit}"))
        own.set_minor_formatter(NullFormatter())
    if made.ticks is not None:
        own.set_ticks(list(made.ticks), list(made.ticks.values()))


def _draw_bars(axis: Axes, series: Series, xs: Sequence[float], width: float) -> None:
    errors = None
    if series.low:
        errors = [np.subtract(series.ys, series.low), np.subtract(series.high, series.ys)]
    axis.bar(xs, series.ys, width, yerr=errors, color=series.color, label=series.label, capsize=1)


def _draw_spans(axis: Axes, series: Series, xs: Sequence[float], _: float) -> None:
    axis.vlines(xs, series.least, series.most, series.color, linewidth=1)
    axis.vlines(xs, series.low, series.high, series.color, linewidth=7, alpha=0.35)
    axis.plot(xs, series.ys, "o", color=series.color, markersize=4, label=series.label)


def _draw_line(axis: Axes, series: Series) -> None:
    (line,) = axis.plot(
        series.xs,
        series.ys,
        color=series.color,
        linestyle=series.style if series.kind == "line" else "none",
        marker=series.marker or ("o" if series.kind == "points" else None),
        markersize=4,
        linewidth=1.2,
        label=series.label,
    )
    if series.low:
        color = line.get_color()
        axis.fill_between(series.xs, series.low, series.high, alpha=0.2, color=color, linewidth=0)


def _write_texts(axis: Axes, series: Series, xs: Sequence[float], *, below: bool) -> None:
    ends = series.high or series.ys
    if series.kind == "spans":
        ends = series.least if below else series.most
    for x, y, text in zip(xs, ends, series.texts, strict=False):
        axis.annotate(
            text,
            (x, y),
            xytext=(0, -3 if below else 3),
            textcoords="offset points",
            ha="center",
            va="top" if below else "bottom",
            fontsize=7,
            color=series.color or "black",
        )


def _draw_legend(canvas: Any) -> None:
    """Put one legend below all panels."""
    handles = {
        label: handle
        for axis in canvas.axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if handles:
        columns = max(1, min(4, 90 // (6 + max(map(len, handles)))))
        canvas.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=_SMALL,
        )
