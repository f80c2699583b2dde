"""Replace MatMul, Gemm and Conv with sparse constant weights by condensed nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ..forms import Choice
from ..report import LayerReport
from .condense_layers import STAYS, CondenseOptions, Condenser, LeaveDense
from .condense_quantized import ChooseQuantized, is_quantized_layer
from .constants import forget_what_varies
from .conv_layer import is_conv, is_conv_transpose
from .elsewhere import Elsewhere
from .linear_layer import is_linear
from .nodes import our_nodes
from .result_pass import ResultPass


@dataclass
class CondenseResult(ir.passes.PassResult):
    """A pass result that also says what was found.

    Attributes:
        layers: one report for each weight, in graph order.
        notes: what else a user should know.
        verbatim: condensed weights that store entries of the constant of that name as they are.
        elsewhere: weights that no layer holds.
        held: how many nodes of ours the model had before.

    """

    layers: list[LayerReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verbatim: frozenset[str] = frozenset()
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    held: int = 0


class CondensePass(ResultPass[CondenseResult]):
    """Replace MatMul, Gemm and Conv of a sparse constant weight, subgraphs included.

    The weight may be transposed, scaled (Gemm's alpha and beta), shared by several nodes, or stand
    behind operators that :mod:`.constants` folds. An Add of a constant vector after a MatMul
    becomes the bias. Layers of 8-bit inputs and weights, whichever operators say it, become nodes
    that compute in 8 bits. Names of nodes and of their outputs stay. Bodies of functions are left
    alone.
    """

    def __init__(
        self,
        *,
        min_sparsity: float,
        masks: Mapping[str, np.ndarray] | None = None,
        leave_dense: LeaveDense = lambda weight, shape, geometry: None,  # noqa: ARG005
        choose_quantized: ChooseQuantized = lambda *_: Choice("condensed", "sparse"),
        name_after_weights: bool = False,
        leave_shared: LeaveDense = lambda weight, shape, geometry: None,  # noqa: ARG005
    ) -> None:
        """Set what is condensed.

        Args:
            min_sparsity: weights with a smaller share of zeros stay.
            masks: bool arrays by the name of the initializer; when given, only these weights are
                candidates and the mask decides what is stored.
            leave_dense: has the last word on a weight that could be condensed.
            choose_quantized: the same for layers of 8-bit inputs and weights.
            name_after_weights: give nodes the names of their weights, ``fc1`` for ``fc1.weight``.
            leave_shared: has the last word on a weight that something else needs as it is, such as
                a tied embedding: a second copy may not pay.

        """
        super().__init__()
        self._options = CondenseOptions(
            min_sparsity=min_sparsity,
            masks=None if masks is None else dict(masks),
            leave_dense=leave_dense,
            choose_quantized=choose_quantized,
            name_after_weights=name_after_weights,
            leave_shared=leave_shared,
        )

    def call(self, model: ir.Model) -> CondenseResult:
        """Visit all nodes; what cannot be replaced is reported with the reason."""
        forget_what_varies(model)
        nodes = list(model.graph.all_nodes())
        held = len(our_nodes(model))
        work = Condenser(model, self._options)
        work.accompanied = any(work.is_sparse_conv(node) for node in nodes)
        for node in nodes:
            if work.visit_left(node):
                continue
            if is_quantized_layer(node):
                work.visit_quantized(node)
            elif is_linear(node):
                work.visit(node)
            elif is_conv(node):
                work.visit_conv(node)
            elif is_conv_transpose(node):
                work.visit_conv_transpose(node)
            elif node.domain == "" and node.op_type == "Einsum":
                work.visit_einsum(node)
        layers, notes = work.reports.layers(), work.notes()
        elsewhere = work.elsewhere(model)
        work.remove_unread()
        changed = any(layer.decision == "condensed" for layer in layers)
        return CondenseResult(
            model,
            modified=changed,
            layers=layers,
            notes=notes,
            verbatim=work.verbatim(),
            elsewhere=elsewhere,
            held=held,
        )


def notes_on_kept(model: ir.Model, notes: Sequence[str]) -> tuple[str, ...]:
    """Return those notes on weights that stay beside condensed ones which still hold, each once."""
    stored = {name for graph in model.graphs() for name in graph.initializers}
    return tuple(note for note in dict.fromkeys(notes) if kept_names([note]) & stored)


def kept_names(notes: Sequence[str]) -> frozenset[str]:
    """Return the names of the weights that such notes are about."""
    return frozenset(note.partition(STAYS)[0] for note in notes if STAYS in note)
