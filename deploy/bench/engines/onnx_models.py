"""ONNX models of a few nodes from x to y, and the null model, which costs a session's overhead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..requirements import require
from .ort import OrtEngine

if TYPE_CHECKING:
    import onnx


def build_model(
    nodes: Sequence[Any],
    x_shape: Sequence[int],
    y_shape: Sequence[int],
    constants: Mapping[str, np.ndarray] = MappingProxyType({}),
    *,
    opset: int = 20,
    ir_version: int = 9,
) -> onnx.ModelProto:
    """Build a float32 model with input x and output y."""
    library = require("onnx", "the benchmark makes its models with it")
    helper = library.helper
    x, y = (
        helper.make_tensor_value_info(name, library.TensorProto.FLOAT, shape)
        for name, shape in (("x", x_shape), ("y", y_shape))
    )
    arrays = [library.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "model", [x], [y], arrays)
    opsets = [helper.make_opsetid("", opset)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    return model


def null_session(
    folder: Path, batch: int, in_features: int, out_features: int, threads: int
) -> OrtEngine:
    """Make the engine of the null model, written to ``folder``; see save_null_model."""
    path = folder / "null.onnx"
    form = save_null_model(path, batch, in_features, out_features)
    return OrtEngine("null", form, path, threads, library=False)


def save_null_model(path: Path, batch: int, in_features: int, out_features: int) -> str:
    """Write a model that makes an output of the layer's shape with one cheap node.

    x [batch, in_features] float32 becomes y [batch, out_features] by dropping columns (Slice),
    adding zeros (Pad), or negation (Neg) when the widths are equal. y depends on x, so the runtime
    cannot fold it into a constant. The node copies batch * out_features floats, which the layer's
    kernel also has to write.

    Returns:
        The name of the operator.

    """
    onnx = require("onnx", "the benchmark makes its models with it")
    if out_features == in_features:
        form, arguments = "Neg", {}  # a Slice of everything is optimized away
    elif out_features < in_features:
        form, arguments = "Slice", {"starts": [0], "ends": [out_features], "axes": [1]}
    else:
        form, arguments = "Pad", {"pads": [0, 0, 0, out_features - in_features]}
    node = onnx.helper.make_node(form, ["x", *arguments], ["y"], name="null")
    constants = {name: np.array(value, np.int64) for name, value in arguments.items()}
    onnx.save(build_model([node], (batch, in_features), (batch, out_features), constants), path)
    return form
