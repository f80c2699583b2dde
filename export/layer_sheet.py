"""The table of layers that reports of exports and inspections show."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.tables import Column, Sheet
from .layer_report import LayerReport

_WORTH_SAYING = 1.1
"""How much faster equal rows must be predicted to be for a note on it."""


def layer_sheet(layers: Sequence[LayerReport], title: str, notes: Sequence[str] = ()) -> Sheet:
    """Lay out layers, one in a row.

    Args:
        layers: to list.
        title: of the table.
        notes: lines below it.

    """
    # Padding matters where it exists, and then its column is worth the room.
    padded = any(layer.padding for layer in layers)
    timed = any(layer.speedup is not None for layer in layers)
    columns = (
        Column("layer", words=True),
        Column("shape", right=True, drop=3),
        Column("sparsity", right=True),
        Column("active", right=True, drop=0),
        Column("fan-in", right=True, drop=2),
        *[Column("padding", right=True, drop=4)] * padded,
        Column("bytes", right=True, drop=1),
        *[Column("speed-up", right=True)] * timed,
        Column("form", words=True),
    )
    rows = tuple(
        (
            layer.label.removesuffix(".weight"),
            "×".join(map(str, layer.shape)),
            *(
                (f"{layer.sparsity:.1%}", f"{layer.active}/{layer.shape[0]}", str(layer.fan_in))
                if layer.counted
                else ("?", "?", "?")
            ),
            *[f"{layer.padding_share:.0%}" if layer.padding else ""] * padded,
            size_text(layer.bytes_in_file),
            *["" if layer.speedup is None else f"{layer.speedup:.2g}×"] * timed,
            _form(layer),
        )
        for layer in layers
    )
    return Sheet(title, columns, rows, (*notes, *note_on_padding(layers)))


def _form(layer: LayerReport) -> str:
    """Say what became of a layer and why; the speed-up has a column of its own."""
    reason = layer.reason
    if layer.speedup is not None:
        reason = reason.removeprefix(f"{layer.speedup:.2g}× ")
    text = ": ".join(filter(None, (layer.decision, reason)))
    text += "" if layer.counted else ", so not computed"
    return text + (", in bfloat16" if layer.compute == "bfloat16" else "")


def note_on_padding(layers: Sequence[LayerReport]) -> tuple[str, ...]:
    """Say what unequal rows cost where they cost the most, and what makes them equal."""
    slowed = [
        (
            layer.times.chosen / layer.times.equal_rows,
            layer.times.dense / layer.times.equal_rows,
            layer,
        )
        for layer in layers
        if layer.times is not None and layer.times.equal_rows is not None
    ]
    factor, equal, layer = max(slowed, key=lambda entry: entry[0], default=(0.0, 0.0, None))
    if layer is None or factor < _WORTH_SAYING:
        return ()
    now = 1.0 if layer.speedup is None else layer.speedup
    return (
        f"rows of unequal length are padded: with equal rows {layer.label} would be predicted "
        f"{equal:.2g}× as fast as dense instead of {now:.2g}×; fanin prune and training with SRigL "
        "make rows equal",
    )


def size_text(count: int) -> str:
    """Write a number of bytes."""
    if count < 1000:
        return f"{count} B"
    size = count / 1000
    for unit in ("kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
