"""Weights that a graph computes from constants, as ONNX files often hold them.

Quantizers put a DequantizeLinear before a MatMul, half-precision converters a Cast, exporters a
Transpose, attention a Split of the packed projection. The result is as constant as an initializer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx import helper
from onnx.reference import ReferenceEvaluator

from .access import input_of, name_of
from .nodes import constant_of

_FOLDED = frozenset(
    {
        "Cast",
        "DequantizeLinear",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)


@dataclass(frozen=True)
class ConstantWeight:
    """A weight with its origin.

    Attributes:
        array: what the operator gets.
        mask: the mask of the origin, taken along the same way; None where it has none.
        root: the initializer or Constant output that it comes from.
        through: operators between root and use, such as ``("Transpose",)``.

    """

    array: np.ndarray
    mask: np.ndarray | None
    root: ir.Value
    through: tuple[str, ...] = ()


def resolve_constant(
    value: ir.Value, opset: int, masks: dict[str, np.ndarray] | None = None
) -> ConstantWeight | str | None:
    """Follow a value back to one constant.

    Returns:
        The weight; a reason why a stored weight is not constant; None when no weight is behind the
        value at all.

    """
    chain: list[tuple[ir.Node, ir.Value]] = []
    root = value
    while (node := root.producer()) is not None and node.op_type in _FOLDED and node.domain == "":
        chain.append((node, root))
        root = input_of(node, 0)
    through = tuple(node.op_type for node, _ in reversed(chain))
    if root.is_graph_input():
        if not root.is_initializer():
            return None
        return f"{root.name} is a graph input, which a caller can replace"
    array = constant_of(root)
    if array is None:
        return None
    mask = (masks or {}).get(name_of(root))
    for node, output in reversed(chain):
        others = [None if side is None else constant_of(side) for side in node.inputs[1:]]
        if any(o is None for o, side in zip(others, node.inputs[1:], strict=True) if side):
            return f"{node.op_type} before it has an input that is no constant"
        array = run_node(node, output, [array, *others], opset)
        if mask is not None and node.op_type not in ("Cast", "DequantizeLinear"):
            mask = run_node(node, output, [mask, *others], opset)
    return ConstantWeight(array, mask, root, through)


def live_readers(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that need a value.

    Operators that are folded into weights stand for those that read what they give.
    """
    for node, _ in value.uses():
        if node.op_type not in _FOLDED or node.domain != "":
            yield node
            continue
        for output in node.outputs:
            if output.is_graph_output():
                yield node
            yield from live_readers(output)


def folded_constant(value: ir.Value, opset: int) -> np.ndarray | None:
    """Read a constant, also one that the graph computes; None for anything else."""
    found = resolve_constant(value, opset)
    return found.array if isinstance(found, ConstantWeight) else None


def run_node(
    node: ir.Node, output: ir.Value, inputs: list[np.ndarray | None], opset: int
) -> np.ndarray:
    """Compute an output of one node with onnx's reference implementation."""
    proto = ir.serde.serialize_node(node)
    feeds, names = {}, []
    for position, array in enumerate(inputs):
        names.append("" if array is None else f"in{position}")
        if array is not None:
            feeds[names[-1]] = array
    del proto.input[:]
    proto.input.extend(names)
    ports = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(feeds[name].dtype), None
        )
        for name in feeds
    ]
    wanted = helper.make_empty_tensor_value_info(name_of(output))
    graph = helper.make_graph([proto], "fold", ports, [wanted])
    # Its DequantizeLinear begins at 19, which differs from older ones in types only.
    opset_import = helper.make_opsetid("", max(opset, 19))
    model = helper.make_model(graph, opset_imports=[opset_import])
    # A node of several outputs, such as Split, is computed for one of them.
    (result,) = ReferenceEvaluator(model).run([output.name], feeds)
    return np.asarray(result)
