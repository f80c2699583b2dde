"""The page itself: its sections around the tables, charts and pictures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from ..._base.atomic import write_file
from ..mask_summary import MaskSummary
from ..report import SPARSE
from .charts import fan_in_chart, is_measured, time_chart
from .facts import Layer, Page
from .heat_map import is_exact, picture
from .tables import dense_table, layer_table
from .text import breakable, escape, percent, shape, times, unit_of_bytes, unit_of_seconds

_OPEN = 12
"""Pictures that are shown at once; those of the other layers unfold."""

_BLOCKS = 1_000_000
"""Blocks of all pictures together: each takes half a byte in the page."""

_LINES = 12
"""Lines of a list from which on it is folded up."""

_REASON = 600
"""Characters of a line that are shown."""


def write_page(page: Page, path: str | os.PathLike[str]) -> Path:
    """Write a page and return its path; raises OSError with what to do."""
    return write_file(path, render(page))


def render(page: Page) -> str:
    """Lay out a page as HTML."""
    files = resources.files(__package__)
    sections = (
        ("Where the time goes", _about_times(page), time_chart(page.layers, escape(page.after))),
        (
            "Layers",
            _ABOUT_LAYERS,
            layer_table(page.layers, escape(page.after)) if page.layers else "",
        ),
        ("Masks", _ABOUT_MASKS, _masks(page.layers)),
        ("What stays dense", "", dense_table(page.layers) if page.layers else ""),
        ("Verification", "", _list(page.verification)),
        ("Folded and fused", "", _list(page.changes)),
        ("Notes", "", _list(page.notes)),
        ("Summary", "", _facts(page.summary)),
    )
    return Template(files.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(page.title),
        kind=escape(page.kind),
        heading=breakable(page.title),
        lead=escape(page.lead, _REASON),
        style=files.joinpath("page.css").read_text(encoding="utf-8"),
        tiles="".join(_tiles(page)),
        sections="\n".join(_section(*section) for section in sections if section[2]),
    )


def _about_times(page: Page) -> str:
    where = f"at {page.conditions}, and its share of all of them; what stands between layers is "
    predicted = f"Predicted time of each layer {where}not counted. {page.times}"
    if page.runs == (None, None):
        return predicted
    how = (
        "in whole runs on this machine, the median of ONNX Runtime’s profiler; – stands where it "
        "has made another node of a layer."
    )
    if not is_measured(page.layers):
        return f"{predicted} The table below has measured times, too: {how}"
    return f"Measured time of each layer {where}not counted. It was measured {how} {page.times}"


_ABOUT_LAYERS = (
    "Fan-in: how many weights a neuron has. Padding: entries that only fill shorter rows up, as a "
    "share of what a layer stores."
)

_ABOUT_MASKS = (
    "Where each layer has weights: neurons downwards, inputs to the right. Large masks are drawn "
    "in blocks; the more weights of a block are there, the stronger its color."
)


def _section(title: str, about: str, content: str) -> str:
    text = f'<p class="about">{escape(about, _REASON)}</p>' if about else ""
    return f"<section>\n<h2>{title}</h2>\n{text}{content}\n</section>"


def _tiles(page: Page) -> Iterable[str]:
    layers = page.layers
    timed = [x for x in layers if x.seconds is not None and x.seconds_dense is not None]
    dense, after = (
        sum(one or 0.0 for one in column)
        for column in ([x.seconds_dense for x in timed], [x.seconds for x in timed])
    )
    if after:
        unit = unit_of_seconds([dense, after])
        note = f"layers alone: {unit.number(dense)} → {unit.text(after)}"
        yield _tile("predicted speed-up", times(dense / after), note)
    yield from _runs(page)
    sparse = [x for x in layers if x.form != "dense"]
    left = sum(x.form == "dense" and x.sparsity >= SPARSE for x in layers)
    note = f"{left} more are sparse, but stay dense" if left else "no sparse layer stays dense"
    yield _tile("layers stored sparse", f"{len(sparse)} of {len(layers)}", note if layers else "")
    yield _sizes(page)
    total = sum(_entries(x) for x in layers)
    if total:
        kept = sum((1 - x.sparsity) * _entries(x) for x in layers)
        note = f"{_count(kept)} of {_count(total)}"
        yield _tile("non-zero weights", percent(kept / total), note)
    if page.error is not None:
        yield _tile("largest error", f"{page.error:.1e}", "of the largest output")


def _runs(page: Page) -> Iterable[str]:
    """Yield the measured time of whole runs, if there is one."""
    dense, after = page.runs
    unit = unit_of_seconds(page.runs)
    if dense and after:
        note = f"whole runs: {unit.number(dense)} → {unit.text(after)}"
        yield _tile("measured speed-up", times(dense / after), note)
    elif dense or after:
        of = "of the dense model" if dense else "of the file"
        yield _tile("measured time", unit.text(dense or after), f"a whole run {of}")


def _sizes(page: Page) -> str:
    dense, after = page.file_bytes or (
        sum(x.bytes_dense for x in page.layers),
        sum(x.bytes_stored for x in page.layers),
    )
    what = "size of the file" if page.file_bytes else "size of these layers"
    unit = unit_of_bytes([dense, after])
    share = f"{100 * after / dense:.0f}% of {unit.text(dense)} dense" if dense else ""
    return _tile(what, unit.text(after), share)


def _tile(term: str, big: str, small: str) -> str:
    return f'<div><dt>{term}</dt><dd class="big">{big}</dd><dd class="small">{small}</dd></div>'


def _entries(layer: Layer) -> int:
    total = 1
    for size in layer.shape:
        total *= size
    return total


def _count(number: float) -> str:
    for name, size in (("billion", 1e9), ("million", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,.0f}"


def _masks(layers: Sequence[Layer]) -> str:
    drawn = [x for x in layers if x.mask is not None and _is_worth_drawing(x)]
    cards = [_card(layer, len(drawn), open_=place < _OPEN) for place, layer in enumerate(drawn)]
    shown, more = "".join(cards[:_OPEN]), cards[_OPEN:]
    if not shown:
        return ""
    content = f'<div class="masks">{shown}</div>'
    if not more:
        return content
    title = f"{len(more)} more mask{'s' * (len(more) > 1)}"
    return content + (
        f'<details class="more"><summary>{title}</summary>'
        f'<div class="masks">{"".join(more)}</div></details>'
    )


def _is_worth_drawing(layer: Layer) -> bool:
    return layer.form != "dense" or layer.sparsity >= SPARSE


def _card(layer: Layer, count: int, *, open_: bool) -> str:
    mask = layer.mask
    assert mask is not None
    rows, columns = mask.density.shape
    room = max(256, _BLOCKS // count)
    if rows * columns > room:
        scale = (room / (rows * columns)) ** 0.5
        mask = mask.coarser(max(1, int(rows * scale)), max(1, int(columns * scale)))
    facts = [shape(layer.shape), f"{percent(layer.sparsity)} sparse", layer.form]
    why = f"<p>{escape(layer.reason, _REASON)}</p>" if layer.reason else ""
    return (
        f'<details class="card"{" open" * open_}>'
        f"<summary>{breakable(layer.name.removesuffix('.weight'))}"
        f"<span>{' · '.join(facts)}</span></summary>"
        f"{picture(mask)}{_legend(mask)}{fan_in_chart(mask)}{why}</details>"
    )


def _legend(mask: MaskSummary) -> str:
    if is_exact(mask):
        parts = [
            '<b><i class="ramp all"></i>weight</b>',
            '<b><i class="ramp none"></i>none</b>',
        ]
    else:
        block = shape(
            round(size / cells) for size, cells in zip(mask.shape, mask.density.shape, strict=True)
        )
        most = f"{float(mask.density.max()):.0%}"
        parts = [f'<b>0%<i class="ramp"></i>{most}</b> of a block of {block}']
    if mask.ablated.any():
        parts.append('<b><i class="ramp ablated"></i>ablated neurons</b>')
    return f'<p class="legend">{"".join(f"<span>{part}</span>" for part in parts)}</p>'


def _list(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line, _REASON)}</li>" for line in lines)
    if len(lines) <= _LINES:
        return f"<ul>{items}</ul>"
    return f"<details><summary>{len(lines)} lines</summary><ul>{items}</ul></details>"


def _facts(summary: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f"<dt>{escape(term)}</dt><dd>{escape(text, _REASON)}</dd>" for term, text in summary
    )
    return f'<dl class="facts">{rows}</dl>'
