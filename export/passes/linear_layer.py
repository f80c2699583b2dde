"""Read MatMul and Gemm alike: as a linear layer with a constant weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .access import input_of
from .constants import folded_constant

_BIAS_TYPES = ("float32", "float16")


@dataclass(frozen=True)
class LinearLayer:
    """``output = alpha * x' @ weight' + bias + beta * addend``, a prime for a transpose.

    Attributes:
        node: the MatMul or Gemm.
        add: the Add after a MatMul that holds the bias; None otherwise.
        trans_a: whether x is transposed.
        trans_b: whether the weight is stored ``[out_features, in_features]``.
        alpha: factor of the product.
        beta: factor of the addend.
        addend: a C of Gemm that is no constant vector; None where there is none.
        opset: version of the standard operators.

    """

    node: ir.Node
    add: ir.Node | None
    trans_a: bool
    trans_b: bool
    alpha: float
    beta: float
    addend: ir.Value | None
    opset: int

    @property
    def output(self) -> ir.Value:
        """The value that the layer computes."""
        return (self.add or self.node).outputs[0]

    @property
    def bias_place(self) -> tuple[ir.Node, int] | None:
        """The node that reads the constant bias, and the position of that input."""
        if self.add is not None:
            return self.add, 1 - self.add.inputs.index(self.node.outputs[0])
        if self.node.op_type == "Gemm" and self.addend is None and len(self.node.inputs) > 2:
            return self.node, 2
        return None

    def bias(self, out_features: int) -> np.ndarray | None:
        """Return float32 ``[out_features]``, beta included; None without a bias."""
        if self.bias_place is None:
            return None
        node, position = self.bias_place
        value = node.inputs[position]
        array = None if value is None else folded_constant(value, self.opset)
        if array is None:
            return None
        scale = 1.0 if self.add is not None else self.beta
        array = array.astype(np.float32).reshape(-1) * np.float32(scale)
        return np.broadcast_to(array, (out_features,))


def is_linear(node: ir.Node) -> bool:
    """Return whether a node is the standard MatMul or Gemm."""
    return node.domain == "" and node.op_type in ("MatMul", "Gemm")


def read_linear(node: ir.Node, out_features: int, opset: int) -> LinearLayer:
    """Read a node for which :func:`is_linear` holds, whose second input is the weight."""
    if node.op_type == "MatMul":
        x = input_of(node, 0)
        rank = 1 if x.shape is None else len(x.shape)
        add = bias_add(node.outputs[0], out_features, rank, opset)
        return LinearLayer(node, add, False, False, 1.0, 1.0, None, opset)
    addend = node.inputs[2] if len(node.inputs) > 2 else None
    if addend is not None and _is_bias(folded_constant(addend, opset), out_features, rank=2):
        addend = None
    return LinearLayer(
        node,
        None,
        bool(node.attributes.get_int("transA", 0)),
        bool(node.attributes.get_int("transB", 0)),
        node.attributes.get_float("alpha", 1.0),
        node.attributes.get_float("beta", 1.0),
        addend,
        opset,
    )


def bias_add(product: ir.Value, out_features: int, rank: int, opset: int) -> ir.Node | None:
    """Find the Add of a constant vector that alone reads a product ``[..., out_features]``.

    ``rank`` is the number of the product's dimensions, 1 where it is not known.
    """
    uses, maker = product.uses(), product.producer()
    if product.is_graph_output() or len(uses) != 1 or maker is None:
        return None
    add, position = next(iter(uses))
    if add.op_type != "Add" or add.domain != "" or add.graph is not maker.graph:
        return None
    bias = folded_constant(input_of(add, 1 - position), opset)
    return add if _is_bias(bias, out_features, rank) else None


def _is_bias(array: np.ndarray | None, out_features: int, rank: int) -> bool:
    known = array is not None and array.dtype.name in _BIAS_TYPES
    return array is not None and known and is_per_output(array, out_features, rank)


def is_per_output(array: np.ndarray, out_features: int, rank: int) -> bool:
    """Return whether an array broadcasts along the last dimension without changing the shape."""
    if array.ndim > rank:
        return False
    return array.size == 1 or (array.size == out_features and array.shape[-1] == out_features)
