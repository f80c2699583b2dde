"""ONNX models of a few nodes, from x to y."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ..requirements import require


def build_model(
    nodes: Sequence[Any],
    x_shape: Sequence[int],
    y_shape: Sequence[int],
    constants: Mapping[str, np.ndarray] = MappingProxyType({}),
    *,
    opset: int = 20,
    ir_version: int = 9,
) -> Any:
    """Put a model of float32 together whose input is x, whose output is y."""
    onnx = require("onnx", "the benchmark makes its models with it")
    helper = onnx.helper
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", x_shape), ("y", y_shape))
    )
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "model", [x], [y], arrays)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
