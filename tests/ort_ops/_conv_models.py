"""Models of one CondensedConv node, and the same convolution as a dense Conv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fanin.export.conv_geometry import ConvGeometry
from fanin.ort_ops.reference import condensed_conv

from ._models import NO_RESIDUAL, Spec

GEOMETRY = ConvGeometry(6, 8, (3, 3), strides=(1, 2), pads=(1, 0, 2, 1), group=2)


@dataclass(frozen=True)
class ConvLayer:
    """Random arrays of the condensed format for one convolution."""

    geometry: ConvGeometry
    values: np.ndarray
    indices: np.ndarray
    bias: np.ndarray
    rows: np.ndarray

    @classmethod
    def random(
        cls,
        geometry: ConvGeometry = GEOMETRY,
        fan_in: int = 7,
        *,
        active: int | None = None,
        padded: bool = False,
        index_type: type = np.uint16,
        value_type: type = np.float32,
        seed: int | Sequence[int] = 0,
    ) -> ConvLayer:
        """Draw a layer; ``active`` rows of ``out_channels`` (all by default)."""
        rng = np.random.default_rng(seed)
        active = geometry.out_channels if active is None else active
        columns = np.argsort(rng.random((active, geometry.in_features)), axis=1)[:, :fan_in]
        indices = np.sort(columns, axis=1)
        values = rng.standard_normal((active, fan_in))
        if padded:
            true = rng.integers(1, fan_in + 1, size=active)
            padding = np.arange(fan_in) >= true[:, None]
            last = np.take_along_axis(indices, true[:, None] - 1, axis=1)
            indices = np.where(padding, last, indices)
            values[padding] = 0.0
        return cls(
            geometry,
            values.astype(value_type),
            indices.astype(index_type),
            rng.standard_normal(geometry.out_channels).astype(np.float32),
            np.sort(rng.permutation(geometry.out_channels)[:active]).astype(np.int32),
        )

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The node's weight inputs by name."""
        return {
            "values": self.values,
            "indices": self.indices,
            "bias": self.bias,
            "rows": self.rows,
        }

    def dense(self) -> np.ndarray:
        """The weight ``[out, C / group, *kernel]`` in float32."""
        weight = np.zeros((self.geometry.out_channels, self.geometry.in_features), np.float32)
        for row, columns, values in zip(self.rows, self.indices, self.values, strict=True):
            np.add.at(weight[row], columns.astype(np.int64), values.astype(np.float32))
        return weight.reshape(self.geometry.weight_shape)

    def x(self, batch: int, *sizes: int, seed: int = 1, dtype: type = np.float32) -> np.ndarray:
        """Draw an input ``[batch, in_channels, *sizes]``."""
        rng = np.random.default_rng(seed)
        return rng.standard_normal((batch, self.geometry.in_channels, *sizes)).astype(dtype)

    def y_shape(self, x: np.ndarray) -> tuple[int, ...]:
        """The shape of Y for this input."""
        return (len(x), self.geometry.out_channels, *self.geometry.output_sizes(x.shape[2:]))

    def expected(
        self, x: np.ndarray, residual: np.ndarray | None = None, **clip: float
    ) -> np.ndarray:
        """The float64 reference."""
        return condensed_conv(x, **self.weights, residual=residual, **self._attributes, **clip)

    def magnitude(self, x: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
        """The sum of the magnitudes of what the reference adds."""
        weights = {**self.weights, "values": np.abs(self.values.astype(np.float64))}
        weights["bias"] = np.abs(self.bias)
        add = None if residual is None else np.abs(residual.astype(np.float64))
        wide = np.abs(x.astype(np.float64))
        return condensed_conv(wide, **weights, residual=add, **self._attributes)

    @property
    def _attributes(self) -> dict[str, Any]:
        return self.geometry.attributes()


def conv_spec(
    layer: ConvLayer,
    size: Sequence[int | str | None] | None = None,
    *,
    residual: np.ndarray | None = None,
    dtype: type = np.float32,
    fed: Mapping[str, Sequence[int | str] | None] | None = None,
    **clip: float,
) -> Spec:
    """A sound model of the layer; ``size`` is that of X without its channels."""
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
    """Within what float32 sums can lose of the float64 result, and half a unit of Y's type."""
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
    """The layer with its values in another type."""
    return replace(layer, values=layer.values.astype(dtype))
