"""The charts of a page: where the time goes, and how many weights neurons have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..mask_summary import MaskSummary
from .facts import Layer
from .text import NONE, Unit, breakable, times, unit_of_seconds

_SHOWN = 12
"""Layers that have bars of their own in the chart of times; the rest shares one."""

_BINS = 24


@dataclass(frozen=True)
class _Bars:
    """Times of a layer, or of several together."""

    name: str
    dense: float
    after: float

    def __add__(self, other: _Bars) -> _Bars:
        return _Bars(self.name, self.dense + other.dense, self.after + other.after)


def is_measured(layers: Sequence[Layer]) -> bool:
    """Return whether measured times of both forms are there for all layers with predicted ones."""
    timed = [layer for layer in layers if layer.seconds is not None]
    return bool(timed) and all(
        layer.measured is not None and layer.measured_dense is not None for layer in timed
    )


def time_chart(layers: Sequence[Layer], after: str) -> str:
    """Draw the times of the layers, the longest first; empty where nothing is known.

    They are the measured ones where :func:`is_measured` says that they are there.
    """
    measured = is_measured(layers)
    bars = []
    for layer in layers:
        both = (layer.seconds_dense, layer.seconds)
        if measured:
            both = (layer.measured_dense, layer.measured)
        dense, own = both
        if dense is not None and own is not None:
            bars.append(_Bars(breakable(layer.name.removesuffix(".weight")), dense, own))
    bars.sort(key=lambda one: -max(one.dense, one.after))
    if not bars:
        return ""
    total = _sum("All layers", bars)
    shown, rest = bars[:_SHOWN], bars[_SHOWN:]
    if len(rest) > 1:
        shown.append(_sum(f"{len(rest)} other layers", rest))
    else:
        shown += rest
    unit = unit_of_seconds([total.dense, total.after])
    segments = [one for one in shown if one.dense or one.after]
    longest = max(total.dense, total.after)
    rows = [
        f'<div class="whole"><p class="what">{total.name}</p>'
        f"{_stack('dense', 'dense', segments, longest, unit, total.dense)}"
        f"{_stack('after', after, segments, longest, unit, total.after)}</div>"
    ]
    longest = max(max(one.dense, one.after) for one in shown) or 1.0
    unit = unit_of_seconds([longest])
    items = "".join(
        f'<li><p class="what">{one.name} <span class="factor">{_factor(one)}</span></p>'
        f"{_bar('dense', 'dense', one.dense, longest, unit, total.dense)}"
        f"{_bar('after', after, one.after, longest, unit, total.after)}</li>"
        for one in shown
    )
    return "".join(rows) + f'<ol class="bars">{items}</ol>'


def _sum(name: str, bars: Iterable[_Bars]) -> _Bars:
    return sum(bars, start=_Bars(name, 0.0, 0.0))


def _factor(one: _Bars) -> str:
    return times(one.dense / one.after) if one.after else NONE


def _bar(kind: str, name: str, seconds: float, longest: float, unit: Unit, total: float) -> str:
    share = f"{100 * seconds / total:.0f}%" if total else NONE
    return (
        f'<div class="bar {kind}"><span class="key">{name}</span>'
        f'<span class="track"><i style="width:{100 * seconds / longest:.2f}%"></i></span>'
        f'<span class="value">{unit.text(seconds)}</span><span class="share">{share}</span></div>'
    )


def _stack(
    kind: str, name: str, parts: Sequence[_Bars], longest: float, unit: Unit, total: float
) -> str:
    values = [one.dense if kind == "dense" else one.after for one in parts]
    cells = "".join(
        f'<i style="width:{100 * value / longest:.2f}%"></i>' for value in values if value
    )
    return (
        f'<div class="bar {kind}"><span class="key">{name}</span>'
        f'<span class="track">{cells}</span>'
        f'<span class="value">{unit.text(total)}</span></div>'
    )


def fan_in_chart(mask: MaskSummary) -> str:
    """Draw how many neurons have how many weights; one sentence where all have as many."""
    alive = mask.fan_ins > 0
    counts, neurons = mask.fan_ins[alive], mask.neurons[alive]
    gone = int(mask.neurons[~alive].sum())
    ablated = f"{gone} of {mask.shape[0]} neurons are ablated." if gone else ""
    if not counts.size:
        return f"<p>{ablated}</p>"
    low, high = int(counts[0]), int(counts[-1])
    if low == high:
        every = "Every active neuron" if gone else "Every neuron"
        return f"<p>{every} has {low:,} weight{'s' * (low != 1)}. {ablated}</p>"
    median = int(np.median(np.repeat(counts, neurons)))
    bins = min(_BINS, high - low + 1)
    heights, _ = np.histogram(counts, bins=bins, range=(low, high + 1), weights=neurons)
    width = 240 / bins
    bars = "".join(
        f'<rect x="{place * width:.2f}" y="{40 - 40 * height / heights.max():.2f}" '
        f'width="{width * 0.9:.2f}" height="{40 * height / heights.max():.2f}"/>'
        for place, height in enumerate(heights)
        if height
    )
    text = f"Neurons have {low:,} to {high:,} weights, the median is {median:,}."
    return (
        f'<svg class="fans" viewBox="0 0 240 40" preserveAspectRatio="none" role="img" '
        f'aria-label="Histogram of the weights of a neuron: {text}">{bars}</svg>'
        f'<p class="axis"><span>{low:,}</span><span>weights of a neuron</span>'
        f"<span>{high:,}</span></p><p>{text} {ablated}</p>"
    )
