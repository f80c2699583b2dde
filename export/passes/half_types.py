"""Which inputs and outputs of a node can be of half precision, by the schema of its operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ...ort_ops.contract import INPUTS
from ..onnx_op import OPSETS
from .nodes import is_condensed

FLOAT32 = ir.DataType.FLOAT

_OURS = ("T", "TV")
"""Types of the inputs of our ops that follow the activations; sums and biases stay float32."""

_SUMS = frozenset(
    {"CumSum", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "Range"}
)
"""Operators whose results leave the range or the precision of half types at once."""

_TYPED = ("dtype", "output_dtype", "output_datatype")
"""Attributes that name the type of an output."""


@dataclass(frozen=True)
class HalfPlaces:
    """Positions of a node's float32 inputs and outputs that become half."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


def half_places(node: ir.Node, opset: int, half: ir.DataType) -> HalfPlaces:
    """Decide for one node; none of its places where it has to compute in float32.

    A place is half if its type is a variable of the schema that may be ``half``; all places of one
    variable are alike. Nodes with subgraphs, sequences, types that are not known, and operators
    without a schema (other domains, functions of the model's own) stay float32.
    """
    if is_condensed(node):
        kinds = list(INPUTS[node.op_type].values())
        wanted = {i for i, kind in enumerate(kinds) if kind in _OURS and _is_float(node.inputs[i])}
        return HalfPlaces(frozenset(wanted), frozenset({0}) if 0 in wanted else frozenset())
    schema = schema_of(node, opset)
    if schema is None or node.op_type in _SUMS or _is_opaque(node):
        return HalfPlaces()
    allowed = {entry.type_param_str for entry in _constraints(schema, half)}
    inputs = _places(schema.inputs, node.inputs, allowed)
    outputs = _places(schema.outputs, node.outputs, allowed)
    if outputs and not inputs and node.op_type not in ("Cast", "ConstantOfShape"):
        return HalfPlaces()  # it makes float32 out of something else, as random numbers
    return HalfPlaces(inputs, outputs)


def schema_of(node: ir.Node, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema of a standard operator; None for any other."""
    if node.domain != "":
        return None
    try:
        return onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def opset_with_half(node: ir.Node, opset: int, half: ir.DataType) -> int | None:
    """Return the first newer opset, of those that files are written in, that has the half form."""
    if schema_of(node, opset) is None:
        return None
    newer = range(opset + 1, OPSETS.stop)
    return next((n for n in newer if half_places(node, n, half).outputs), None)


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == FLOAT32


def _is_opaque(node: ir.Node) -> bool:
    """Return whether a node has subgraphs, types of its own or values that are no known tensors."""
    graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    attributes = node.attributes.values()
    if any(a.type in graphs or a.name in _TYPED for a in attributes):
        return True
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
    return any(not isinstance(value.type, ir.TensorType) for value in values)


def _constraints(
    schema: onnx.defs.OpSchema, half: ir.DataType
) -> list[onnx.defs.OpSchema.TypeConstraintParam]:
    name = f"tensor({half.name.lower()})"
    return [entry for entry in schema.type_constraints if name in entry.allowed_type_strs]


def _places(
    formal: Sequence[onnx.defs.OpSchema.FormalParameter],
    values: Sequence[ir.Value | None],
    allowed: set[str],
) -> frozenset[int]:
    found = set()
    for position, value in enumerate(values):
        # The last formal parameter stands for all that follow if it is variadic.
        parameter = formal[min(position, len(formal) - 1)]
        if _is_float(value) and parameter.type_str in allowed:
            found.add(position)
    return frozenset(found)
