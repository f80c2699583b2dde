"""Write operators that hold sparse weights by simpler ones, whose weights can be condensed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ..forms import Chooser
from ..recurrent_cost import Product, RecurrentSize, why_left
from .access import input_of
from .condense_reports import kept_of
from .constants import ConstantWeight, resolve_constant
from .fixed_sizes import fix_sizes
from .nodes import Names, dimensions_of
from .origins import leave
from .recurrent import Recurrent, Stored, is_recurrent, optional_input, read_recurrent
from .recurrent_loop import write_loop


class ExpandPass(ir.passes.InPlacePass):
    """Rewrite LSTM and GRU that hold sparse weights, subgraphs included.

    It runs before weights are condensed, and only where the result is predicted to be faster.
    Where a sparse weight stays in its operator, the reason is noted on the node.
    """

    def __init__(
        self,
        chooser: Chooser,
        *,
        min_sparsity: float,
        masks: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Set what decides; ``min_sparsity`` and ``masks`` are those of CondensePass."""
        super().__init__()
        self.chooser, self.min_sparsity = chooser, min_sparsity
        self.masks = None if masks is None else dict(masks)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit all nodes; a model without recurrent operators is left alone."""
        nodes = [node for node in model.graph.all_nodes() if is_recurrent(node)]
        for node in nodes:
            for position in (1, 2, 3):
                value = optional_input(node, position)
                if value is not None:
                    fix_sizes(value)
        nodes = [node for node in nodes if self._is_sparse(model, node)]
        if any(dimensions_of(input_of(node, 0)) is None for node in nodes):
            common.ShapeInferencePass(strict_mode=False)(model)
        names = Names(model)
        changed = [self._visit(model, node, names) for node in nodes]
        return ir.passes.PassResult(model, modified=any(changed))

    def _is_sparse(self, model: ir.Model, node: ir.Node) -> bool:
        opset = model.opset_imports.get("", 1)
        values = [optional_input(node, position) for position in (1, 2)]
        found = [resolve_constant(v, opset, self.masks) for v in values if v is not None]
        return any(isinstance(one, ConstantWeight) and self._qualifies(one) for one in found)

    def _qualifies(self, found: ConstantWeight) -> bool:
        if not found.array.size or (self.masks is not None and found.mask is None):
            return False
        return 1 - float(np.count_nonzero(kept_of(found))) / found.array.size >= self.min_sparsity

    def _visit(self, model: ir.Model, node: ir.Node, names: Names) -> bool:
        opset = model.opset_imports.get("", 1)
        layer = read_recurrent(node, opset, self.masks)
        if layer is None:
            return False
        reason = layer if isinstance(layer, str) else self._why_left(layer, opset)
        if reason is None and isinstance(layer, Recurrent):
            write_loop(layer, names)
            return True
        weights = [optional_input(node, position) for position in (1, 2)]
        stored = {value: None for value in weights if value is not None}
        if isinstance(layer, Recurrent):
            stored = {one.value: None for one in (*layer.projections, *layer.recurrent)}
        for value in stored:
            leave(node, value, str(reason))
        return False

    def _why_left(self, layer: Recurrent, opset: int) -> str | None:
        sizes = dimensions_of(input_of(layer.node, 0)) or [None, None, None]
        steps, batch = (size if isinstance(size, int) else None for size in sizes[:2])
        if layer.batch_first:
            steps, batch = batch, steps
        projections, recurrent = (
            tuple(self._product(one, opset) for one in side)
            for side in (layer.projections, layer.recurrent)
        )
        size = RecurrentSize(steps, batch, layer.hidden, projections, recurrent)
        return why_left(self.chooser, size)

    def _product(self, stored: Stored, opset: int) -> Product:
        found = resolve_constant(stored.value, opset, self.masks)
        assert isinstance(found, ConstantWeight)
        at = stored.at or 0
        array, kept = found.array[at], kept_of(found)[at]
        counts = np.count_nonzero(kept, axis=1)
        sparse = counts.sum() <= (1 - self.min_sparsity) * kept.size
        masked = self.masks is None or found.mask is not None
        padded = int(np.count_nonzero(counts) * counts.max(initial=0))
        rows, columns = array.shape
        return Product(rows, columns, padded if sparse and masked else None)
