"""Sparse weights that no layer of ours holds: each is named in the report, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ...ort_ops.contract import DOMAIN
from ..report import LayerReport
from .access import label_of
from .constants import BROADCAST, ConstantWeight, forms_of, readers_of, resolve_constant
from .nodes import stored_tensor

LEAST_ENTRIES = 1024
"""Entries from which a constant is worth a line: what is smaller costs nothing."""

_TYPES = frozenset({"bfloat16", "float16", "float32", "float64", "int8", "uint8"})

_ELEMENTWISE = BROADCAST | {"BitShift", "Mean", "Mod", "PRelu", "Sum", "Xor"}
"""Operators on single elements of several inputs."""

_RECURRENT = ("GRU", "LSTM", "RNN")
"""Operators whose inputs from the fourth on are biases, lengths and states."""

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


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
    found = Elsewhere()
    activations = _activations(model)
    constants = []
    for root, owner in _constants(model):
        tensor = stored_tensor(root)
        if tensor is not None and tensor.size >= LEAST_ENTRIES:
            constants.append((list(forms_of(root)), owner))
    # What is computed from a layer's weight is accounted for, also as a form of its scales.
    reported = {
        id(form)
        for forms, _ in constants
        if any(id(form) in seen for form in forms)
        for form in forms
    }
    for forms, owner in constants:
        for form in forms:
            readers = [n for n in readers_of(form) if not _is_table(n, form, activations)]
            unread = form is forms[0] and not form.uses()
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
                kind, reason = _reason(readers, owner)
                found.layers.append(
                    replace(
                        LayerReport.of_dense(name, kind, kept, weight.array.nbytes, reason),
                        node=label_of(readers[0]) if readers else "",
                    )
                )
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


def _is_table(reader: ir.Node, value: ir.Value, activations: Collection[int]) -> bool:
    """Return whether a node takes a constant as no weight, or is a layer of ours.

    Operators on single elements combine activations with tables and masks. Loops and recurrent
    operators begin with states.
    """
    if reader.domain == DOMAIN or (reader.domain == "" and reader.op_type in ("Scan", "Loop")):
        return True
    if reader.domain == "" and reader.op_type in _RECURRENT:
        return value not in reader.inputs[:3]
    elementwise = reader.domain == "" and reader.op_type in _ELEMENTWISE
    return elementwise and any(id(side) in activations for side in reader.inputs)


def _activations(model: ir.Model) -> set[int]:
    """Collect the ids of what depends on what a caller passes, and of what branches give."""
    waiting = [v for graph in model.graphs() for v in graph.inputs if not v.is_initializer()]
    waiting += [value for body in model.functions.values() for value in body.inputs]
    for node in model.graph.all_nodes():
        if any(attribute.type in _GRAPHS for attribute in node.attributes.values()):
            waiting += node.outputs
    found = {id(value) for value in waiting}
    while waiting:
        for node, _ in waiting.pop().uses():
            for output in node.outputs:
                if id(output) not in found:
                    found.add(id(output))
                    waiting.append(output)
    return found


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
    advice = ""
    if node.domain.startswith("com.microsoft"):
        advice = "; convert the file as it was before ONNX Runtime optimized or quantized it"
    return kind, f"{kind} reads it, which is not condensed{advice}"
