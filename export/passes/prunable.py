"""Find the weights that can be pruned: those of layers that fanin condenses, as rows of outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .access import input_of, name_of
from .condense_quantized import is_quantized_layer
from .constants import ConstantWeight, is_constant, resolve_constant
from .conv_layer import (
    is_conv,
    is_conv_transpose,
    mirrored,
    read_conv_transpose,
    strides_pads_dilations,
)
from .conv_transpose_expansion import phase_filters, unsupported_transpose
from .einsum_layer import EinsumLayer, read_einsum, read_left_weight
from .linear_layer import is_linear
from .nodes import Names, add_constant
from .recurrent import Recurrent, is_recurrent, read_recurrent

_TYPES = ("float32", "float16")
"""Types of weights that kernels compute with."""


QUANTIZED = "it is quantized; prune the float model before that"


@dataclass(frozen=True)
class Weight:
    """A weight of a layer.

    Attributes:
        node: that reads it.
        position: of the input.
        found: the weight as the node reads it, and where it comes from.
        shape: outputs first, as the distributions of sparsities have it.
        order: place in the weight of each entry of ``[outputs, inputs]``; None where the weight is
            that, flattened, or its transpose.
        transposed: whether ``[outputs, inputs]`` is the transpose.

    """

    node: ir.Node
    position: int
    found: ConstantWeight
    shape: tuple[int, ...]
    order: np.ndarray | None = None
    transposed: bool = False

    @property
    def value(self) -> ir.Value:
        """The value that the node reads."""
        return input_of(self.node, self.position)

    def rows(self) -> np.ndarray:
        """Return the weight as ``[outputs, inputs]``."""
        array = self.found.array
        if self.order is not None:
            rows: np.ndarray = array.ravel()[self.order]
        else:
            rows = array.T if self.transposed else array.reshape(self.shape[0], -1)
        return rows

    def in_place(self, rows: np.ndarray) -> np.ndarray:
        """Return an array ``[outputs, inputs]`` in the shape of the weight."""
        array = self.found.array
        if self.order is not None:
            placed = np.empty(array.size, rows.dtype)
            placed[self.order.ravel()] = rows.ravel()
            return placed.reshape(array.shape)
        return np.ascontiguousarray(rows.T) if self.transposed else rows.reshape(array.shape)

    @property
    def layout(self) -> tuple[object, ...]:
        """Two readers of one value whose layouts are equal have equal rows."""
        order = None if self.order is None else self.order.tobytes()
        return self.transposed, self.shape, order


@dataclass(frozen=True)
class Unfit:
    """A weight of a layer that stays as it is.

    Attributes:
        node: that reads it.
        found: the weight.
        reason: why it stays.

    """

    node: ir.Node
    found: ConstantWeight
    reason: str


def find_weights(model: ir.Model) -> Iterator[Weight | Unfit]:
    """Yield the weights of all layers, in the order of the graph; shapes must be inferred."""
    opset = model.opset_imports.get("", 1)
    for node in model.graph.all_nodes():
        if all(map(is_constant, node.outputs)):
            continue  # a step on the way to a weight
        for found in _weights_of(node, opset):
            kind = found.found.array.dtype.name
            if "DequantizeLinear" in found.found.through:
                yield Unfit(node, found.found, QUANTIZED)
            elif isinstance(found, Weight) and kind not in _TYPES:
                yield Unfit(node, found.found, f"it is {kind}, which no kernel computes in")
            else:
                yield found


def _weights_of(node: ir.Node, opset: int) -> Iterator[Weight | Unfit]:
    if is_recurrent(node):
        yield from _recurrent(node, opset)
        return
    found = _read(node, opset) or _replaceable(node, opset)
    if found is not None:
        yield found


def _recurrent(node: ir.Node, opset: int) -> Iterator[Weight | Unfit]:
    """Read W and R of an LSTM or GRU, ``[directions, gates * hidden, inputs]``."""
    layer = read_recurrent(node, opset, None)
    for position in (1, 2):
        found = _constant(node, position, opset)
        if found is None:
            continue
        if isinstance(layer, Recurrent):
            directions, rows, inputs = found.array.shape
            yield Weight(node, position, found, (directions * rows, inputs))
        elif layer is not None:
            yield Unfit(node, found, layer)


def _read(node: ir.Node, opset: int) -> Weight | Unfit | None:
    if is_quantized_layer(node):
        return None
    if is_linear(node):
        return _linear(node, opset)
    if is_conv(node) or is_conv_transpose(node):
        return _convolution(node, opset)
    if node.domain == "" and node.op_type == "Einsum":
        return _einsum(node, opset)
    return None


def _replaceable(node: ir.Node, opset: int) -> Unfit | None:
    """Find a stored weight of a layer that is not constant, and say why."""
    if not (is_linear(node) or is_conv(node) or is_conv_transpose(node)):
        return None
    for value in node.inputs[:2]:
        reason = None if value is None else resolve_constant(value, opset)
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if isinstance(reason, str) and value is not None and tensor is not None:
            return Unfit(node, ConstantWeight(tensor.numpy(), None, value), reason)
    return None


def _constant(node: ir.Node, position: int, opset: int) -> ConstantWeight | None:
    value = node.inputs[position] if position < len(node.inputs) else None
    found = None if value is None else resolve_constant(value, opset)
    return found if isinstance(found, ConstantWeight) else None


def _linear(node: ir.Node, opset: int) -> Weight | Unfit | None:
    found = _constant(node, 1, opset)
    if found is None:
        found = _constant(node, 0, opset)
        if found is None or found.array.ndim < 2:
            return None
        return _product(node, 0, found, lambda indexes: read_left_weight(node, indexes))
    if found.array.ndim < 2:
        return None
    if found.array.ndim == 3 and node.op_type == "MatMul":
        return _experts(node, found)
    if found.array.ndim > 2:
        return Unfit(node, found, f"it has {found.array.ndim} dimensions")
    stored_out_in = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0
    shape = found.array.shape if stored_out_in else found.array.shape[::-1]
    return Weight(node, 1, found, shape, transposed=not stored_out_in)


def _experts(node: ir.Node, found: ConstantWeight) -> Weight:
    """Read a weight of one matrix for each batch, ``[experts, in, out]``."""
    experts, inputs, outputs = found.array.shape
    places = np.arange(found.array.size).reshape(found.array.shape)
    order = places.swapaxes(1, 2).reshape(experts * outputs, inputs)
    return Weight(node, 1, found, order.shape, order)


def _convolution(node: ir.Node, opset: int) -> Weight | Unfit | None:
    found = _constant(node, 1, opset)
    if found is None or found.array.ndim < 3:
        return None
    if is_conv(node):
        return Weight(node, 1, found, found.array.shape)
    indexes = np.arange(found.array.size).reshape(found.array.shape)
    if any(stride != 1 for stride in node.attributes.get_ints("strides", ())):
        phases = _phases(node, indexes)
        if isinstance(phases, str):
            return Unfit(node, found, phases)
        return Weight(node, 1, found, phases.shape, phases.reshape(len(phases), -1))
    geometry = read_conv_transpose(node, found.array.shape)
    if isinstance(geometry, str):
        return Unfit(node, found, geometry)
    turned = mirrored(indexes, geometry.group)
    return Weight(node, 1, found, turned.shape, turned.reshape(len(turned), -1))


def _phases(node: ir.Node, indexes: np.ndarray) -> np.ndarray | str:
    """Order a weight of a ConvTranspose as the Conv does that an export makes of its phases."""
    kernel = indexes.shape[2:]
    strides, _, dilations = strides_pads_dilations(node, len(kernel))
    reason = unsupported_transpose(node, strides, dilations, kernel)
    if reason is not None:
        return reason
    if any(size % strides[0] for size in kernel):
        return "its stride does not divide its kernel, so that pixels have unequal numbers of taps"
    return phase_filters(indexes, node.attributes.get_int("group", 1), strides[0])


def _einsum(node: ir.Node, opset: int) -> Weight | Unfit | None:
    operands = [_constant(node, at, opset) for at in range(len(node.inputs))]
    position = next((at for at, found in enumerate(operands) if found is not None), 0)
    found = operands[position] if operands else None
    if found is None:
        return None

    def read(indexes: ConstantWeight) -> EinsumLayer | str | None:
        return read_einsum(
            node, [indexes if at == position else side for at, side in enumerate(operands)]
        )

    return _product(node, position, found, read)


def _product(
    node: ir.Node,
    position: int,
    found: ConstantWeight,
    read: Callable[[ConstantWeight], EinsumLayer | str | None],
) -> Weight | Unfit | None:
    """Read a product whose operand goes through reordering: that of its places tells the rows."""
    indexes = np.arange(found.array.size).reshape(found.array.shape)
    layer = read(replace(found, array=indexes, mask=None))
    if layer is None:
        return None
    if isinstance(layer, str):
        return Unfit(node, found, layer)
    order = layer.found.array
    return Weight(node, position, found, order.shape, order)


def put_weight(model: ir.Model, group: Sequence[Weight], array: np.ndarray) -> ir.Value | None:
    """Let nodes that read one value read ``array`` in its place.

    The initializer is overwritten if nothing else reads it; else they get one of their own, and
    other readers keep theirs.

    Returns:
        The initializer that was added; None where the old one was overwritten.

    """
    first = group[0]
    old, root = first.value, first.found.root
    readers = {(id(one.node), one.position) for one in group}
    alone = {(id(node), at) for node, at in old.uses()} == readers and not old.is_graph_output()
    if alone and old.is_initializer():
        old.const_value = ir.tensor(array, name=name_of(old))
        return None
    producer = root.producer()
    graph = root.graph if producer is None else producer.graph
    assert isinstance(graph, ir.Graph)
    names = Names(model)
    new = add_constant(graph, names.free(f"{name_of(root)}_pruned"), array)
    for one in group:
        one.node.replace_input_with(one.position, new)
    return new
