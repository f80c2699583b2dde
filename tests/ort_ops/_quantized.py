"""Random nodes of the ops on 8-bit integers, their models, and what they must compute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fanin.ort_ops import reference_quantized
from fanin.ort_ops.contract import DOMAIN, INPUTS, OUTPUT_TYPES, QUANTIZED_OPS
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ._models import NODE

QLINEAR_GEMM, QLINEAR_CONV = "QLinearCondensedGemm", "QLinearCondensedConv"
TO_FLOAT, DYNAMIC = "CondensedGemmIntegerToFloat", "DynamicQuantizeCondensedGemm"

ORACLES = {
    QLINEAR_GEMM: reference_quantized.qlinear_condensed_gemm,
    QLINEAR_CONV: reference_quantized.qlinear_condensed_conv,
    TO_FLOAT: reference_quantized.condensed_gemm_integer_to_float,
    DYNAMIC: reference_quantized.dynamic_quantize_condensed_gemm,
}
assert set(ORACLES) == set(QUANTIZED_OPS)

EIGHT_BITS = (np.uint8, np.int8)

CLIPS = [(-math.inf, math.inf), (0.0, math.inf), (-0.75, 1.25), (0.0, 6.0)]

GEOMETRIES = [
    ConvGeometry(6, 8, (3, 2), strides=(1, 2), pads=(1, 0, 2, 1), group=2),
    ConvGeometry(5, 7, (1, 1)),
    ConvGeometry(4, 8, (3, 3), pads=(2, 2, 2, 2), dilations=(2, 2)),
    ConvGeometry(6, 6, (3, 3), strides=(2, 2), pads=(0, 0, 1, 1), group=6),
    ConvGeometry(6, 8, (4,), strides=(3,), pads=(2, 1), dilations=(2,), group=2),
    ConvGeometry(6, 8, (1,)),
]


@dataclass(frozen=True)
class Node:
    """One node: its input arrays by name, in the op's order, and its attributes."""

    op: str
    arrays: Mapping[str, np.ndarray]
    attributes: Mapping[str, Any]

    @property
    def x(self) -> np.ndarray:
        return self.arrays["X"]

    def having(self, **changes: Any) -> Node:
        """The same node with some inputs, or attributes, replaced."""
        arrays = {k: np.asarray(v) for k, v in changes.items() if k in self.arrays}
        attributes = {k: v for k, v in changes.items() if k not in self.arrays}
        return replace(
            self,
            arrays={**self.arrays, **arrays},
            attributes={**self.attributes, **attributes},
        )

    def expected(self) -> np.ndarray:
        """The oracle's result."""
        arrays = dict(self.arrays)
        if arrays["residual"].shape == (1,):
            arrays["residual"] = None  # "none": no case here has a Y of that shape
        return ORACLES[self.op](*arrays.values(), **self.attributes)

    def dense(self) -> np.ndarray:
        """The int8 weight ``[outputs, in_features]``, or a convolution's."""
        values, indices, rows = (self.arrays[key] for key in ("values", "indices", "rows"))
        if self.op == QLINEAR_CONV:
            channels = self.attributes["in_channels"] // self.attributes["group"]
            window = (channels, *self.attributes["kernel_shape"])
        else:
            window = (self.attributes["in_features"],)
        dense = np.zeros((len(self.arrays["bias"]), math.prod(window)), np.int8)
        for row, columns, entries in zip(rows, indices, values, strict=True):
            np.add.at(dense[row], columns, entries)
        return dense.reshape(-1, *window)

    def build(
        self,
        functions: Sequence[onnx.FunctionProto] = (),
        *,
        fed: Sequence[str] = ("X",),
        x_shape: Sequence[int | str] | None = None,
        declared: bool = True,
        opset: int = 20,
    ) -> onnx.ModelProto:
        """A model of the node, whose inputs are initializers but those in ``fed``.

        Without ``declared`` it says nothing of the shapes of those, X apart.
        """
        inputs, constants = [], []
        for name, array in self.arrays.items():
            if name in fed:
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                shape = _open(array) if declared or name == "X" else None
                if name == "X" and x_shape is not None:
                    shape = list(x_shape)
                inputs.append(helper.make_tensor_value_info(name, kind, shape))
            else:
                constants.append(numpy_helper.from_array(np.asarray(array), name))
        node = helper.make_node(
            self.op, list(self.arrays), ["Y"], name=NODE, domain=DOMAIN, **self.attributes
        )
        output = helper.make_tensor_value_info("Y", self.y_type, _open(self.x, "y"))
        return helper.make_model(
            helper.make_graph([node], "one_layer", inputs, [output], constants),
            opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)],
            functions=list(functions),
            ir_version=9,
        )

    @property
    def y_type(self) -> int:
        if OUTPUT_TYPES[self.op] != "TY":
            return onnx.TensorProto.FLOAT
        return helper.np_dtype_to_tensor_dtype(self.arrays["y_zero_point"].dtype)

    def feeds(self, *names: str) -> dict[str, np.ndarray]:
        """Inputs of a run: X and the named ones."""
        return {name: self.arrays[name] for name in ("X", *names)}


def random_node(
    op: str,
    seed: int,
    *,
    x_type: type | None = None,
    y_type: type | None = None,
    geometry: ConvGeometry | None = None,
    images: tuple[int, ...] | None = None,
    leading: Sequence[int] = (5,),
    in_features: int = 37,
    outputs: int = 19,
    fan_in: int = 7,
    residual: bool | None = None,
    clip: tuple[float, float] | None = None,
    largest: int = 127,
    **attributes: int,
) -> Node:
    """Draw a node; what is not given is drawn as well.

    ``images`` are the number and the size of a convolution's images.
    ``largest`` bounds the weights. ONNX Runtime's own kernels for CPUs without VNNI saturate sums
    of two products to 16 bits; with 64 they are exact everywhere.
    """
    rng = np.random.default_rng(seed)
    x_type = x_type or EIGHT_BITS[rng.integers(2)]
    y_type = y_type or EIGHT_BITS[rng.integers(2)]
    residual = bool(rng.integers(2)) if residual is None else residual
    clip = clip or CLIPS[rng.integers(len(CLIPS))]
    if op == QLINEAR_CONV:
        geometry = geometry or GEOMETRIES[rng.integers(len(GEOMETRIES))]
        attributes = {"channels_last": int(rng.integers(2)), **attributes}
        outputs, in_features = geometry.out_channels, geometry.in_features
        batch, *space = images or (2, *(int(n) for n in rng.integers(6, 10, geometry.axes)))
        x_shape = [batch, geometry.in_channels, *space]
        y_shape = [batch, outputs, *geometry.output_sizes(space)]
        if attributes["channels_last"]:
            x_shape, y_shape = ([n, *rest, c] for n, c, *rest in (x_shape, y_shape))
        sizes: dict[str, Any] = geometry.attributes()
    else:
        x_shape, y_shape = [*leading, in_features], [*leading, outputs]
        sizes = {"in_features": in_features, "out_features": outputs}

    fan_in = min(fan_in, in_features)
    values, indices, rows = _rows(rng, outputs, in_features, fan_in, largest)
    x_scale, values_scale = _scales(rng, 1), _scales(rng, outputs)
    # Y, and the residual, reach all of their range and beyond it.
    y_scale = np.float32(x_scale.item() * np.mean(values_scale) * 60 * largest / 127)
    arrays: dict[str, np.ndarray] = {
        "X": _integers(rng, x_type, x_shape),
        "x_scale": x_scale if rng.integers(2) else x_scale.reshape(()),
        "x_zero_point": _integers(rng, x_type, ()),
        "values": values,
        "values_scale": values_scale if rng.integers(2) else values_scale[:1],
        "indices": indices,
        "bias": rng.integers(-9000, 9000, outputs).astype(np.int32),
        "rows": rows,
        "y_scale": np.asarray(y_scale),
        "y_zero_point": _integers(rng, y_type, ()),
        "residual": _integers(rng, y_type, y_shape) if residual else np.zeros(1, y_type),
        "residual_scale": np.float32(y_scale * rng.uniform(0.3, 2)) if residual else np.float32(1),
        "residual_zero_point": _integers(rng, y_type, ()) if residual else y_type(0),
    }
    if OUTPUT_TYPES[op] != "TY":
        arrays["bias"] = rng.standard_normal(outputs).astype(np.float32)
        arrays["residual"] = (
            rng.standard_normal(y_shape).astype(np.float32) if residual else np.zeros(1, np.float32)
        )
    if op == DYNAMIC:
        arrays["X"] = (rng.standard_normal(x_shape) + rng.normal()).astype(np.float32)
        attributes = {"per_row": int(rng.integers(2)), **attributes}
    return Node(
        op,
        {name: np.asarray(arrays[name]) for name in INPUTS[op]},
        {**sizes, "clip_min": clip[0], "clip_max": clip[1], **attributes},
    )


def _rows(
    rng: np.random.Generator, outputs: int, columns: int, fan_in: int, largest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of unequal length, the shorter ones padded, and some outputs without a row."""
    rows = np.flatnonzero(rng.random(outputs) < 0.9).astype(np.int32)
    values = np.zeros((len(rows), fan_in), np.int8)
    indices = np.zeros((len(rows), fan_in), rng.choice([np.uint16, np.int32]))
    for i in range(len(rows)):
        true = int(rng.integers(1, fan_in + 1))
        chosen = np.sort(rng.permutation(columns)[:true])
        indices[i] = np.pad(chosen, (0, fan_in - true), mode="edge")
        values[i, :true] = rng.integers(-largest - (largest == 127), largest + 1, true)
    return values, indices, rows


def _scales(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.exp(rng.normal(-4, 0.7, count)).astype(np.float32)


def _integers(rng: np.random.Generator, kind: type, shape: Sequence[int]) -> np.ndarray:
    limits = np.iinfo(kind)
    return np.asarray(rng.integers(limits.min, limits.max + 1, shape).astype(kind))


def _open(array: np.ndarray, name: str = "axis") -> list[str]:
    return [f"{name}_{axis}" for axis in range(array.ndim)]
