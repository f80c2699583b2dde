"""Times of the nodes of a model file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fanin.deploy import SessionError
from fanin.deploy.bench.suites.node_times import measure_nodes


def write(folder: Path, inputs: list[onnx.ValueInfoProto], nodes: list[onnx.NodeProto]) -> Path:
    weight = numpy_helper.from_array(np.ones((8, 4), np.float32), "w")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", inputs, [y], [weight])
    opset = [helper.make_opsetid("", 20)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def test_every_node_has_a_time(tmp_path: Path):
    value = helper.make_tensor_value_info
    inputs = [
        value("ids", TensorProto.INT64, ["batch", "tokens"]),
        value("keep", TensorProto.BOOL, ["batch", "tokens"]),
        value("x", TensorProto.FLOAT, ["batch", "tokens", 4]),
    ]
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["h"], name="embed"),
        helper.make_node("Unsqueeze", ["keep", "axes"], ["mask"], name="mask"),
        helper.make_node("Where", ["mask", "h", "x"], ["y"], name="choose"),
    ]
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[2])
    measured = measure_nodes(write(tmp_path, inputs, [axes, *nodes]), 2, 1, library=False, dims={})
    assert {"embed", "mask", "choose"} <= measured.seconds.keys()
    assert all(seconds >= 0 for seconds in measured.seconds.values())
    assert measured.run > 0


def test_model_that_does_not_run_on_made_up_inputs_is_named(tmp_path: Path):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "size"])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]  # of size 8
    path = write(tmp_path, [x], nodes)
    with pytest.raises(SessionError, match=r"model\.onnx: it does not run on made-up inputs"):
        measure_nodes(path, 1, 1, library=False, dims={"size": 16})
