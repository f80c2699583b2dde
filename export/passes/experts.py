"""A MatMul of batches with one sparse matrix each, as in a mixture of experts: a product for each.

The products are MatMul of slices of the source's weight, which become condensed as any other.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..forms import MIN_GAIN
from .access import input_of
from .builder import Size
from .condense_reports import kept_of
from .constants import ConstantWeight
from .expansion import KINDS, Expansion
from .nodes import dimensions_of, replace_node
from .origins import leave, name_part

MOST = 64
"""Matrices that are written one by one; more make the graph large and its small products slow."""

_NODE = 1.5e-6
"""Seconds that each further node takes beside its product, and a slice and its place in the result
likewise. Measured with 4 to 16 experts of 64 × 64, on one thread of a Zen 4."""


def expand_experts(work: Expansion, node: ir.Node) -> bool:
    """Write a MatMul of a weight ``[experts, in, out]`` as one MatMul for each expert."""
    x, value = input_of(node, 0), input_of(node, 1)
    found = work.weight(value)
    if found is None or found.array.ndim != 3 or found.array.dtype.name not in KINDS:
        return False
    reason = _why_left(work, found, dimensions_of(x))
    if reason is not None:
        leave(node, value, reason)
        return False
    _write(work, node, found)
    return True


def _why_left(work: Expansion, found: ConstantWeight, sizes: list[Size] | None) -> str | None:
    experts, inputs, outputs = found.array.shape
    if (reason := work.fixed_policy()) is not None:
        return reason
    if experts > MOST:
        return f"it is {experts} matrices, and at most {MOST} become products of their own"
    if sizes is None or len(sizes) < 2 or sizes[-1] != inputs:
        return "the shape of what it is multiplied with is not known"
    if len(sizes) > 2 and sizes[-3] not in (1, experts):
        return f"it is not known that what it is multiplied with is of {experts} batches"
    if work.chooser.policy == "condensed":
        return None
    rows = work.chooser.rows_of([*sizes[:-3], *sizes[-2:]])
    costs = work.chooser.costs
    each = costs.dense(rows, outputs, inputs)
    dense, split = experts * each, 0.0
    for kept in kept_of(found):
        counts = np.count_nonzero(kept, axis=0)
        stored = int(np.count_nonzero(counts) * counts.max(initial=0))
        split += min(each, costs.condensed(rows, outputs, inputs, stored)) + _NODE
    if dense >= MIN_GAIN * split:
        return None
    return f"a product for each of its {experts} matrices is predicted {dense / split:.2g}× as fast"


def _write(work: Expansion, node: ir.Node, found: ConstantWeight) -> None:
    builder, x, weight = work.builder(node), input_of(node, 0), input_of(node, 1)
    experts, inputs, outputs = found.array.shape
    kind, sizes = x.dtype, dimensions_of(x) or []
    shared = len(sizes) == 2
    parts = [x] * experts
    one: list[Size] = sizes if shared else [*sizes[:-3], 1, *sizes[-2:]]
    if not shared and sizes[-3] == experts and experts > 1:
        ones = builder.integers("sizes", *[1] * experts)
        split = builder.node("Split", x, ones, shapes=[one] * experts, kind=kind, axis=-3)
        parts = list(split.outputs)
    first = builder.integers("axis", 0)
    results = []
    for number, part in enumerate(parts):
        ends = [builder.integers("at", number + end) for end in (0, 1)]
        shape: list[Size] = [1, inputs, outputs]
        matrix = builder.add("Slice", weight, *ends, first, shape=shape, kind=kind)
        matrix = builder.add("Squeeze", matrix, first, shape=shape[1:], kind=kind)
        name_part(matrix, f"matrix {number}")
        shape = [*one[:-1], outputs]
        product = builder.add("MatMul", part, matrix, shape=shape, kind=kind, label=str(number))
        if shared:
            product = builder.add("Unsqueeze", product, first, shape=[1, *shape], kind=kind)
        results.append(product)
    y = builder.add("Concat", *results, kind=kind, axis=-3)
    replace_node(node, y)
