"""The content of a figure, independent of the library that draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..measure.statistics import Spread


@dataclass(frozen=True)
class Series:
    """Points of one color.

    ``line`` joins them, with a band from ``low`` to ``high`` where given; ``points`` does not;
    ``bars`` and ``spans`` of a panel are drawn side by side at each x. A bar has an error bar from
    ``low`` to ``high``; a span is a dot with a wide band from ``low`` to ``high`` and a thin one
    from ``least`` to ``most``. ``texts`` are written above the points, or below those of ``spans``
    that have a neighbor.
    """

    label: str
    kind: Literal["line", "points", "bars", "spans"]
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    least: Sequence[float] = ()
    most: Sequence[float] = ()
    texts: Sequence[str] = ()
    color: str | None = None
    style: str = "-"
    marker: str = ""

    @classmethod
    def of_spreads(
        cls,
        label: str,
        kind: Literal["line", "points", "bars", "spans"],
        places: Sequence[tuple[float, Spread]],
        *,
        scale: float = 1.0,
        texts: Sequence[str] = (),
        color: str | None = None,
    ) -> Series:
        """Show medians, quartiles and ranges, multiplied by ``scale``, at their places."""
        xs, spreads = [x for x, _ in places], [spread for _, spread in places]
        return cls(
            label,
            kind,
            xs,
            ys=[scale * spread.median for spread in spreads],
            low=[scale * spread.q1 for spread in spreads],
            high=[scale * spread.q3 for spread in spreads],
            least=[scale * spread.min for spread in spreads],
            most=[scale * spread.max for spread in spreads],
            texts=texts,
            color=color,
            marker="o" if kind == "line" else "",
        )


@dataclass(frozen=True)
class Axis:
    """An axis: ``log`` is the base of a logarithmic one, ``ticks`` are labels at places.

    Ticks of a logarithmic axis without ``ticks`` are at 1, 2, 5, 10, …, followed by ``unit``.
    """

    label: str = ""
    log: int | None = None
    ticks: Mapping[float, str] | Mapping[int, str] | None = None
    limits: tuple[float, float] | None = None
    unit: str = ""


def names_axis(names: Sequence[str], label: str = "") -> Axis:
    """Make an axis with the names at 0, 1, 2 and so on."""
    ticks = {float(place): name for place, name in enumerate(names)}
    return Axis(label, ticks=ticks, limits=(-0.5, max(len(names), 1) - 0.5))


@dataclass(frozen=True)
class Panel:
    """One pair of axes; ``reference`` is the y of a dashed line."""

    series: Sequence[Series]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    title: str = ""
    reference: float | None = None


@dataclass(frozen=True)
class Figure:
    """Panels in rows of at most ``columns``. With ``shared`` all have the same y axis."""

    title: str
    panels: Sequence[Panel]
    columns: int = 3
    shared: bool = True


def describe(figure: Figure) -> str:
    """Say in words what a figure shows, for readers who do not see it."""
    parts = []
    for panel in figure.panels:
        named = [f"{one.label} {_range(one.ys, panel.y.unit)}" for one in panel.series if one.ys]
        if named:
            head = f"{panel.title}: " if panel.title else ""
            parts.append(head + ", ".join(named))
    shown = figure.panels[0].y.label if figure.panels else ""
    title = figure.title.partition("\n")[0]
    heads = [text for text in (title, shown) if text]
    return ". ".join([": ".join(heads) or "No values", *parts]) + "."


def _range(values: Sequence[float], unit: str) -> str:
    ends = [f"{value:.3g}{unit}" for value in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
