"""A layer whose weights are 8-bit integers, and the grids of its input and output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ....ort_ops.format.condensed import CondensedWeight

_LARGEST_WEIGHT, _STEPS = 127, 255


@dataclass(frozen=True)
class Grid:
    """uint8 numbers that stand for ``scale * (number - zero_point)``."""

    scale: float
    zero_point: int

    @classmethod
    def over(cls, values: np.ndarray) -> Self:
        """Make the grid from the least to the largest of some values, 0 included."""
        low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
        scale = float(np.float32((high - low) / _STEPS)) or 1.0
        return cls(scale, round(-low / scale))

    def quantize(self, values: np.ndarray) -> np.ndarray:
        """Round to the nearest number, ties to the even one; values beyond become 0 or 255."""
        numbers = np.rint(values / np.float32(self.scale)) + self.zero_point
        clipped: np.ndarray = np.clip(numbers, 0, _STEPS).astype(np.uint8)
        return clipped

    def dequantize(self, numbers: np.ndarray) -> np.ndarray:
        """Return the float32 values of uint8 numbers."""
        values: np.ndarray = (numbers.astype(np.float32) - self.zero_point) * np.float32(self.scale)
        return values


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer of int8 weights, with one scale for each output and none of them shifted.

    Attributes:
        integers: int8 ``[out_features, in_features]``, zeros included.
        scales: float32 ``[out_features]``, the value of a unit of each row.
        bias: float32 ``[out_features]``.
        x, y: grids of input and output.

    """

    integers: np.ndarray
    scales: np.ndarray
    bias: np.ndarray
    x: Grid
    y: Grid

    @classmethod
    def of(cls, weight: CondensedWeight, x: Grid, y: Grid) -> Self:
        """Round the weights of each output to the range that its largest one needs."""
        dense = weight.to_dense()
        return cls(*rounded_rows(dense), weight.bias, x, y)

    @property
    def out_features(self) -> int:
        """Number of outputs."""
        return len(self.integers)

    @property
    def in_features(self) -> int:
        """Number of inputs."""
        return int(self.integers.shape[1])

    @property
    def integer_bias(self) -> np.ndarray:
        """The bias in units of a product, int32."""
        units = np.float64(self.x.scale) * self.scales
        return np.rint(self.bias / units).astype(np.int32)

    def with_one_scale(self) -> Self:
        """Return the layer with the same scale for all outputs, whose weights are rounded again."""
        dense = self.integers * self.scales[:, None]
        largest = np.full(self.out_features, np.abs(dense).max(), np.float32)
        integers, scales = _rounded(dense, largest)
        return replace(self, integers=integers, scales=scales)


def rounded_rows(dense: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round ``[rows, columns]`` to int8, each row to the range of its largest number.

    Returns the integers, and a float32 scale for each row.
    """
    return _rounded(dense, np.abs(dense).max(axis=1))


def _rounded(dense: np.ndarray, largest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 weights and their scales; a row of zeros has the scale 1."""
    scales = np.where(largest > 0, largest / _LARGEST_WEIGHT, 1).astype(np.float32)
    return np.rint(dense / scales[:, None]).astype(np.int8), scales
