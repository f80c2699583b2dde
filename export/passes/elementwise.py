"""Element-wise parts of a graph: where a neuron that is constant stays constant."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from .access import graph_of, name_of, producer_of, shape_of, size_of
from .nodes import constant_of, is_condensed_gemm, layer_name

UNARY = frozenset(
    {
        "Abs",
        "Celu",
        "Clip",
        "Elu",
        "Erf",
        "Exp",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "Mish",
        "Neg",
        "Relu",
        "Selu",
        "Sigmoid",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Swish",
        "Tanh",
        "ThresholdedRelu",
    }
)
"""Operators of one input and constant scalars."""

BINARY = frozenset({"Add", "Div", "Max", "Min", "Mul", "Pow", "PRelu", "Sub"})
"""Operators that combine a value with constants, or values of the region with each other."""


@dataclass
class Region:
    """Everything that is computed element by element from one value, up to what mixes features.

    Attributes:
        source: the value; its last dimension are the features.
        nodes: element-wise nodes in graph order.
        sinks: nodes that take a value of the region as their X, with that value.
        obstacle: why the features cannot be dropped; None when they can.

    """

    source: ir.Value
    nodes: list[ir.Node] = field(default_factory=list)
    sinks: list[tuple[ir.Node, ir.Value]] = field(default_factory=list)
    obstacle: str | None = None

    def constants_at(self, constants: np.ndarray, features: np.ndarray) -> dict[str, np.ndarray]:
        """Compute in float64 what every value of the region is for features that are constant.

        Args:
            constants: ``[n]``, the source at these features.
            features: ``[n]``, their positions.

        Returns:
            ``[n]`` by name of the value.

        """
        source = name_of(self.source)
        if not self.nodes:
            return {source: constants}
        feeds = {source: constants.astype(np.float64)[None, :]}
        protos: list[onnx.NodeProto] = []
        arrays: dict[str, np.ndarray] = {}
        for node in self.nodes:
            protos.append(ir.serde.serialize_node(node))
            for side in node.inputs:
                array = constant_of(side)
                if side is None or array is None:
                    continue
                if array.dtype.kind == "f":
                    array = array.astype(np.float64)
                arrays[name_of(side)] = take_features(array, features, self.width)
        names = [name_of(out) for node in self.nodes for out in node.outputs[:1]]
        graph = helper.make_graph(
            protos,
            "constants",
            [helper.make_tensor_value_info(source, TensorProto.DOUBLE, None)],
            [helper.make_empty_tensor_value_info(name) for name in names],
            [numpy_helper.from_array(array, name) for name, array in arrays.items()],
        )
        opset = onnx.defs.onnx_opset_version()
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", min(opset, 23))])
        with np.errstate(all="ignore"):
            outputs = ReferenceEvaluator(model).run(None, feeds)
        found = {source: constants.astype(np.float64)}
        return found | {
            name: np.asarray(out, np.float64).reshape(-1)
            for name, out in zip(names, outputs, strict=True)
        }

    @property
    def width(self) -> int:
        """Number of features of the source."""
        return size_of(self.source, -1)


def find_region(source: ir.Value) -> Region:
    """Follow a value through element-wise nodes; stop at the first thing that is none."""
    region = Region(source)
    members = {id(source)}
    if source.shape is None or not isinstance(source.shape[-1], int):
        region.obstacle = "its shape is not known"
        return region
    graph = graph_of(producer_of(source))
    # Nodes stand in topological order, so every input of the region is known before its reader.
    for node in graph:
        inside = [value for value in node.inputs if value is not None and id(value) in members]
        if not inside:
            continue
        if _is_elementwise(node, members, source):
            region.nodes.append(node)
            members.add(id(node.outputs[0]))
        elif is_linear_sink(node, inside):
            region.sinks.append((node, inside[0]))
        else:
            region.obstacle = f"{node.op_type} {layer_name(node)} reads it"
            return region
    values = [source, *(node.outputs[0] for node in region.nodes)]
    for value in values:
        if value.is_graph_output():
            region.obstacle = f"{value.name} is an output of the model"
        elif any(use.node.graph is not graph for use in value.uses()):
            region.obstacle = f"a branch or loop reads {value.name}"
    if region.obstacle is None and not region.sinks:
        region.obstacle = "no layer reads it"
    return region


def take_features(array: np.ndarray, features: np.ndarray, width: int) -> np.ndarray:
    """Take features along the last dimension of a constant that has one entry for each."""
    if array.ndim and array.shape[-1] == width and width > 1:
        return array[..., features]
    return array


def _is_elementwise(node: ir.Node, members: set[int], source: ir.Value) -> bool:
    if node.domain != "":
        return False
    rank, width = len(shape_of(source)), size_of(source, -1)
    others = [value for value in node.inputs if value is not None and id(value) not in members]
    if node.op_type in UNARY:
        first = node.inputs[0]
        bounds = [constant_of(value) for value in others]
        return id(first) in members and all(b is not None and b.size == 1 for b in bounds)
    if node.op_type == "Dropout":
        return dropout_is_off(node) and id(node.inputs[0]) in members and not node.outputs[1:]
    if node.op_type == "BatchNormalization":
        # Features are dimension 1, which is the last one of a matrix only.
        return (
            rank == 2
            and not node.attributes.get_int("training_mode", 0)
            and id(node.inputs[0]) in members
            and all(constant_of(value) is not None for value in others)
        )
    if node.op_type in BINARY:
        arrays = [constant_of(value) for value in others]
        return all(array is not None and _is_vector(array, rank, width) for array in arrays)
    return False


def dropout_is_off(node: ir.Node) -> bool:
    """Tell a Dropout that hands its input on."""
    training = node.inputs[2] if len(node.inputs) > 2 else None
    return training is None or ((flag := constant_of(training)) is not None and not flag.any())


def _is_vector(array: np.ndarray, rank: int, width: int) -> bool:
    """Tell a scalar or a vector of features, which broadcasts without changing the shape."""
    if array.ndim > rank:
        return False
    return array.size == 1 or (array.size == width and array.shape[-1] == width)


def is_linear_sink(node: ir.Node, inside: list[ir.Value]) -> bool:
    """Tell a layer that multiplies the value by a constant weight."""
    if len(inside) != 1:
        return False
    (value,) = inside
    if is_condensed_gemm(node):
        return value is node.inputs[0] and constant_of(node.inputs[1]) is not None
    if node.domain != "" or node.op_type not in ("MatMul", "Gemm"):
        return False
    weight = constant_of(node.inputs[1])
    return (
        value is node.inputs[0]
        and weight is not None
        and weight.ndim == 2
        and weight.dtype == np.float32
        and not node.attributes.get_int("transA", 0)
    )
