"""What an ONNX file holds of our ops, without running it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from ..ort_ops.contract import CONDENSED_CONV, CONDENSED_GEMM, DOMAIN, INPUTS_GEMM
from ..ort_ops.format.condensed import CondensedWeight
from ..ort_ops.format.conv_geometry import ConvGeometry
from .errors import ExportError
from .onnx_function import clip_is_open
from .onnx_graphs import graphs_of
from .onnx_reading import read_proto
from .report import LayerReport, layer_table

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Inspection:
    """The condensed layers of a file.

    Attributes:
        path: the file.
        ir_version: of the file.
        opset: version of the standard operators.
        runs_without_library: whether the file carries the functions of our ops that it uses.
        layers: one for each condensed node, in the order of the graph.

    """

    path: str
    ir_version: int
    opset: int
    runs_without_library: bool
    layers: tuple[LayerReport, ...]

    def to_rich_table(self) -> Table:
        """Lay out the layers as a table."""
        without = "runs" if self.runs_without_library else "does not run"
        return layer_table(
            self.layers,
            title=self.path,
            caption=f"{len(self.layers)} condensed nodes, opset {self.opset}, "
            f"ir_version {self.ir_version}; {without} without fanin's library",
        )

    def to_json(self) -> str:
        """Write all fields as a JSON object."""
        return json.dumps(asdict(self), indent=2)


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """List the condensed nodes of an ONNX file and validate the weights that they hold.

    Raises:
        FileNotFoundError: there is no such file.
        ExportError: the file is no ONNX model, its data file is missing, or a node breaks the
            format; names node and place.

    """
    path = Path(path)
    model = read_proto(path, weights=True)
    initializers = _initializers(model.graph)
    nodes = _condensed_nodes(model.graph)
    carried = {(function.domain, function.name) for function in model.functions}
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    return Inspection(
        path=str(path),
        ir_version=model.ir_version,
        opset=opsets.get("", 0),
        runs_without_library={(DOMAIN, node.op_type) for node in nodes} <= carried,
        layers=tuple(_layer(path, node, initializers) for node in nodes),
    )


def condensed_weights(path: str | os.PathLike[str]) -> dict[str, CondensedWeight]:
    """Read the weights of the condensed nodes of an ONNX file, by node name.

    A convolution's is flattened to ``[out_channels, in_channels / group * kernel]``.

    Raises:
        FileNotFoundError, ExportError: as :func:`inspect` does.

    """
    path = Path(path)
    model = read_proto(path, weights=True)
    initializers = _initializers(model.graph)
    return {node.name: _weight(path, node, initializers) for node in _condensed_nodes(model.graph)}


def _initializers(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for part in graphs_of(graph) for tensor in part.initializer}


def _condensed_nodes(graph: onnx.GraphProto) -> list[NodeProto]:
    return [
        node
        for part in graphs_of(graph)
        for node in part.node
        if node.domain == DOMAIN and node.op_type in (CONDENSED_GEMM, CONDENSED_CONV)
    ]


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _weight(path: Path, node: NodeProto, initializers: dict[str, TensorProto]) -> CondensedWeight:
    inputs = dict(zip(INPUTS_GEMM, node.input, strict=False))
    try:
        arrays = {
            part: numpy_helper.to_array(initializers[inputs[part]])
            for part in ("values", "indices", "rows", "bias")
        }
        shape = _weight_shape(node)
    except KeyError as error:
        raise ExportError(
            f"{path}: node {node.name!r}: {error} is missing or not a constant of the model"
        ) from error
    except (TypeError, ValueError) as error:
        raise ExportError(f"{path}: node {node.name!r}: {error}") from error
    try:
        return CondensedWeight(**arrays, in_features=math.prod(shape[1:]), out_features=shape[0])
    except (TypeError, ValueError) as error:
        raise ExportError(f"{path}: node {node.name!r}: {error}") from error


def _weight_shape(node: NodeProto) -> tuple[int, ...]:
    """Return the shape of the dense weight."""
    attributes = _attributes(node)
    if node.op_type == CONDENSED_GEMM:
        return attributes["out_features"], attributes["in_features"]
    return ConvGeometry(
        in_channels=attributes["in_channels"],
        out_channels=attributes["out_channels"],
        kernel_shape=tuple(attributes["kernel_shape"]),
        strides=tuple(attributes["strides"]),
        pads=tuple(attributes["pads"]),
        dilations=tuple(attributes["dilations"]),
        group=attributes["group"],
    ).weight_shape


def _layer(path: Path, node: NodeProto, initializers: dict[str, TensorProto]) -> LayerReport:
    weight = _weight(path, node, initializers)
    return LayerReport(
        name=node.name,
        kind=node.op_type,
        nodes=(node.name,),
        shape=_weight_shape(node),
        sparsity=1 - weight.density,
        active=weight.active,
        fan_in=weight.fan_in,
        padding=weight.padding,
        bytes_dense=4 * weight.out_features * (weight.in_features + 1),
        bytes_condensed=weight.nbytes,
        decision="condensed",
        reason=_epilogue(node, initializers),
    )


def _epilogue(node: NodeProto, initializers: dict[str, TensorProto]) -> str:
    """Say what the node does to its sums: adds a residual, clips."""
    attributes, steps = _attributes(node), []
    if len(node.input) > 5 and node.input[5] not in initializers:
        steps.append(f"adds {node.input[5]}")
    low, high = attributes.get("clip_min", -math.inf), attributes.get("clip_max", math.inf)
    if not clip_is_open(low, high):
        steps.append(f"clip [{low:g}, {high:g}]")
    return ", ".join(steps)
