"""Find, read and build condensed nodes in a graph and its subgraphs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...ort_ops.contract import (
    COMPUTE_FLOAT32,
    CONDENSED_CONV,
    CONDENSED_GEMM,
    DOMAIN,
    INPUTS,
    OPEN_GATE,
    OPS,
    OUTPUT_TYPES,
    QLINEAR_CONDENSED_CONV,
    QUANTIZED_OPS,
)
from ...ort_ops.format.condensed import CondensedWeight
from ...ort_ops.format.conv_geometry import ConvGeometry
from ..errors import ExportError
from ..layer_names import is_made_up
from .access import graph_of, input_of, name_of

PARTS = ("values", "indices", "bias", "rows")
"""Inputs that hold a weight; 1 to 4 of a condensed node on floats."""

_LAYER = "fanin.layer"
"""Key of what a report calls a node, in its ``meta``, which no file holds."""


def is_ours(node: ir.Node) -> bool:
    """Return whether a node is an op of ours."""
    return node.domain == DOMAIN and node.op_type in OPS


def is_condensed(node: ir.Node) -> bool:
    """Return whether a node is an op of ours on floats, whose weights the passes may change."""
    return is_condensed_gemm(node) or is_condensed_conv(node)


def is_condensed_gemm(node: ir.Node) -> bool:
    """Return whether a node is a CondensedGemm."""
    return (node.domain, node.op_type) == (DOMAIN, CONDENSED_GEMM)


def is_condensed_conv(node: ir.Node) -> bool:
    """Return whether a node is a CondensedConv."""
    return (node.domain, node.op_type) == (DOMAIN, CONDENSED_CONV)


def is_quantized(node: ir.Node) -> bool:
    """Return whether a node is an op of ours on 8-bit integers."""
    return node.domain == DOMAIN and node.op_type in QUANTIZED_OPS


def quantized_nodes(model: ir.Model) -> list[ir.Node]:
    """List the nodes of our ops on 8-bit integers in graph order."""
    return [node for node in model.graph.all_nodes() if is_quantized(node)]


def adds_floats(node: ir.Node) -> bool:
    """Return whether a node of ours adds a residual of floats to its output, and clips it then."""
    return is_condensed(node) or (is_quantized(node) and OUTPUT_TYPES[node.op_type] != "TY")


def residual_place(node: ir.Node) -> int:
    """Return which input of a node of ours is the residual."""
    return list(INPUTS[node.op_type]).index("residual")


def our_nodes(model: ir.Model) -> list[ir.Node]:
    """List the nodes of all our ops in graph order."""
    return [node for node in model.graph.all_nodes() if is_ours(node)]


def is_convolution(node: ir.Node) -> bool:
    """Return whether a node of ours is a convolution."""
    return node.op_type in (CONDENSED_CONV, QLINEAR_CONDENSED_CONV)


def condensed_nodes(model: ir.Model) -> list[ir.Node]:
    """List the condensed nodes on floats in graph order."""
    return [node for node in model.graph.all_nodes() if is_condensed(node)]


def call_layer(node: ir.Node, name: str) -> None:
    """Set the name that reports use for a node: that of its weight in the table of layers."""
    if not is_made_up(name):
        node.meta[_LAYER] = name.removesuffix(".weight")


def layer_name(node: ir.Node) -> str:
    """Return what the table of layers calls a node, its own name if it is no layer."""
    if _LAYER in node.meta:
        return str(node.meta[_LAYER])
    if node.domain == "" and node.op_type in ("Conv", "MatMul", "Gemm"):
        for value in node.inputs[1::-1]:
            name = value.name if value is not None and value.is_initializer() else None
            if name and not is_made_up(name):
                return name.removesuffix(".weight")
    return node.name or ""


def all_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield inputs, constants and node outputs of the graph and its subgraphs."""
    for graph in model.graphs():
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs


def dimensions_of(value: ir.Value) -> list[int | str | None] | None:
    """List the sizes of a value, symbols by name; None where its rank is not known."""
    if value.shape is None:
        return None
    return [dim if isinstance(dim, int) else dim.value for dim in value.shape]


class Names:
    """Names that no value or node of a model has yet; onnx lets no subgraph shadow one."""

    def __init__(self, model: ir.Model) -> None:
        self._taken = {value.name for value in all_values(model)}
        self._taken |= {node.name for node in model.graph.all_nodes()}

    def release(self, name: str) -> None:
        """Release a name whose value or node has been removed."""
        self._taken.discard(name)

    def free(self, wanted: str) -> str:
        """Reserve ``wanted``, with a number at its end if it is taken."""
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def add_constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """Register an initializer in the graph of the node that reads it.

    A kernel sees an outer graph's initializer as a run-time value, hence no sharing across graphs.
    """
    tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
    shape, kind = ir.Shape(array.shape), ir.TensorType(tensor.dtype)
    value = ir.Value(name=name, shape=shape, type=kind, const_value=tensor)
    graph.register_initializer(value)
    return value


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """Read an initializer that no caller can replace, or a Constant; None for anything else."""
    if value is None or value.is_graph_input():
        return None
    tensor = stored_tensor(value)
    try:
        return None if tensor is None else tensor.numpy()
    except (TypeError, ValueError, OSError) as error:
        raise ExportError(f"the constant {value.name!r} is damaged: {error}") from error


def stored_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return what an initializer or Constant holds, also where a caller may replace it."""
    try:
        return ir.convenience.get_const_tensor(value)
    except (TypeError, ValueError) as error:  # a Constant without a value
        raise ExportError(f"the constant {value.name!r} is damaged: {error}") from error


def array_of(value: ir.Value | None) -> np.ndarray:
    """Read a value that :func:`constant_of` is known to read."""
    array = constant_of(value)
    if array is None:
        raise ExportError(f"{value.name if value else 'an input'!r} is no constant")
    return array


def weight_arrays(node: ir.Node) -> dict[str, np.ndarray] | None:
    """Read PARTS of a node of ours, and values_scale if it has one; None as :func:`read_weight`."""
    inputs = dict(zip(INPUTS[node.op_type], node.inputs, strict=False))
    wanted = [part for part in (*PARTS, "values_scale") if part in INPUTS[node.op_type]]
    arrays = {part: constant_of(inputs.get(part)) for part in wanted}
    found = {part: array for part, array in arrays.items() if array is not None}
    return found if len(found) == len(wanted) else None


def read_weight(node: ir.Node) -> CondensedWeight | None:
    """Read the weight of a node of ours; None when a part of it is no constant.

    That of an op on integers holds the integers, and the bias as a float, without their scales.

    Raises:
        ExportError: the node, which the source had already, breaks the format.

    """
    arrays = weight_arrays(node)
    if arrays is None:
        return None
    values, indices, bias, rows = (arrays[part] for part in PARTS)
    if node.op_type in QUANTIZED_OPS:
        with _named(node):
            if values.dtype != np.int8:
                raise ValueError(f"values is {values.dtype}, it must be int8")
        values, bias = values.astype(np.float32), bias.astype(np.float32)
    if is_convolution(node):
        geometry = read_geometry(node)
        in_features, out_features = geometry.in_features, geometry.out_channels
    else:
        in_features = _integer(node, "in_features")
        out_features = _integer(node, "out_features")
    with _named(node):
        return CondensedWeight(
            values=values,
            indices=indices,
            bias=bias,
            rows=rows,
            in_features=in_features,
            out_features=out_features,
        )


def read_constant_weight(node: ir.Node) -> CondensedWeight:
    """Read the weight of a condensed node that is known to be constant."""
    weight = read_weight(node)
    if weight is None:
        inputs = dict(zip(INPUTS[node.op_type], node.inputs, strict=False))
        parts = [part for part in INPUTS[node.op_type] if part in (*PARTS, "values_scale")]
        part = next(part for part in parts if constant_of(inputs.get(part)) is None)
        raise ExportError(
            f"node {node.name!r} ({node.op_type}): {part} is missing or not a constant of the model"
        )
    return weight


def read_geometry(node: ir.Node) -> ConvGeometry:
    """Read the attributes of a convolution of ours; raises ExportError as read_weight does."""
    with _named(node):
        return ConvGeometry(
            in_channels=_integer(node, "in_channels"),
            out_channels=_integer(node, "out_channels"),
            kernel_shape=_list(node, "kernel_shape"),
            strides=_list(node, "strides"),
            pads=_list(node, "pads"),
            dilations=_list(node, "dilations"),
            group=_integer(node, "group"),
        )


def _integer(node: ir.Node, name: str) -> int:
    with _named(node):
        number = node.attributes.get_int(name, None)
        if number is None:
            raise ValueError(f"the attribute {name} is missing")
        return number


def _list(node: ir.Node, name: str) -> tuple[int, ...]:
    with _named(node):
        return tuple(node.attributes.get_ints(name, ()))


@contextmanager
def _named(node: ir.Node) -> Iterator[None]:
    """Say of which node an error is."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ExportError(f"node {node.name!r} ({node.op_type}): {error}") from error


def clip_of(node: ir.Node) -> tuple[float, float]:
    """Read the bounds of a condensed node."""
    with _named(node):
        return (
            node.attributes.get_float("clip_min", -math.inf),
            node.attributes.get_float("clip_max", math.inf),
        )


def gate_of(node: ir.Node) -> tuple[float, float]:
    """Read gate_scale and gate_shift of a condensed node."""
    with _named(node):
        return (
            node.attributes.get_float("gate_scale", OPEN_GATE[0]),
            node.attributes.get_float("gate_shift", OPEN_GATE[1]),
        )


def compute_of(node: ir.Node) -> int:
    """Read what a condensed node rounds X to, as ONNX numbers types."""
    with _named(node):
        return node.attributes.get_int("compute", COMPUTE_FLOAT32)


def has_no_epilogue(node: ir.Node) -> bool:
    """Return whether a condensed node outputs its sum unchanged, without clip and gate."""
    return clip_of(node) == (-math.inf, math.inf) and gate_of(node) == OPEN_GATE


def has_no_residual(node: ir.Node) -> bool:
    """Return whether the residual of a condensed node is the one that stands for "none"."""
    residual = constant_of(node.inputs[residual_place(node)])
    return residual is not None and residual.shape == (1,) and not residual.any()


@dataclass(frozen=True)
class Parts:
    """Initializers that hold a condensed weight, in one graph."""

    values: ir.Value
    indices: ir.Value
    bias: ir.Value
    rows: ir.Value


def add_parts(
    graph: ir.Graph,
    weight: CondensedWeight,
    prefix: str,
    names: Names,
    shared: Parts | None = None,
    bias: ir.Value | None = None,
) -> Parts:
    """Register a weight's arrays as ``prefix.values`` and so on.

    With ``shared``, which holds the same weight with another bias, only the bias is added; with
    ``bias``, an initializer that holds it already, not even that.
    """

    def add(part: str) -> ir.Value:
        return add_constant(graph, names.free(f"{prefix}.{part}"), getattr(weight, part))

    if shared is not None:
        return Parts(shared.values, shared.indices, bias or add("bias"), shared.rows)
    return Parts(add("values"), add("indices"), bias or add("bias"), add("rows"))


def set_weight(node: ir.Node, weight: CondensedWeight, names: Names) -> None:
    """Replace the weight of a condensed node; arrays that do not change stay shared.

    A convolution of a different number of columns is one of fewer or more channels.
    """
    if is_condensed_conv(node):
        geometry = read_geometry(node)
        taps = math.prod(geometry.kernel_shape)
        channels = weight.in_features // taps * geometry.group
        sizes = {"in_channels": channels, "out_channels": weight.out_features}
    else:
        sizes = {"in_features": weight.in_features, "out_features": weight.out_features}
    for name, size in sizes.items():
        node.attributes.add(ir.AttrInt64(name, size))
    for position, part in enumerate(PARTS, start=1):
        old, array = input_of(node, position), getattr(weight, part)
        if constant_of(old) is array:
            continue
        # The name stays where no other node needs the old array.
        graph, name = graph_of(node), name_of(old)
        if len(old.uses()) == 1 and old.is_initializer() and old.graph is graph:
            del graph.initializers[name]
        else:
            name = names.free(f"{node.name}.{part}")
        node.replace_input_with(position, add_constant(graph, name, array))


def make_condensed(
    x: ir.Value,
    parts: Parts,
    residual: ir.Value,
    sizes: Mapping[str, int] | ConvGeometry,
    *,
    name: str,
    clip: tuple[float, float] = (-math.inf, math.inf),
) -> ir.Node:
    """Build a condensed node with one new output.

    Args:
        x: the input.
        parts: the weight.
        residual: what is added; :func:`..onnx_op.no_residual` for nothing.
        sizes: in_features and out_features; a geometry makes a CondensedConv.
        name: of the node.
        clip: bounds of the result.

    """
    conv = isinstance(sizes, ConvGeometry)
    return ir.node(
        CONDENSED_CONV if conv else CONDENSED_GEMM,
        [x, parts.values, parts.indices, parts.bias, parts.rows, residual],
        attributes={
            **(sizes.attributes() if isinstance(sizes, ConvGeometry) else sizes),
            "clip_min": ir.AttrFloat32("clip_min", clip[0]),
            "clip_max": ir.AttrFloat32("clip_max", clip[1]),
        },
        domain=DOMAIN,
        name=name,
    )


def same_shape(one: ir.Value, other: ir.Value) -> bool:
    """Return whether two values are known to have the same shape, symbolic sizes included."""
    sizes = dimensions_of(one)
    return sizes is not None and sizes == dimensions_of(other) and None not in sizes


def take_output(old: ir.Value, new: ir.Value) -> None:
    """Replace ``old`` by ``new``, which takes over its name, type and shape."""
    name = old.name
    new.type, new.shape = old.type or new.type, old.shape or new.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = None
    new.name = name


def replace_node(node: ir.Node, y: ir.Value) -> None:
    """Let a value take the place of a node's first output, and remove the node."""
    take_output(node.outputs[0], y)
    graph_of(node).remove(node, safe=True)
