"""ONNX models and nodes with ``ai.fanin::CondensedGemm`` and ``CondensedConv``.

Every file that fanin writes is of :data:`IR_VERSION`, imports the domain and carries the
function of each op it uses, so that it loads where the library is absent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from ..ort_ops.contract import (
    COMPUTE_FLOAT32,
    CONDENSED_CONV,
    CONDENSED_GEMM,
    DOMAIN,
    DOMAIN_VERSION,
    OPEN_GATE,
)
from ..ort_ops.format.condensed import CondensedWeight
from ..ort_ops.format.conv_geometry import ConvGeometry
from .onnx_function import (
    OPSETS,
    clip_is_open,
    condensed_conv_function,
    condensed_gemm_function,
)
from .onnx_schema import register_schemas

__all__ = [
    "DEFAULT_OPSET",
    "IR_VERSION",
    "OPSETS",
    "condensed_conv_function",
    "condensed_conv_model",
    "condensed_gemm_function",
    "condensed_layer_model",
    "dense_conv_model",
    "dense_layer_model",
    "make_condensed_conv_node",
    "make_condensed_node",
    "no_residual",
    "register_schemas",
]

IR_VERSION = 9
"""The newest one that onnxruntime 1.17 loads."""

DEFAULT_OPSET = 20


def no_residual(dtype: str = "float32") -> np.ndarray:
    """Return what the residual input holds where nothing is added: ``[1]``, 0, in the type of X."""
    return np.zeros(1, dtype)


def make_condensed_node(
    inputs: Sequence[str],
    output: str,
    *,
    in_features: int,
    out_features: int,
    clip_min: float = -math.inf,
    clip_max: float = math.inf,
    compute: int = COMPUTE_FLOAT32,
    name: str = "",
) -> NodeProto:
    """Build a node; ``inputs`` are names in the order of ``onnx_schema.INPUTS_GEMM``."""
    node = helper.make_node(
        CONDENSED_GEMM,
        list(inputs),
        [output],
        name=name,
        domain=DOMAIN,
        in_features=in_features,
        out_features=out_features,
        clip_min=float(clip_min),
        clip_max=float(clip_max),
    )
    if compute != COMPUTE_FLOAT32:
        node.attribute.append(helper.make_attribute("compute", compute))
    return node


def make_condensed_conv_node(
    inputs: Sequence[str],
    output: str,
    geometry: ConvGeometry,
    *,
    clip_min: float = -math.inf,
    clip_max: float = math.inf,
    gate: tuple[float, float] = OPEN_GATE,
    name: str = "",
) -> NodeProto:
    """Build a node; ``inputs`` are names in the order of ``onnx_schema.INPUTS_CONV``.

    ``gate`` is (gate_scale, gate_shift); an open one is left out.
    """
    attributes: dict[str, float | list[int]] = {**geometry.attributes()}
    attributes |= {"clip_min": float(clip_min), "clip_max": float(clip_max)}
    if gate != OPEN_GATE:
        attributes |= {"gate_scale": float(gate[0]), "gate_shift": float(gate[1])}
    node = helper.make_node(CONDENSED_CONV, list(inputs), [output], name=name, domain=DOMAIN)
    node.attribute.extend(helper.make_attribute(key, attributes[key]) for key in sorted(attributes))
    return node


def condensed_layer_model(
    weight: CondensedWeight,
    batch: int | None,
    *,
    clip_min: float = -math.inf,
    clip_max: float = math.inf,
    with_residual: bool = False,
    x_dtype: str = "float32",
    compute: int = COMPUTE_FLOAT32,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """Build a model of one condensed layer, for tests and benchmarks.

    Its input is ``x`` ``[batch, in_features]``, with ``with_residual`` also ``residual``
    ``[batch, out_features]``; its output is ``y`` ``[batch, out_features]``; all of ``x_dtype``,
    "float32" or "float16". The weights keep the type that ``weight`` has; a ``compute`` of
    COMPUTE_BFLOAT16 needs bfloat16. A batch of None is the
    symbolic dimension "batch". The node is called ``layer``.

    Raises:
        ValueError: another ``x_dtype``.

    """
    node = make_condensed_node(
        ["x", *_CONSTANTS, "residual"],
        "y",
        in_features=weight.in_features,
        out_features=weight.out_features,
        clip_min=clip_min,
        clip_max=clip_max,
        compute=compute,
        name="layer",
    )
    ports = _gemm_ports(weight, batch, with_residual, x_dtype)
    return _condensed_model("condensed_layer", node, ports, weight, opset)


def dense_layer_model(
    weight: CondensedWeight,
    batch: int | None,
    *,
    clip_min: float = -math.inf,
    clip_max: float = math.inf,
    with_residual: bool = False,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """Build the same layer as a dense graph holds it: Gemm (transB=1), Add, Relu or Clip.

    Inputs and output are those of :func:`condensed_layer_model`.
    """
    product = helper.make_node("Gemm", ["x", "weight", "bias"], ["product"], name="Gemm", transB=1)
    ports = _gemm_ports(weight, batch, with_residual)
    return _dense_model(
        "dense_layer", product, weight.to_dense(), ports, weight, (clip_min, clip_max), opset
    )


def condensed_conv_model(
    weight: CondensedWeight,
    geometry: ConvGeometry,
    size: Sequence[int | None],
    *,
    clip_min: float = -math.inf,
    clip_max: float = math.inf,
    gate: tuple[float, float] = OPEN_GATE,
    with_residual: bool = False,
    x_dtype: str = "float32",
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """Build a model of one condensed convolution, for tests and benchmarks.

    Its input is ``x`` ``[N, in_channels, H, W]`` or ``[N, in_channels, L]``, with
    ``with_residual`` also ``residual`` of the output's shape; its output is ``y``
    ``[N, out_channels, ...]``; all of ``x_dtype``, "float32" or "float16". The weights keep the
    type that ``weight`` has. The node is called ``layer``.

    Args:
        weight: ``[out_channels, in_channels / group * kernel_shape]``, flattened.
        geometry: the convolution.
        size: ``(N, H, W)`` or ``(N, L)``; None is the symbolic dimension "batch", "height",
            "width" or "length".
        clip_min: lower bound of the result.
        clip_max: upper bound of the result.
        gate: gate_scale and gate_shift.
        with_residual: whether the model has the input ``residual``.
        x_dtype: "float32" or "float16".
        opset: version of the standard operators.

    Raises:
        ValueError: the weight or the size does not fit the geometry, or another ``x_dtype``.

    """
    node = make_condensed_conv_node(
        ["x", *_CONSTANTS, "residual"],
        "y",
        geometry,
        clip_min=clip_min,
        clip_max=clip_max,
        gate=gate,
        name="layer",
    )
    geometry.check(weight)
    ports = _conv_ports(geometry, size, with_residual, x_dtype)
    return _condensed_model("condensed_conv", node, ports, weight, opset)


def dense_conv_model(
    weight: CondensedWeight,
    geometry: ConvGeometry,
    size: Sequence[int | None],
    *,
    clip_min: float = -math.inf,
    clip_max: float = math.inf,
    with_residual: bool = False,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """Build the same convolution as a dense graph holds it: Conv, Add, Relu or Clip.

    Arguments, inputs and output are those of :func:`condensed_conv_model`.
    """
    geometry.check(weight)
    convolution = helper.make_node(
        "Conv",
        ["x", "weight", "bias"],
        ["product"],
        name="Conv",
        kernel_shape=geometry.kernel_shape,
        strides=geometry.strides,
        pads=geometry.pads,
        dilations=geometry.dilations,
        group=geometry.group,
    )
    dense = weight.to_dense().reshape(geometry.weight_shape)
    ports = _conv_ports(geometry, size, with_residual)
    return _dense_model(
        "dense_conv", convolution, dense, ports, weight, (clip_min, clip_max), opset
    )


_CONSTANTS = ("values", "indices", "bias", "rows")

_Dims = list[int | str]


@dataclass(frozen=True)
class _Ports:
    """Inputs and output of a model of one layer."""

    x: _Dims
    y: _Dims
    with_residual: bool
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float16"):
            raise ValueError(f"x_dtype is {self.dtype!r}, it must be float32 or float16")

    def graph(
        self, name: str, nodes: list[NodeProto], arrays: dict[str, np.ndarray]
    ) -> onnx.GraphProto:
        inputs = [self._port("x", self.x)]
        if self.with_residual:
            inputs.append(self._port("residual", self.y))
        constants = [numpy_helper.from_array(array, key) for key, array in arrays.items()]
        return helper.make_graph(nodes, name, inputs, [self._port("y", self.y)], constants)

    def _port(self, name: str, dims: _Dims) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        return helper.make_tensor_value_info(name, kind, dims)


def _gemm_ports(
    weight: CondensedWeight, batch: int | None, with_residual: bool, dtype: str = "float32"
) -> _Ports:
    first = "batch" if batch is None else batch
    return _Ports([first, weight.in_features], [first, weight.out_features], with_residual, dtype)


def _conv_ports(
    geometry: ConvGeometry,
    size: Sequence[int | None],
    with_residual: bool,
    dtype: str = "float32",
) -> _Ports:
    if len(size) != geometry.axes + 1:
        wanted = "(N, H, W)" if geometry.axes == 2 else "(N, L)"
        raise ValueError(f"size is {tuple(size)}, it must be {wanted}")
    batch: int | str = "batch" if size[0] is None else size[0]
    x: _Dims = [batch, geometry.in_channels]
    y: _Dims = [batch, geometry.out_channels]
    names = ("height", "width") if geometry.axes == 2 else ("length",)
    for axis, (name, given) in enumerate(zip(names, size[1:], strict=True)):
        x.append(name if given is None else given)
        if given is not None:
            y.append(geometry.output_size(axis, given))
        else:
            y.append(name if geometry.keeps_size(axis) else f"{name}_out")
    return _Ports(x, y, with_residual, dtype)


def _condensed_model(
    name: str, node: NodeProto, ports: _Ports, weight: CondensedWeight, opset: int
) -> onnx.ModelProto:
    arrays = {constant: getattr(weight, constant) for constant in _CONSTANTS}
    if not ports.with_residual:
        arrays["residual"] = no_residual(ports.dtype)
    if node.op_type == CONDENSED_CONV:
        gated = any(attribute.name == "gate_scale" for attribute in node.attribute)
        function = condensed_conv_function(opset, gated=gated)
    else:
        rounds = any(attribute.name == "compute" for attribute in node.attribute)
        function = condensed_gemm_function(opset, rounds=rounds)
    return helper.make_model(
        ports.graph(name, [node], arrays),
        ir_version=IR_VERSION,
        opset_imports=[
            helper.make_opsetid("", opset),
            helper.make_opsetid(DOMAIN, DOMAIN_VERSION),
        ],
        functions=[function],
        producer_name="fanin",
    )


def _dense_model(
    name: str,
    product: NodeProto,
    dense: np.ndarray,
    ports: _Ports,
    weight: CondensedWeight,
    clip: tuple[float, float],
    opset: int,
) -> onnx.ModelProto:
    arrays = {"weight": dense, "bias": weight.bias}
    nodes = [product]

    def append(op_type: str, *constants: str) -> None:
        nodes.append(
            helper.make_node(
                op_type, [nodes[-1].output[0], *constants], [f"after_{op_type}"], name=op_type
            )
        )

    if ports.with_residual:
        append("Add", "residual")
    if clip == (0.0, math.inf):
        append("Relu")
    elif not clip_is_open(*clip):
        for bound, value in zip(("clip_min", "clip_max"), clip, strict=True):
            arrays[bound] = np.array(value, np.float32)
        append("Clip", "clip_min", "clip_max")
    nodes[-1].output[0] = "y"
    return helper.make_model(
        ports.graph(name, nodes, arrays),
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", opset)],
        producer_name="fanin",
    )
