"""Sparse weights that no layer of ours holds: each is named in the report, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ...ort_ops.contract import DOMAIN
from ..report import LayerReport
from .constants import forms_of, live_readers
from .nodes import constant_of

LEAST_ENTRIES = 1024
"""Entries from which a constant is worth a line: what is smaller costs nothing."""

_BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_TYPES = _BYTES | {
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
}

_ELEMENTWISE = frozenset(
    {"Add", "And", "Div", "Equal", "Max", "Min", "Mul", "Or", "Pow", "Sub", "Where", "Xor"}
)
"""Operators that take constants as tables or masks of their activations, not as weights."""


@dataclass
class Elsewhere:
    """Weights that stand in operators that fanin does not condense.

    Attributes:
        layers: a report for each that is sparse, in the order of the graph.
        sparsest: the name and sparsity of the one with the most zeros; None where there is none.

    """

    layers: list[LayerReport] = field(default_factory=list)
    sparsest: tuple[str, float] | None = None


def find_elsewhere(model: ir.Model, seen: Collection[int], min_sparsity: float) -> Elsewhere:
    """Find constants that are weights, by type and size, but not of a layer.

    Args:
        model: with its layers; functions included.
        seen: ids of the constants that layers have, or of what is computed from them.
        min_sparsity: share of zeros from which they are reported.

    """
    found = Elsewhere()
    for value, owner in _constants(model):
        if not _may_be_weight(value) or any(id(form) in seen for form in forms_of(value)):
            continue
        readers = [node for node in live_readers(value) if not _is_table(node)]
        if not readers and value.uses():
            continue
        array = constant_of(value)
        if array is None:
            continue
        kept = _kept(array)
        sparsity = 1 - np.count_nonzero(kept) / kept.size
        name = value.name or ""
        if found.sparsest is None or sparsity > found.sparsest[1]:
            found.sparsest = (name, sparsity)
        if sparsity >= min_sparsity:
            found.layers.append(_report(name, array, kept, *_reason(readers, owner)))
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


def _may_be_weight(value: ir.Value) -> bool:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype not in _TYPES or tensor.size < LEAST_ENTRIES:
        return False
    return sum(size != 1 for size in tensor.shape) >= 2


def _is_table(reader: ir.Node) -> bool:
    """Return whether a node takes a constant as anything but a weight, or is a layer of ours."""
    elementwise = reader.domain == "" and reader.op_type in _ELEMENTWISE
    return elementwise or reader.domain == DOMAIN


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
