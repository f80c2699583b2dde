"""Random condensed convolutions and their results, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fanin.ort_ops.format.conv_geometry import ConvGeometry
from fanin.ort_ops.reference import condensed_conv

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
        """The sum of the magnitudes of the reference's summands."""
        weights = {**self.weights, "values": np.abs(self.values.astype(np.float64))}
        weights["bias"] = np.abs(self.bias)
        add = None if residual is None else np.abs(residual.astype(np.float64))
        wide = np.abs(x.astype(np.float64))
        return condensed_conv(wide, **weights, residual=add, **self._attributes)

    @property
    def _attributes(self) -> dict[str, Any]:
        return self.geometry.attributes()
