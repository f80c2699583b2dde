"""ONNX models of a few nodes from x to y, and the null model, which costs a session's overhead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from ..requirements import require
from .ort import OrtEngine

if TYPE_CHECKING:
    import onnx


X_QUANTIZED = "x_quantized"
"""Name of the input of models that read uint8."""


def build_model(
    nodes: Sequence[Any],
    x_shape: Sequence[int],
    y_shape: Sequence[int],
    constants: Mapping[str, np.ndarray] = MappingProxyType({}),
    *,
    opset: int = 20,
    ir_version: int = 9,
    x: str = "x",
    dtype: DTypeLike = np.float32,
) -> onnx.ModelProto:
    """Build a model whose input is called ``x`` and whose output y; both are of ``dtype``."""
    library = require("onnx", "the benchmark makes its models with it")
    helper = library.helper
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ports = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, shape in ((x, x_shape), ("y", y_shape))
    ]
    arrays = [library.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "model", ports[:1], ports[1:], arrays)
    domains = {"": opset, **{node.domain: 1 for node in nodes if node.domain}}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    return model


def null_session(
    folder: Path, batch: int, in_features: int, out_features: int, threads: int, x: str = "x"
) -> OrtEngine:
    """Make the engine of the null model, written to ``folder``; see save_null_model."""
    path = folder / "null.onnx"
    form = save_null_model(path, batch, in_features, out_features, x)
    return OrtEngine("null", form, path, threads, library=False)


def save_null_model(
    path: Path, batch: int, in_features: int, out_features: int, x: str = "x"
) -> str:
    """Write a model that makes an output of the layer's shape with one cheap node.

    ``x`` [batch, in_features] becomes y [batch, out_features] by dropping columns (Slice), adding
    zeros (Pad), or negation (Neg, BitwiseNot) when the widths are equal. y depends on x, so the
    runtime cannot fold it into a constant. The node copies batch * out_features numbers, which the
    layer's kernel also has to write. They are float32, or uint8 where ``x`` is X_QUANTIZED.

    Returns:
        The name of the operator.

    """
    onnx = require("onnx", "the benchmark makes its models with it")
    quantized = x == X_QUANTIZED
    if out_features == in_features:
        # A Slice of everything is optimized away.
        form, arguments = "BitwiseNot" if quantized else "Neg", {}
    elif out_features < in_features:
        form, arguments = "Slice", {"starts": [0], "ends": [out_features], "axes": [1]}
    else:
        form, arguments = "Pad", {"pads": [0, 0, 0, out_features - in_features]}
    node = onnx.helper.make_node(form, [x, *arguments], ["y"], name="null")
    constants = {name: np.array(value, np.int64) for name, value in arguments.items()}
    shapes = (batch, in_features), (batch, out_features)
    dtype = np.uint8 if quantized else np.float32
    onnx.save(build_model([node], *shapes, constants, x=x, dtype=dtype), path)
    return form
