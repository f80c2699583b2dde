"""Sparse weights that no layer of ours holds: each is named in the report, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ...ort_ops.contract import DOMAIN
from ..report import LayerReport
from .constants import ConstantWeight, forms_of, readers_of, resolve_constant

LEAST_ENTRIES = 1024
"""Entries from which a constant is worth a line: what is smaller costs nothing."""

_TYPES = frozenset({"bfloat16", "float16", "float32", "float64", "int8", "uint8"})

_ELEMENTWISE = frozenset(
    {
        "Add",
        "And",
        "BitShift",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Max",
        "Mean",
        "Min",
        "Mod",
        "Mul",
        "Or",
        "PRelu",
        "Pow",
        "Sub",
        "Sum",
        "Where",
        "Xor",
    }
)
"""Operators on single elements of several inputs."""


@dataclass
class Elsewhere:
    """Weights that stand in operators that fanin does not condense.

    Attributes:
        layers: a report for each that is sparse, in the order of the graph.
        sparsest: the name and sparsity of the one with the most zeros; None where there is none.

    """

    layers: list[LayerReport] = field(default_factory=list)
    sparsest: tuple[str, float] | None = None


def find_elsewhere(
    model: ir.Model, seen: Collection[int], min_sparsity: float, opset: int
) -> Elsewhere:
    """Find constants that are weights, by type and size, but not of a layer.

    What an operator reads counts, also where it is computed from constants.

    Args:
        model: with its layers; functions included.
        seen: ids of the constants that layers have, or of what is computed from them.
        min_sparsity: share of zeros from which they are reported.
        opset: version of the standard operators.

    """
    found, reported = Elsewhere(), set[int]()
    activations = _Activations()
    for root, owner in _constants(model):
        tensor = ir.convenience.get_const_tensor(root)
        if tensor is None or tensor.size < LEAST_ENTRIES:
            continue
        forms = list(forms_of(root))
        if any(id(form) in seen for form in forms):
            continue
        for form in forms:
            readers = [node for node in readers_of(form) if not activations.is_table(node)]
            unread = form is root and not root.uses()
            if id(form) in reported or not (readers or unread):
                continue
            reported.add(id(form))
            weight = resolve_constant(form, opset)
            if not isinstance(weight, ConstantWeight) or not _may_be_weight(weight.array):
                continue
            kept = _kept(weight.array)
            sparsity = 1 - np.count_nonzero(kept) / kept.size
            name = weight.root.name or ""
            if found.sparsest is None or sparsity > found.sparsest[1]:
                found.sparsest = (name, sparsity)
            if sparsity >= min_sparsity:
                reason = _reason(readers, owner)
                found.layers.append(_report(name, weight.array, kept, *reason))
    return found


def _constants(model: ir.Model) -> Iterator[tuple[ir.Value, str | None]]:
    """Yield initializers and outputs of Constant, with the name of the function that holds them."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            yield value, None
    nodes: list[tuple[ir.Node, str | None]] = [(node, None) for node in model.graph.all_nodes()]
    nodes += [(n, body.name) for body in model.functions.values() for n in body.all_nodes()]
    for node, owner in nodes:
        if node.op_type == "Constant" and node.domain == "":
            yield node.outputs[0], owner


def _may_be_weight(array: np.ndarray) -> bool:
    large = array.size >= LEAST_ENTRIES and sum(size != 1 for size in array.shape) >= 2
    return large and array.dtype.name in _TYPES


class _Activations:
    """Which values depend on what a caller passes, and which nodes take constants as tables."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def is_table(self, reader: ir.Node) -> bool:
        """Return whether a node takes a constant as no weight, or is a layer of ours.

        Operators on single elements combine activations with tables and masks.
        """
        if reader.domain == DOMAIN:
            return True
        elementwise = reader.domain == "" and reader.op_type in _ELEMENTWISE
        return elementwise and any(self._reach(side) for side in reader.inputs if side)

    def _reach(self, value: ir.Value) -> bool:
        waiting, seen = [value], {id(value)}
        while waiting:
            one = waiting.pop()
            node = one.producer()
            if self._known.get(id(one)) or (one.is_graph_input() and not one.is_initializer()):
                self._known[id(value)] = True
                return True
            for side in node.inputs if node is not None else ():
                if side is not None and id(side) not in seen:
                    seen.add(id(side))
                    waiting.append(side)
        return False


def _kept(array: np.ndarray) -> np.ndarray:
    zero = array.dtype.type(0)
    if array.dtype.name in ("int8", "uint8"):
        # The zero point of bytes stands elsewhere: what most of them are is taken for it.
        numbers, counts = np.unique(array, return_counts=True)
        zero = numbers[counts.argmax()]
    kept: np.ndarray = array != zero
    return kept


def _reason(readers: list[ir.Node], owner: str | None) -> tuple[str, str]:
    """Say what reads a weight, and why it is not condensed."""
    if not readers:
        return "constant", "nothing reads it"
    node = readers[0]
    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    if owner is not None:
        return kind, f"{kind} reads it in the function {owner}, whose body is left as it is"
    return kind, f"{kind} reads it, which is not condensed"


def _report(name: str, array: np.ndarray, kept: np.ndarray, kind: str, reason: str) -> LayerReport:
    counts = np.count_nonzero(kept.reshape(len(kept), -1), axis=1)
    return LayerReport(
        name=name,
        kind=kind,
        nodes=(),
        shape=tuple(array.shape),
        sparsity=1 - float(counts.sum()) / array.size,
        active=int(np.count_nonzero(counts)),
        fan_in=int(counts.max(initial=0)),
        padding=0,
        bytes_dense=array.nbytes,
        bytes_condensed=None,
        decision="dense",
        reason=reason,
    )
