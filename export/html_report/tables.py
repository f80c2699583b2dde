"""The tables of a page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from .facts import Layer
from .text import NONE, breakable, escape, percent, shape, times, unit_of_bytes, unit_of_seconds

_TALL = 30
"""Rows from which on a table scrolls in a frame of its own, its head in sight."""

_MANY = 12
"""Rows of the table of dense layers from which on it is folded up."""


def fan_in_range(layer: Layer) -> str:
    """Write the fewest and the most weights of active neurons."""
    if layer.mask is None:
        return NONE
    counts = layer.mask.fan_ins[layer.mask.fan_ins > 0]
    if not counts.size:
        return "0"
    low, high = int(counts[0]), int(counts[-1])
    return f"{low:,}" if low == high else f"{low:,} – {high:,}"


def form_chip(layer: Layer) -> str:
    """Write the form of a layer as a label."""
    return f'<span class="chip {layer.form}">{layer.form}</span>'


def layer_table(layers: Sequence[Layer], after: str) -> str:
    """Lay out all layers, before and after."""
    size = unit_of_bytes(chain.from_iterable((x.bytes_dense, x.bytes_stored) for x in layers))
    clock = unit_of_seconds(chain.from_iterable((x.seconds_dense, x.seconds) for x in layers))
    measured = any(x.measured is not None or x.measured_dense is not None for x in layers)
    watch = unit_of_seconds(chain.from_iterable((x.measured_dense, x.measured) for x in layers))
    halves = f'<th scope="col">dense</th><th scope="col">{after}</th>'
    groups = [
        (_tall("layer"), ""),
        (_tall("form", "text"), ""),
        (_tall("speed-up"), ""),
        (_pair(f"predicted time, {clock.name}"), halves),
        *([(_pair(f"measured time, {watch.name}"), halves)] if measured else []),
        (_pair(f"size, {size.name}"), halves),
        (_tall("sparsity"), ""),
        (_tall("shape"), ""),
        (_tall("active<br>neurons"), ""),
        (_tall("fan-in"), ""),
        (_tall("padding"), ""),
    ]
    rows = []
    for layer in layers:
        watched = [watch.number(layer.measured_dense), watch.number(layer.measured)]
        cells = [
            NONE if layer.form == "dense" else times(layer.speedup),
            clock.number(layer.seconds_dense),
            clock.number(layer.seconds),
            *(watched if measured else []),
            size.number(layer.bytes_dense),
            size.number(layer.bytes_stored),
            percent(layer.sparsity),
            shape(layer.shape),
            f"{layer.active:,} / {layer.shape[0]:,}",
            fan_in_range(layer),
            NONE if layer.padding is None else percent(layer.padding),
        ]
        name = breakable(layer.name.removesuffix(".weight"))
        rows.append(
            f'<tr><th scope="row">{name}</th><td class="text">{form_chip(layer)}</td>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
        )
    head = f"<tr>{''.join(first for first, _ in groups)}</tr>"
    head += f"<tr>{''.join(second for _, second in groups)}</tr>"
    return _scrolling("All layers, before and after", head, rows)


def _tall(title: str, kind: str = "number") -> str:
    return f'<th scope="col" rowspan="2" class="{kind}">{title}</th>'


def _pair(title: str) -> str:
    return f'<th scope="colgroup" colspan="2" class="pair">{title}</th>'


def dense_table(layers: Sequence[Layer]) -> str:
    """Lay out the layers that stay dense, with the reasons; the sparsest first."""
    left = sorted((x for x in layers if x.form == "dense"), key=lambda x: -x.sparsity)
    if not left:
        return "<p>No layer stays dense.</p>"
    head = (
        '<tr><th scope="col">layer</th><th scope="col">sparsity</th><th scope="col">shape</th>'
        '<th scope="col" class="text">kind</th><th scope="col" class="text">why</th></tr>'
    )
    rows = [
        f'<tr><th scope="row">{breakable(x.name.removesuffix(".weight"))}</th>'
        f"<td>{percent(x.sparsity)}</td><td>{shape(x.shape)}</td>"
        f'<td class="text">{escape(x.kind)}</td>'
        f'<td class="text why">{escape(x.reason, longest=600)}</td></tr>'
        for x in left
    ]
    table = _scrolling("Layers that stay dense, and why", head, rows)
    if len(left) <= _MANY:
        return table
    return f"<details><summary>{len(left)} layers</summary>{table}</details>"


def _scrolling(label: str, head: str, rows: Sequence[str]) -> str:
    tall = " tall" if len(rows) > _TALL else ""
    return (
        f'<div class="scroll{tall}" role="region" tabindex="0" aria-label="{label}"><table>'
        f"<caption>{label}</caption><thead>{head}</thead><tbody>{''.join(rows)}</tbody>"
        "</table></div>"
    )
