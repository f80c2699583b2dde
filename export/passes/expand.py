"""Write operators that hold sparse weights by simpler ones, whose weights can be condensed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ..forms import Chooser
from .access import input_of, optional_input
from .attention_expansion import expand_attention
from .conv3d_expansion import expand_conv
from .conv_transpose_expansion import expand_conv_transpose
from .expansion import Expansion
from .experts import expand_experts
from .fixed_sizes import fix_sizes
from .fused_expansion import unfuse_conv, unfuse_gemm, unfuse_matmul
from .nodes import dimensions_of
from .recurrent_expansion import expand_recurrent


@dataclass(frozen=True)
class _Rule:
    """How an operator is rewritten.

    Attributes:
        expand: rewrites a node; returns whether it did.
        weights: positions of its weights.
        dimensions: how many a weight may have.

    """

    expand: Callable[[Expansion, ir.Node], bool]
    weights: tuple[int, ...] = (1,)
    dimensions: tuple[int, ...] = (2,)


_RECURRENT = _Rule(expand_recurrent, (1, 2), (3,))

_CONTRIB = "com.microsoft"

_RULES = {
    ("", "LSTM"): _RECURRENT,
    ("", "GRU"): _RECURRENT,
    ("", "MatMul"): _Rule(expand_experts, dimensions=(3,)),
    ("", "Conv"): _Rule(expand_conv, dimensions=(5,)),
    ("", "ConvTranspose"): _Rule(expand_conv_transpose, dimensions=(3, 4, 5)),
    (_CONTRIB, "FusedConv"): _Rule(unfuse_conv, dimensions=(3, 4, 5)),
    (_CONTRIB, "FusedGemm"): _Rule(unfuse_gemm),
    (_CONTRIB, "FusedMatMul"): _Rule(unfuse_matmul, (0, 1)),
    (_CONTRIB, "Attention"): _Rule(expand_attention),
}


class ExpandPass(ir.passes.InPlacePass):
    """Rewrite operators that hold sparse weights, subgraphs included.

    LSTM and GRU become loops over products, MatMul of a weight for each expert one product for
    each, Conv over three axes and ConvTranspose of a stride over 1 a Conv over one or two; what
    ONNX Runtime has fused when it optimized a file becomes the operators that it was. The pass
    runs before weights are condensed, and rewrites only where the result is predicted to be faster.
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
        """Visit all nodes."""
        work = Expansion(model, self.chooser, self.min_sparsity, self.masks)
        nodes = []
        for node in model.graph.all_nodes():
            rule = _RULES.get((node.domain, node.op_type))
            if rule is None:
                continue
            if rule is _RECURRENT:
                for value in node.inputs[1:4]:
                    if value is not None:
                        fix_sizes(value)
            weights = [optional_input(node, position) for position in rule.weights]
            known = [value for value in weights if value is not None]
            if any(work.is_sparse(value, rule.dimensions) for value in known):
                nodes.append((node, rule))
        recurrent = [node for node, rule in nodes if rule is _RECURRENT]
        if any(dimensions_of(input_of(node, 0)) is None for node in recurrent):
            common.ShapeInferencePass(strict_mode=False)(model)
        changed = [rule.expand(work, node) for node, rule in nodes]
        return ir.passes.PassResult(model, modified=any(changed))
