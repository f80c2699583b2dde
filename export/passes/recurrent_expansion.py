"""LSTM and GRU as loops, where that is faster."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..recurrent_cost import Product, RecurrentSize, why_left
from .access import input_of, optional_input
from .condense_reports import kept_of
from .expansion import Expansion
from .nodes import dimensions_of
from .origins import leave
from .recurrent import Recurrent, Stored, read_recurrent
from .recurrent_loop import write_loop


def expand_recurrent(work: Expansion, node: ir.Node) -> bool:
    """Write an LSTM or GRU as loops over products of its weights."""
    layer = read_recurrent(node, work.opset, work.masks)
    if layer is None:
        return False
    reason = layer if isinstance(layer, str) else _why_left(work, layer)
    if reason is None and isinstance(layer, Recurrent):
        write_loop(layer, work.names)
        return True
    weights = [optional_input(node, position) for position in (1, 2)]
    stored = {value: None for value in weights if value is not None}
    if isinstance(layer, Recurrent):
        stored = {one.value: None for one in (*layer.projections, *layer.recurrent)}
    for value in stored:
        leave(node, value, str(reason))
    return False


def _why_left(work: Expansion, layer: Recurrent) -> str | None:
    sizes = dimensions_of(input_of(layer.node, 0)) or [None, None, None]
    steps, batch = (size if isinstance(size, int) else None for size in sizes[:2])
    if layer.batch_first:
        steps, batch = batch, steps
    projections, recurrent = (
        tuple(_product(work, one) for one in side) for side in (layer.projections, layer.recurrent)
    )
    size = RecurrentSize(steps, batch, layer.hidden, projections, recurrent)
    return why_left(work.chooser, size)


def _product(work: Expansion, stored: Stored) -> Product:
    found = work.weight(stored.value)
    assert found is not None
    at = stored.at or 0
    kept = kept_of(found)[at]
    counts = np.count_nonzero(kept, axis=1)
    rows, columns = kept.shape
    padded = int(np.count_nonzero(counts) * counts.max(initial=0))
    sparse = work.masked(found) and work.enough_zeros(kept)
    return Product(rows, columns, padded if sparse else None)
