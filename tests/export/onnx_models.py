"""ONNX files with sparse weights, as other tools make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import NodeProto, TensorProto, helper, numpy_helper

from fanin.ort_ops import register


def sparse(shape: Sequence[int], sparsity: float = 0.9, seed: int = 0) -> np.ndarray:
    """float32 weights of which a share is 0, anywhere."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal(shape).astype(np.float32)
    return np.where(rng.random(shape) < sparsity, np.float32(0), weight)


def write_model(
    path: Path,
    nodes: Sequence[NodeProto],
    arrays: Mapping[str, np.ndarray],
    *,
    x: Sequence[int | str] = ("batch", 48),
    y: Sequence[int | str] | None = ("batch", 32),
    opset: int = 17,
    ir_version: int = 8,
    elem_type: int = TensorProto.FLOAT,
    inputs: Sequence[onnx.ValueInfoProto] = (),
    external: bool = False,
    **model_fields,
) -> Path:
    """Write a model from ``x`` to ``y``; constants are initializers."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", elem_type, list(x)), *inputs],
        [helper.make_tensor_value_info("y", elem_type, None if y is None else list(y))],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=ir_version,
        **model_fields,
    )
    onnx.save(model, path, save_as_external_data=external, size_threshold=256)
    return path


def run(path: Path, *, library: bool | None = None, **inputs: np.ndarray) -> list[np.ndarray]:
    """Run with or without the library; None runs the graph as it is written."""
    options = onnxruntime.SessionOptions()
    if library is None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library:
        register(options)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def node(op: str, inputs: list[str], output: str = "y", **attributes) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], name=f"{op}_{output}", **attributes)


def node_types(path: Path) -> list[str]:
    return [n.op_type for n in onnx.load(path, load_external_data=False).graph.node]
