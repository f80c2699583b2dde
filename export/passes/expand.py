"""Write operators that hold sparse weights by simpler ones, whose weights can be condensed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ..forms import Chooser
from .access import input_of, optional_input
from .conv_expansion import expand_conv, expand_conv_transpose
from .expansion import Expansion
from .experts import expand_experts
from .fixed_sizes import fix_sizes
from .nodes import dimensions_of
from .recurrent_expansion import expand_recurrent

_WEIGHTS = {"LSTM": (1, 2), "GRU": (1, 2), "MatMul": (1,), "Conv": (1,), "ConvTranspose": (1,)}
"""Positions of the weights of each operator that is looked at."""

_RULES: dict[str, Callable[[Expansion, ir.Node], bool]] = {
    "LSTM": expand_recurrent,
    "GRU": expand_recurrent,
    "MatMul": expand_experts,
    "Conv": expand_conv,
    "ConvTranspose": expand_conv_transpose,
}
"""What rewrites each operator; returns whether it did."""


class ExpandPass(ir.passes.InPlacePass):
    """Rewrite operators that hold sparse weights, subgraphs included.

    LSTM and GRU become loops over products, MatMul of a weight for each expert one product for
    each, Conv over three axes and ConvTranspose of a stride over 1 a Conv over one or two. It runs
    before weights are condensed, and only where the result is predicted to be faster. Where a
    sparse weight stays in its operator, the reason is noted on the node.
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
        """Visit all nodes."""
        work = Expansion(model, self.chooser, self.min_sparsity, self.masks)
        nodes = []
        for node in model.graph.all_nodes():
            if node.domain != "" or node.op_type not in _RULES:
                continue
            if node.op_type in ("LSTM", "GRU"):
                for value in node.inputs[1:4]:
                    if value is not None:
                        fix_sizes(value)
            weights = [optional_input(node, position) for position in _WEIGHTS[node.op_type]]
            if any(value is not None and work.is_sparse(value) for value in weights):
                nodes.append(node)
        recurrent = [node for node in nodes if node.op_type in ("LSTM", "GRU")]
        if any(dimensions_of(input_of(node, 0)) is None for node in recurrent):
            common.ShapeInferencePass(strict_mode=False)(model)
        changed = [_RULES[node.op_type](work, node) for node in nodes]
        return ir.passes.PassResult(model, modified=any(changed))
