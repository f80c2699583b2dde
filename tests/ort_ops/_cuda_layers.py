"""Random condensed layers and the error bound of their float32 sums, for the CUDA tests."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from fanin.ort_ops import reference

TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# Half the relative distance between neighboring numbers, and the smallest absolute distance.
ROUNDING = {"float32": (2.0**-24, 2.0**-149), "float16": (2.0**-11, 2.0**-24)}
ROUNDING["bfloat16"] = (2.0**-8, 2.0**-133)
# Of a product of two numbers that are rounded to TF32 (10 bits of mantissa), relative.
TF32_PRODUCT = 2 * 2.0**-11 + 2.0**-22


def tf32(array: np.ndarray) -> np.ndarray:
    """Finite float32 rounded to TF32: to nearest, ties away from zero."""
    half_up = array.view(np.uint32) + np.uint32(0x1000)
    return (half_up & np.uint32(0xFFFFE000)).view(np.float32)


@dataclass(frozen=True)
class Layer:
    values: np.ndarray
    indices: np.ndarray
    rows: np.ndarray
    bias: np.ndarray
    in_features: int

    @property
    def out_features(self) -> int:
        return len(self.bias)

    @property
    def value_type(self) -> str:
        return self.values.dtype.name

    @staticmethod
    def random(
        rng: np.random.Generator,
        in_features: int,
        out_features: int,
        fan_in: int,
        active: int,
        value_type: str = "float32",
        *,
        padded: bool = False,
    ) -> Layer:
        """Uniform random columns; with ``padded``, rows end early and have padding."""
        if active == 0:
            fan_in = 0
        values = rng.standard_normal((active, fan_in)).astype(TYPES[value_type])
        indices = np.empty((active, fan_in), np.int64)
        for i in range(active):
            indices[i] = np.sort(rng.choice(in_features, fan_in, replace=False))
            if padded and fan_in > 1:
                end = int(rng.integers(1, fan_in + 1))
                indices[i, end:] = indices[i, end - 1]
                values[i, end:] = 0
        rows = np.sort(rng.choice(out_features, active, replace=False)).astype(np.int32)
        kind = np.uint16 if in_features <= 65536 and rng.random() < 0.8 else np.int32
        bias = rng.standard_normal(out_features).astype(np.float32)
        return Layer(values, indices.astype(kind), rows, bias, in_features)

    def arrays(self) -> dict[str, np.ndarray | str]:
        """Arguments of the bindings; 16-bit values as their bits."""
        return {
            "values": bits(self.values),
            "value_type": self.value_type,
            "indices": self.indices,
            "rows": self.rows,
            "bias": self.bias,
        }

    def expect(
        self,
        x: np.ndarray,
        residual: np.ndarray | None = None,
        clip_min: float = -np.inf,
        clip_max: float = np.inf,
        *,
        tensor_cores: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The result in float64, and the error bound of a float32 sum rounded to x's type.

        Tensor cores cut what they add to the bits of the largest term, with one bit to spare, and
        take float32 rounded to TF32.
        """
        sizes = {"in_features": self.in_features, "out_features": self.out_features}
        layer = (self.values.astype(np.float64), self.indices)
        want = reference.condensed_gemm(
            x, *layer, self.bias, self.rows, residual, **sizes, clip_min=clip_min, clip_max=clip_max
        )
        magnitude = reference.condensed_gemm(
            np.abs(x.astype(np.float64)),
            np.abs(layer[0]),
            self.indices,
            np.abs(self.bias),
            self.rows,
            None if residual is None else np.abs(residual.astype(np.float64)),
            **sizes,
        )
        relative, smallest = ROUNDING[x.dtype.name]
        terms = (self.values.shape[1] + 3) * (4 if tensor_cores else 1)
        allowed = terms * 2.0**-24 * magnitude
        if tensor_cores and x.dtype == np.float32:
            allowed = allowed + TF32_PRODUCT * magnitude
        if x.dtype != np.float32:
            allowed = allowed + relative * (np.abs(want) + allowed) + smallest
        return want, allowed


def bits(array: np.ndarray) -> np.ndarray:
    return array if array.dtype == np.float32 else array.view(np.uint16)


def poisoned(batch: int, out_features: int, kind: str) -> np.ndarray:
    return np.full((batch, out_features), np.nan, TYPES[kind])
