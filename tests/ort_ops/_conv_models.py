"""Models of one CondensedConv node, and the same convolution as a dense Conv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ._conv_layer import GEOMETRY, ConvLayer
from ._models import NO_RESIDUAL, Spec

__all__ = [
    "GEOMETRY",
    "ConvLayer",
    "assert_conv_close",
    "conv_spec",
    "dense_conv_model",
    "with_values",
]


def conv_spec(
    layer: ConvLayer,
    size: Sequence[int | str | None] | None = None,
    *,
    residual: np.ndarray | None = None,
    dtype: type = np.float32,
    fed: Mapping[str, Sequence[int | str] | None] | None = None,
    **clip: float,
) -> Spec:
    """A valid model of the layer; ``size`` is that of X without its channels."""
    names = ("height", "width") if layer.geometry.axes == 2 else ("length",)
    size = ("batch", *names) if size is None else size
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    residual = NO_RESIDUAL.astype(dtype) if residual is None else residual
    return Spec(
        arrays={**layer.weights, "residual": residual},
        attributes={**layer.geometry.attributes(), **clip},
        x_shape=(size[0], layer.geometry.in_channels, *size[1:]),
        x_type=element,
        y_type=element,
        fed=fed or {},
        op="CondensedConv",
    )


def dense_conv_model(layer: ConvLayer) -> onnx.ModelProto:
    """The same convolution as a graph of one float32 Conv, without residual and clip."""
    geometry = layer.geometry
    node = helper.make_node(
        "Conv",
        ["X", "W", "B"],
        ["Y"],
        kernel_shape=geometry.kernel_shape,
        strides=geometry.strides,
        pads=geometry.pads,
        dilations=geometry.dilations,
        group=geometry.group,
    )
    shape = ["N", geometry.in_channels, *(f"s{axis}" for axis in range(geometry.axes))]
    graph = helper.make_graph(
        [node],
        "dense",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(layer.dense(), "W"),
            numpy_helper.from_array(layer.bias, "B"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def assert_conv_close(
    y: np.ndarray,
    layer: ConvLayer,
    x: np.ndarray,
    residual: np.ndarray | None = None,
    **clip: float,
) -> None:
    """Compare with float64, within the error of float32 sums plus half a unit of Y's type."""
    want = layer.expected(x, residual, **clip)
    assert y.shape == want.shape
    assert y.dtype == x.dtype
    finite = np.isfinite(want)
    np.testing.assert_array_equal(y[~finite], want[~finite].astype(y.dtype))
    bound = (layer.values.shape[1] + 3) * 2.0**-24 * layer.magnitude(x, residual)
    if y.dtype == np.float16:
        bound = bound + 2.0**-11 * np.abs(want) + 2.0**-25
    error = np.abs(y[finite] - want[finite])
    assert np.all(error <= bound[finite]), f"worst is {np.max(error / bound[finite])} of the bound"


def with_values(layer: ConvLayer, dtype: type) -> ConvLayer:
    """The layer with its values in a different type."""
    return replace(layer, values=layer.values.astype(dtype))
