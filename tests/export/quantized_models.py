"""Quantized ONNX files with sparse weights, in the shapes that quantizers write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from .onnx_models import sparse

X_SCALE, Y_SCALE = np.float32(0.03), np.float32(0.05)


def node(op: str, inputs: Sequence[str], output: str, domain: str = "", **attributes) -> NodeProto:
    return helper.make_node(
        op, list(inputs), [output], name=f"{op}_{output}", domain=domain, **attributes
    )


def write(
    path: Path,
    nodes: Sequence[NodeProto],
    arrays: Mapping[str, np.ndarray],
    *,
    x: Sequence[int | str],
    y: Sequence[int | str] | None = None,
    x_type: int = TensorProto.FLOAT,
    y_type: int = TensorProto.FLOAT,
    inputs: Sequence[onnx.ValueInfoProto] = (),
    opset: int = 17,
) -> Path:
    """Write a model from ``x`` to ``y``; constants are initializers."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", x_type, list(x)), *inputs],
        [helper.make_tensor_value_info("y", y_type, None if y is None else list(y))],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)],
        ir_version=9,
    )
    onnx.save(model, path)
    return path


def int8(shape: Sequence[int], sparsity: float = 0.9, seed: int = 0) -> np.ndarray:
    """int8 weights of which a share is 0, anywhere; -128 and 127 are among them."""
    rng = np.random.default_rng(seed)
    kept = sparse(shape, sparsity, seed) != 0
    integers = rng.integers(1, 128, shape) * rng.choice([-1, 1], shape)
    integers = np.where(kept, integers, 0).astype(np.int8)
    places = np.flatnonzero(kept)
    integers.flat[places[:2]] = (-128, 127)
    return integers


def scales(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (0.002 * (1 + rng.random(count))).astype(np.float32)


def grid(name: str, scale: float, zero: int, dtype: str = "uint8") -> dict[str, np.ndarray]:
    return {f"{name}_scale": np.float32(scale), f"{name}_zero": np.array(zero, dtype)}


def quantize(value: str, output: str, like: str) -> NodeProto:
    return node("QuantizeLinear", [value, f"{like}_scale", f"{like}_zero"], output)


def dequantize(value: str, output: str, like: str, **attributes) -> NodeProto:
    return node("DequantizeLinear", [value, f"{like}_scale", f"{like}_zero"], output, **attributes)
