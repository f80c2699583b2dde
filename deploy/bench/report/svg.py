"""A figure as SVG, for a wide page and for a phone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...._base.figure_style import (
    COLORS,
    FAINT,
    GRID,
    INK,
    MARKERS,
    Width,
    figure_style,
    name_lines,
    to_svg,
)
from .figure import Axis, Figure, Panel, Series, describe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW = 2.9
"""Inches of a row of panels."""
_BAR = 0.17
"""Inches of a bar or span that lies flat, or of a line of the key."""
_MOST_BARS = 16
"""More bars than these have no room for their values beside each other."""
_MANY = {"x": 100, "y": 2000}
"""A longer logarithmic axis has powers of ten alone: beside each other, numbers need more room."""


def to_svg_bytes(figure: Figure, width: Width) -> bytes:
    """Draw the figure: panels beside each other, or on a narrow page below each other."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    panels = figure.panels
    columns = 1 if width.narrow else max(1, min(figure.columns, len(panels)))
    rows = [panels[at : at + columns] for at in range(0, len(panels), columns)] or [[]]
    heights = [max([_height(panel, width) for panel in row], default=_ROW) for row in rows]
    with figure_style(width):
        canvas = Canvas(figsize=(width.inches, 0.9 + sum(heights)), layout="constrained")
        FigureCanvasSVG(canvas)
        axes = canvas.subplots(
            len(rows),
            columns,
            sharey=figure.shared and not width.narrow,
            squeeze=False,
            gridspec_kw={"height_ratios": heights},
        ).flatten()
        drawn = [_draw_panel(axis, panel, width) for axis, panel in zip(axes, panels, strict=False)]
        for axis in axes[len(panels) :]:
            axis.remove()
        for axis in canvas.axes:
            place = axis.get_subplotspec()
            if columns > 1 and figure.shared and place is not None and not place.is_first_col():
                axis.set_ylabel("")
        _draw_key(canvas, [handle for own in drawn for handle in own], width)
        canvas.suptitle(figure.title, x=0.02, ha="left")
        return to_svg(canvas, describe(figure))


def _is_flat(panel: Panel, width: Width) -> bool:
    """Return whether categories go down the page, so that their names and values have room."""
    bars = sum(len(one.xs) for one in panel.series if one.kind == "bars" and one.texts)
    grouped = all(one.kind in ("bars", "spans") for one in panel.series)
    return grouped and (width.narrow or bars > _MOST_BARS)


def _height(panel: Panel, width: Width) -> float:
    if not _is_flat(panel, width):
        return _ROW if len(panel.series) < 8 else _ROW + 0.6
    bars = sum(len(one.xs) * (1 if one.texts else 0.55) for one in panel.series)
    return 0.7 + _BAR * bars + 0.16 * len(panel.x.ticks or ())


def _draw_panel(axis: Axes, panel: Panel, width: Width) -> list[Any]:
    """Draw a panel; returns what the key has to explain."""
    flat = _is_flat(panel, width)
    if panel.reference is not None:
        (axis.axvline if flat else axis.axhline)(panel.reference, color=FAINT, ls="--", lw=1)
    _set_axis(axis, "y" if flat else "x", panel.x)
    _set_axis(axis, "x" if flat else "y", panel.y)
    shown = [(one, one.color or COLORS[at % len(COLORS)]) for at, one in enumerate(panel.series)]
    handles = draw_groups(axis, shown, flat=flat)
    lines = [(at, *one) for at, one in enumerate(shown) if one[0].kind in ("line", "points")]
    handles += [_draw_line(axis, series, color, at) for at, series, color in lines]
    axis.set_title(panel.title, loc="left")
    both = panel.x.ticks is None
    axis.grid(axis="both" if both else "x" if flat else "y", color=GRID, linewidth=0.6)
    (axis.set_xmargin if flat else axis.set_ymargin)(0.15)
    for name, made in (("y" if flat else "x", panel.x), ("x" if flat else "y", panel.y)):
        _thin_out(axis, name, made)
    if flat:
        axis.invert_yaxis()
    if len(handles) == 1 and handles[0].get_label() in panel.y.label:
        return []
    if lines and all(series.kind == "line" for _, series, _ in lines) and name_lines(axis):
        return []
    return handles


def _set_axis(axis: Axes, name: Any, made: Axis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    own = getattr(axis, f"{name}axis")
    getattr(axis, f"set_{name}label")(made.label)
    if made.log:
        getattr(axis, f"set_{name}scale")("log", base=made.log)
        own.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        own.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.9g}{made.unit}"))
        own.set_minor_formatter(NullFormatter())
    if made.ticks is not None:
        own.set_ticks(list(made.ticks), list(made.ticks.values()))
    if made.limits:
        getattr(axis, f"set_{name}lim")(*made.limits)


def _thin_out(axis: Axes, name: str, made: Axis) -> None:
    """Label powers of ten alone where a logarithmic axis spans many."""
    from matplotlib.ticker import LogLocator

    low, high = getattr(axis, f"get_{name}lim")()
    if made.log and made.ticks is None and high > _MANY[name] * low:
        getattr(axis, f"{name}axis").set_major_locator(LogLocator(10))


def draw_groups(axis: Axes, shown: Sequence[tuple[Series, str]], *, flat: bool) -> list[Any]:
    """Draw bars and spans side by side, at each place only those that are there: no gaps."""
    grouped = [one for one in shown if one[0].kind in ("bars", "spans")]
    places: dict[float, list[int]] = {}
    for number, (series, _) in enumerate(grouped):
        for x in series.xs:
            places.setdefault(x, []).append(number)
    step = 0.86 / max(map(len, places.values()), default=1)
    handles = []
    for number, (series, color) in enumerate(grouped):
        shifts = [places[x].index(number) - (len(places[x]) - 1) / 2 for x in series.xs]
        width = step if flat or series.kind == "bars" else min(step, 0.28)
        xs = [x + shift * width for x, shift in zip(series.xs, shifts, strict=True)]
        draw = _draw_bars if series.kind == "bars" else _draw_spans
        handles.append(draw(axis, series, xs, width, color, flat=flat))
        below = not flat and series.kind == "spans" and number < len(grouped) - 1
        _write_texts(axis, series, xs, color, flat=flat, below=below)
    return handles


def _draw_bars(
    axis: Axes, series: Series, xs: Sequence[float], width: float, color: str, *, flat: bool
) -> Any:
    errors = None
    if series.low:
        errors = [np.subtract(series.ys, series.low), np.subtract(series.high, series.ys)]
    draw = axis.barh if flat else axis.bar
    style: dict[str, Any] = {"ecolor": INK, "xerr" if flat else "yerr": errors}
    return draw(xs, series.ys, 0.92 * width, color=color, label=series.label, **style)


def _draw_spans(
    axis: Axes, series: Series, xs: Sequence[float], _: float, color: str, *, flat: bool
) -> Any:
    lines = axis.hlines if flat else axis.vlines
    lines(xs, series.least, series.most, color, linewidth=1)
    lines(xs, series.low, series.high, color, linewidth=7, alpha=0.35)
    points = (series.ys, xs) if flat else (xs, series.ys)
    (dots,) = axis.plot(*points, "o", color=color, markersize=4, label=series.label)
    return dots


def _draw_line(axis: Axes, series: Series, color: str, number: int) -> Any:
    joined = series.kind == "line"
    marker = series.marker and MARKERS[number % len(MARKERS)]
    (line,) = axis.plot(
        series.xs,
        series.ys,
        color=color,
        linestyle=series.style if joined else "none",
        marker=marker if joined else MARKERS[number % len(MARKERS)],
        markersize=4,
        linewidth=1.4,
        label=series.label,
    )
    if series.low:
        axis.fill_between(series.xs, series.low, series.high, alpha=0.2, color=color, linewidth=0)
    _write_texts(axis, series, series.xs, color, flat=False, below=False)
    return line


def _write_texts(
    axis: Axes, series: Series, xs: Sequence[float], color: str, *, flat: bool, below: bool
) -> None:
    ends = series.high or series.ys
    if series.kind == "spans":
        ends = series.least if below else series.most
    for x, y, text in zip(xs, ends, series.texts, strict=False):
        axis.annotate(
            text,
            (y, x) if flat else (x, y),
            xytext=(4, 0) if flat else (0, -3 if below else 3),
            textcoords="offset points",
            ha="left" if flat else "center",
            va="center" if flat else "top" if below else "bottom",
            fontsize="small",
            color=INK if series.kind == "bars" else color,
        )


def _draw_key(canvas: Any, handles: Sequence[Any], width: Width) -> None:
    """Explain colors once, below all panels, which keep their height."""
    known = {handle.get_label(): handle for handle in reversed(handles)}
    ordered = {handle.get_label(): known[handle.get_label()] for handle in handles}
    if not ordered:
        return
    room = (45 if width.narrow else 100) // (6 + max(map(len, ordered)))
    columns = max(1, min(4, room))
    canvas.legend(ordered.values(), ordered.keys(), loc="outside lower left", ncols=columns)
    canvas.set_figheight(canvas.get_figheight() + _BAR * -(-len(ordered) // columns))
