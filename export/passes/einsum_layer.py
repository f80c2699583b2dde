"""Read products that are written otherwise as a linear layer between reordered activations.

An Einsum of activations and a weight, or a MatMul whose weight is the left operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .access import graph_of, input_of, producer_of
from .constants import ConstantWeight
from .nodes import Names, add_constant

Insert = Callable[[ir.Node], None]
"""Puts a node into the graph."""


@dataclass(frozen=True)
class EinsumLayer:
    """``output = reorder(reshape(x') @ weight')``, x' being x with the contracted axes last.

    Attributes:
        x: the activations.
        found: the weight as ``[out_features, in_features]``.
        x_axes: the axes of x in the order of x', free ones first.
        contracted: how many of them are at the end, flattened into ``in_features``.
        out_sizes: sizes of the axes that ``out_features`` flattens.
        y_axes: where each axis of the output is in ``[*free, *out]``.

    """

    x: ir.Value
    found: ConstantWeight
    x_axes: tuple[int, ...]
    contracted: int
    out_sizes: tuple[int, ...]
    y_axes: tuple[int, ...]

    @property
    def free(self) -> int:
        """Axes of x that the output keeps."""
        return len(self.x_axes) - self.contracted


def read_einsum(
    node: ir.Node, operands: Sequence[ConstantWeight | str | None]
) -> EinsumLayer | str | None:
    """Read an Einsum of two operands, of which one is a weight.

    Args:
        node: the Einsum.
        operands: what :func:`resolve_constant` says of its inputs.

    Returns:
        The layer; why it is none; None where no weight of two or more dimensions is involved.

    """
    weights = [at for at, found in enumerate(operands) if isinstance(found, ConstantWeight)]
    if len(operands) != 2 or len(weights) != 1:
        return None
    (at,) = weights
    found, x = operands[at], input_of(node, 1 - at)
    assert isinstance(found, ConstantWeight)
    if found.array.ndim < 2:
        return None
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != 2:
        return f"its equation {equation} names no output"
    of_weight, of_x = terms[at], terms[1 - at]
    if "..." in of_x + out:
        if "..." in of_weight or x.shape is None:
            return f"its equation {equation} has ... where no rank is known"
        taken = set(equation)
        free = (c for c in map(chr, range(ord("A"), ord("z") + 1)) if c.isalpha())
        letters = [c for c in free if c not in taken]
        rest = "".join(letters[: len(x.shape) - (len(of_x) - 3)]) if "..." in of_x else ""
        of_x, out = of_x.replace("...", rest), out.replace("...", rest)
    return _read(equation, of_weight, of_x, out, x, found)


def read_left_weight(node: ir.Node, found: ConstantWeight) -> EinsumLayer | str:
    """Read a MatMul whose first operand is the weight, ``[out_features, in_features]``.

    A Gemm with its weight there stays: C, alpha, beta and transposes would have to move.
    """
    x = input_of(node, 1)
    if node.op_type != "MatMul" or found.array.ndim != 2 or x.shape is None:
        return "the weight is the left operand"
    rank = len(x.shape)
    if rank == 1:
        return _read("oi,i", "oi", "i", "o", x, found, False)
    batch = "".join(chr(ord("A") + axis) for axis in range(rank - 2))
    return _read("oi,in", "oi", f"{batch}in", f"{batch}on", x, found, False)


def _read(
    equation: str,
    of_weight: str,
    of_x: str,
    out: str,
    x: ir.Value,
    found: ConstantWeight,
    repeats: bool = True,
) -> EinsumLayer | str:
    for term in (of_weight, of_x, out):
        if len(set(term)) != len(term):
            return f"its equation {equation} takes a diagonal"
    if len(of_weight) != found.array.ndim:
        return f"its equation {equation} does not fit the weight"
    contracted = [c for c in of_x if c in of_weight]
    free = [c for c in of_x if c not in of_weight]
    outs = [c for c in of_weight if c not in of_x]
    if any(c in out for c in contracted):
        return f"its weight differs along an axis that the output keeps ({equation})"
    if not contracted or any(c not in out for c in (*free, *outs)):
        return f"its equation {equation} is no product of activations and a weight"
    sizes = dict(zip(of_weight, found.array.shape, strict=True))
    if x.shape is None or len(x.shape) != len(of_x):
        return f"the rank of what its equation {equation} multiplies is not known"
    # Einsum repeats an axis of size 1, which a product does not do.
    if repeats and any(x.shape[of_x.index(c)] != sizes[c] for c in contracted):
        return f"the size of an axis that its equation {equation} sums over is not known"
    order = [of_weight.index(c) for c in (*outs, *contracted)]
    rows = math.prod(sizes[c] for c in outs)

    def as_matrix(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array.transpose(order).reshape(rows, -1))

    together = [*free, *outs]
    return EinsumLayer(
        x,
        replace(
            found,
            array=as_matrix(found.array),
            mask=None if found.mask is None else as_matrix(found.mask),
            through=found.through
            if of_weight == "".join((*outs, *contracted)) and repeats
            else (*found.through, "Einsum"),
        ),
        tuple(of_x.index(c) for c in (*free, *contracted)),
        len(contracted),
        tuple(sizes[c] for c in outs),
        tuple(together.index(c) for c in out),
    )


class Reorder:
    """Puts the operators around the product into the graph."""

    def __init__(self, node: ir.Node, names: Names) -> None:
        self._node, self._names = node, names

    def before(self, layer: EinsumLayer) -> ir.Value:
        """Bring the contracted axes of x to its end, as one."""
        x = layer.x
        if layer.x_axes != tuple(range(len(layer.x_axes))):
            x = self._add(self._node.prepend, "Transpose", [x], perm=layer.x_axes)
        if layer.contracted > 1:
            x = self._reshape(self._node.prepend, x, layer.free, layer.found.array.shape[1:])
        return x

    def after(self, layer: EinsumLayer, product: ir.Node) -> ir.Value:
        """Give the output the axes of the equation; returns what takes its place."""
        last, y = product, product.outputs[0]
        steps = len(layer.out_sizes) != 1, layer.y_axes != tuple(range(len(layer.y_axes)))
        if any(steps):
            y.name = self._names.free(f"{self._node.outputs[0].name}_product")
        if steps[0]:
            y = self._reshape(last.append, y, layer.free, layer.out_sizes)
            last = producer_of(y)
        if steps[1]:
            y = self._add(last.append, "Transpose", [y], perm=layer.y_axes)
        return y

    def _reshape(
        self, insert: Insert, value: ir.Value, kept: int, sizes: Sequence[int]
    ) -> ir.Value:
        name = self._names.free(f"{self._node.name or 'product'}_shape")
        shape = np.array([*[0] * kept, *sizes], np.int64)
        constant = add_constant(graph_of(self._node), name, shape)
        return self._add(insert, "Reshape", [value, constant])

    def _add(
        self, insert: Insert, op: str, inputs: Sequence[ir.Value], **attributes: Sequence[int]
    ) -> ir.Value:
        node = ir.node(op, inputs, attributes=attributes)
        node.name = self._names.free(f"{self._node.name or 'product'}_{op.lower()}")
        node.outputs[0].name = self._names.free(f"{self._node.outputs[0].name}_{op.lower()}")
        insert(node)
        return node.outputs[0]
