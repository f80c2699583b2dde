"""Models of convolutions that the calibration measures, in float32 and in 8 bits."""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ....export import convert
from ....export.onnx_op import condensed_conv_model
from ....export.onnx_quantized_function import qlinear_condensed_conv_function
from ....ort_ops.contract import QLINEAR_CONDENSED_CONV
from ....ort_ops.format.condensed import CondensedWeight
from ....ort_ops.format.conv_geometry import ConvGeometry
from ..engines.onnx_models import build_model
from ..engines.quantized_layer import rounded_rows
from ..requirements import require

if TYPE_CHECKING:
    import onnx

_WHY = "the calibration makes its models with it"

_Case = tuple["onnx.ModelProto", np.ndarray]

_Nodes = tuple[Any, dict[str, np.ndarray]]
"""A node and its constants."""


class ConvModels(ABC):
    """Makes models of one precision, with weights from ``rng``."""

    dtype: ClassVar[type]
    """Of images."""

    null_op: ClassVar[str]
    """The cheapest node on them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    @abstractmethod
    def image(self, channels: int, side: int) -> np.ndarray:
        """Draw one image ``[1, channels, side, side]``."""

    @abstractmethod
    def condensed(self, weight: CondensedWeight, geometry: ConvGeometry, x: np.ndarray) -> _Case:
        """Build a condensed convolution of an image; returns the image in its layout as well."""

    @abstractmethod
    def _convolution(self, layer: ConvGeometry, x: str, y: str) -> _Nodes:
        """Make a dense convolution from ``x`` to ``y``."""

    def null(self, channels: int) -> onnx.ModelProto:
        """Build a session's overhead: a node on one pixel."""
        node = require("onnx", _WHY).helper.make_node(self.null_op, ["x"], ["y"])
        shape = (1, channels, 1, 1)
        return build_model([node], shape, shape, dtype=self.dtype)

    def chain(self, layers: Sequence[ConvGeometry | None], side: int) -> onnx.ModelProto:
        """Build consecutive dense convolutions; None stands for a pool that halves images."""
        return _chain_model(layers, side, self._convolution, self.dtype)


class Float32Models(ConvModels):
    """Conv and CondensedConv."""

    dtype, null_op = np.float32, "Neg"

    def image(self, channels: int, side: int) -> np.ndarray:
        """See ConvModels."""
        return self._rng.standard_normal((1, channels, side, side)).astype(np.float32)

    def condensed(self, weight: CondensedWeight, geometry: ConvGeometry, x: np.ndarray) -> _Case:
        """See ConvModels."""
        return condensed_conv_model(weight, geometry, (1, *x.shape[2:])), x

    def _convolution(self, layer: ConvGeometry, x: str, y: str) -> _Nodes:
        weight = self._rng.standard_normal(layer.weight_shape) / layer.in_features**0.5
        node = _node("Conv", [x, f"{y}_weight"], y, layer)
        return node, {f"{y}_weight": weight.astype(np.float32)}


class Int8Models(ConvModels):
    """QLinearConv, and QLinearCondensedConv with the channels last, as both run in a network."""

    dtype, null_op = np.uint8, "BitwiseNot"

    def image(self, channels: int, side: int) -> np.ndarray:
        """See ConvModels."""
        return self._rng.integers(0, 256, (1, channels, side, side)).astype(np.uint8)

    def condensed(self, weight: CondensedWeight, geometry: ConvGeometry, x: np.ndarray) -> _Case:
        """See ConvModels."""
        library = require("onnx", _WHY)

        def dense(layer: ConvGeometry, x: str, y: str) -> _Nodes:
            return _quantized(layer, x, y, weight.to_dense())

        with tempfile.TemporaryDirectory() as scratch:
            source, target = Path(scratch) / "dense.onnx", Path(scratch) / "condensed.onnx"
            library.save(_chain_model([geometry], x.shape[2], dense, self.dtype), source)
            convert(source, target, policy="condensed", min_sparsity=0.0, verify=False)
            model = library.load(target)
        _put_channels_last(model)
        return model, np.ascontiguousarray(np.moveaxis(x, 1, -1))

    def _convolution(self, layer: ConvGeometry, x: str, y: str) -> _Nodes:
        dense = self._rng.standard_normal((layer.out_channels, layer.in_features))
        return _quantized(layer, x, y, dense.astype(np.float32))


MODELS: dict[str, type[ConvModels]] = {"float32": Float32Models, "int8": Int8Models}


def place_model(channels: int, side: int) -> onnx.ModelProto:
    """Build what the structured form does after its product: a Gather of channels and an Add."""
    helper = require("onnx", _WHY).helper
    order = np.arange(channels, dtype=np.int64)[::-1].copy()
    bias = np.ones((channels, 1, 1), np.float32)
    nodes = [
        helper.make_node("Gather", ["x", "order"], ["v"], axis=1),
        helper.make_node("Add", ["v", "bias"], ["y"]),
    ]
    shape = (1, channels, side, side)
    return build_model(nodes, shape, shape, {"order": order, "bias": bias})


def _chain_model(
    layers: Sequence[ConvGeometry | None],
    side: int,
    convolution: Callable[[ConvGeometry, str, str], _Nodes],
    dtype: type,
) -> onnx.ModelProto:
    """Build the model of a chain; ``convolution`` makes the node of a layer from x to y."""
    helper = require("onnx", _WHY).helper
    convolutions = [layer for layer in layers if layer is not None]
    arrays: dict[str, np.ndarray] = {}
    nodes, sides, value = [], [side], "x"
    for number, layer in enumerate(layers):
        output = "y" if number == len(layers) - 1 else f"v{number}"
        if layer is None:
            node = helper.make_node(
                "MaxPool", [value], [output], kernel_shape=[2, 2], strides=[2, 2]
            )
            sides.append(sides[-1] // 2)
        else:
            node, constants = convolution(layer, value, output)
            arrays |= constants
            sides.append(layer.output_size(0, sides[-1]))
        nodes.append(node)
        value = output
    x_shape = (1, convolutions[0].in_channels, sides[0], sides[0])
    y_shape = (1, convolutions[-1].out_channels, sides[-1], sides[-1])
    return build_model(nodes, x_shape, y_shape, arrays, dtype=dtype)


def _quantized(layer: ConvGeometry, x: str, y: str, dense: np.ndarray) -> _Nodes:
    """Make a QLinearConv of rounded weights ``[out_channels, in_features]``, and its constants.

    A 32nd of the spread of its sums becomes a unit of the output, so that few are cut off.
    """
    integers, scales = rounded_rows(dense)
    largest = np.linalg.norm(integers * scales[:, None], axis=1).max()
    spread = 256 / math.sqrt(12) * float(largest)
    constants: dict[str, np.ndarray] = {
        "x_scale": np.ones((), np.float32),
        "zero": np.array(128, np.uint8),
        f"{y}_weight": integers.reshape(layer.weight_shape),
        f"{y}_weight_scale": scales,
        f"{y}_weight_zero": np.zeros(len(scales), np.int8),
        f"{y}_scale": np.array(spread / 32, np.float32),
    }
    inputs = [x, "x_scale", "zero", f"{y}_weight", f"{y}_weight_scale", f"{y}_weight_zero"]
    return _node("QLinearConv", [*inputs, f"{y}_scale", "zero"], y, layer), constants


def _put_channels_last(model: onnx.ModelProto) -> None:
    """Let the convolution of a model of one read and write the channels last."""
    (node,) = (one for one in model.graph.node if one.op_type == QLINEAR_CONDENSED_CONV)
    (flag,) = (one for one in node.attribute if one.name == "channels_last")
    flag.i = 1
    (opset,) = (one.version for one in model.opset_import if not one.domain)
    del model.functions[:]
    model.functions.append(qlinear_condensed_conv_function(opset, signed_x=False))
    for port in (*model.graph.input, *model.graph.output):
        dims = port.type.tensor_type.shape.dim
        first, channels, *sizes = (dim.dim_value for dim in dims)
        for dim, size in zip(dims, (first, *sizes, channels), strict=True):
            dim.dim_value = size


def _node(op_type: str, inputs: Sequence[str], y: str, layer: ConvGeometry) -> Any:
    attributes: Mapping[str, Any] = {
        key: value
        for key, value in layer.attributes().items()
        if key not in ("in_channels", "out_channels")
    }
    return require("onnx", _WHY).helper.make_node(op_type, inputs, [y], **attributes)
