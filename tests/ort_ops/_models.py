"""Models of one CondensedGemm node, built with onnx alone, and the sessions that run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from fanin import ort_ops
from fanin.ort_ops.reference import condensed_gemm

INPUTS = ("X", "values", "indices", "bias", "rows", "residual")
NODE = "the_layer"


@dataclass(frozen=True)
class Layer:
    """Random arrays of the condensed format."""

    in_features: int
    out_features: int
    values: np.ndarray
    indices: np.ndarray
    bias: np.ndarray
    rows: np.ndarray

    @classmethod
    def random(
        cls,
        in_features: int = 37,
        out_features: int = 19,
        fan_in: int = 7,
        *,
        active: int | None = None,
        padded: bool = False,
        index_type: type = np.uint16,
        seed: int = 0,
    ) -> Layer:
        """Draw a layer; ``active`` rows of ``out_features`` (all by default)."""
        rng = np.random.default_rng(seed)
        active = out_features if active is None else active
        indices = np.empty((active, fan_in), index_type)
        values = rng.standard_normal((active, fan_in)).astype(np.float32)
        for i in range(active):
            true = rng.integers(1, fan_in + 1) if padded else fan_in
            chosen = np.sort(rng.permutation(in_features)[:true])
            indices[i] = np.pad(chosen, (0, fan_in - true), mode="edge")
            values[i, true:] = 0
        return cls(
            in_features,
            out_features,
            values,
            indices,
            rng.standard_normal(out_features).astype(np.float32),
            np.sort(rng.permutation(out_features)[:active]).astype(np.int32),
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

    def x(self, *leading: int, seed: int = 1) -> np.ndarray:
        """Draw an input of shape ``[*leading, in_features]``."""
        rng = np.random.default_rng(seed)
        return rng.standard_normal((*leading, self.in_features)).astype(np.float32)

    def expected(
        self, x: np.ndarray, residual: np.ndarray | None = None, **clip: float
    ) -> np.ndarray:
        """The float64 reference."""
        return condensed_gemm(
            x,
            **self.weights,
            residual=residual,
            in_features=self.in_features,
            out_features=self.out_features,
            **clip,
        )


@dataclass(frozen=True)
class Spec:
    """A one-node model of which every part can be changed."""

    arrays: Mapping[str, np.ndarray]  # by input name, except X
    attributes: Mapping[str, Any]  # None omits one
    x_shape: Sequence[int | str | None] | None = ("batch", 37)
    x_type: int = TensorProto.FLOAT
    y_type: int = TensorProto.FLOAT
    y_shape: Sequence[int | str | None] | None = None
    fed: Mapping[str, Sequence[int | str] | None] = field(default_factory=dict)  # graph inputs
    inputs: Sequence[str] = INPUTS
    outputs: Sequence[str] = ("Y",)
    op: str = "CondensedGemm"
    domain: str = "ai.fanin"
    opsets: Mapping[str, int] = field(default_factory=lambda: {"": 20, "ai.fanin": 1})
    node_name: str = NODE

    def build(self) -> onnx.ModelProto:
        """Build the model without checking it."""
        inputs = [helper.make_tensor_value_info("X", self.x_type, self.x_shape)]
        initializers = []
        for name, array in self.arrays.items():
            if name in self.fed:
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                inputs.append(helper.make_tensor_value_info(name, kind, self.fed[name]))
            else:
                initializers.append(numpy_helper.from_array(array, name))
        node = helper.make_node(
            self.op,
            list(self.inputs),
            list(self.outputs),
            name=self.node_name,
            domain=self.domain,
            **{k: v for k, v in self.attributes.items() if v is not None},
        )
        outputs = [
            helper.make_tensor_value_info(name, self.y_type, self.y_shape) for name in self.outputs
        ]
        return helper.make_model(
            helper.make_graph([node], "one_layer", inputs, outputs, initializers),
            opset_imports=[helper.make_opsetid(*item) for item in self.opsets.items()],
            ir_version=9,
        )

    def with_arrays(self, **arrays: np.ndarray) -> Spec:
        """The same model with some inputs replaced."""
        return replace(self, arrays={**self.arrays, **arrays})

    def with_attributes(self, **attributes: Any) -> Spec:
        """The same model with some attributes replaced, or omitted if None."""
        return replace(self, attributes={**self.attributes, **attributes})


NO_RESIDUAL = np.zeros(1, np.float32)


def spec_of(layer: Layer, *, residual: np.ndarray = NO_RESIDUAL, **clip: float) -> Spec:
    """A valid model of the layer with a symbolic batch."""
    return Spec(
        arrays={**layer.weights, "residual": residual},
        attributes={
            "in_features": layer.in_features,
            "out_features": layer.out_features,
            **clip,
        },
        x_shape=("batch", layer.in_features),
    )


def open_session(
    model: onnx.ModelProto | str,
    *,
    threads: int = 1,
    config: Mapping[str, str] | None = None,
    options: onnxruntime.SessionOptions | None = None,
) -> onnxruntime.InferenceSession:
    """Open a model (or its path) with the operator library."""
    options = options or onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    for key, value in (config or {}).items():
        options.add_session_config_entry(key, value)
    ort_ops.register(options)
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, **feeds: np.ndarray) -> np.ndarray:
    """Run a session with one output."""
    return session.run(None, feeds)[0]


def assert_close(
    actual: np.ndarray,
    layer: Layer,
    x: np.ndarray,
    residual: np.ndarray | None = None,
    **clip: float,
) -> None:
    """Compare with the reference, within the error of float32 sums of these magnitudes.

    A sum of n terms in any order is within about n * 2**-24 of the sum of their magnitudes.
    """
    expected = layer.expected(x, residual, **clip)
    magnitude = condensed_gemm(
        np.abs(x),
        **{**layer.weights, "values": np.abs(layer.values), "bias": np.abs(layer.bias)},
        residual=None if residual is None else np.abs(residual),
        in_features=layer.in_features,
        out_features=layer.out_features,
    )
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    special = ~np.isfinite(expected)
    np.testing.assert_array_equal(actual[special], expected[special].astype(np.float32))
    error = np.abs(actual[~special] - expected[~special])
    bound = (layer.values.shape[1] + 3) * 2.0**-24 * magnitude[~special]
    assert np.all(error <= bound), f"worst error is {np.max(error / bound)} of the bound"
