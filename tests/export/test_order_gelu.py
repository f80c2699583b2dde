"""GELU by the error function: ONNX Runtime makes one node of it, at every opset."""

import itertools
import math
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from fanin.deploy import open_session
from fanin.export import export
from fanin.export.passes.order_gelu import OrderGeluPass

ROOT = math.sqrt(2)


def gelu(places: tuple[int, ...] = (0, 0, 0), **changes: float | bool) -> onnx.ModelProto:
    """x * (0.5 * (1 + erf(x / ROOT))); ``places`` says which side of a product or sum each has."""
    constants = {"half": 0.5, "one": 1.0, "root": ROOT}
    constants |= {name: changes[name] for name in constants if name in changes}

    def node(op_type: str, inputs: list[str], output: str, swapped: int = 0) -> onnx.NodeProto:
        return helper.make_node(op_type, inputs[::-1] if swapped else inputs, [output], name=output)

    nodes = [
        node("Div", ["x", "root"], "scaled"),
        node("Erf", ["z" if changes.get("of_another") else "scaled"], "erf"),
        node("Add", ["erf", "one"], "sum", places[0]),
        node("Mul", ["half", "sum"], "halved", places[1]),
        node("Mul", ["x", "halved"], "y", places[2]),
    ]
    outputs = ["y", "halved"] if changes.get("read_twice") else ["y"]
    graph = helper.make_graph(
        nodes,
        "gelu",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 8]) for name in ("x", "z")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.float32(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def ordered(model: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
    result = OrderGeluPass()(ir.from_proto(model))
    return ir.to_proto(result.model), result.modified


def run(model: onnx.ModelProto) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    x = np.linspace(-6, 6, 64, dtype=np.float32).reshape(8, 8)
    return session.run(["y"], {"x": x, "z": x[::-1]})[0]


def optimized(path: Path, session_options: ort.SessionOptions | None = None) -> list[str]:
    """Operators of the graph that ONNX Runtime makes of a file."""
    options = session_options or ort.SessionOptions()
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    open_session(path, options=options)
    graph = onnx.load(options.optimized_model_filepath, load_external_data=False).graph
    return [node.op_type for node in graph.node]


@pytest.mark.parametrize("places", list(itertools.product((0, 1), repeat=3)))
def test_every_way_to_write_it_is_fused_and_gives_the_same_bits(places, tmp_path):
    model = gelu(places)
    changed, modified = ordered(model)
    assert modified
    assert np.array_equal(run(changed), run(model))
    onnx.save(changed, tmp_path / "gelu.onnx")
    assert optimized(tmp_path / "gelu.onnx") == ["Gelu"]


@pytest.mark.parametrize(
    "changes",
    [{"half": 0.25}, {"one": 2.0}, {"root": 1.5}, {"of_another": True}, {"read_twice": True}],
)
def test_what_is_no_gelu_stays_as_it_is(changes):
    model = gelu(**changes)
    changed, modified = ordered(model)
    assert not modified
    assert np.array_equal(run(changed), run(model))


@pytest.mark.parametrize("opset", [18, 20])
def test_exported_files_have_no_error_function_left_when_they_run(opset, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 16))
    with torch.no_grad():
        model[0].weight.mul_(torch.rand(128, 64) < 0.1)
    export(
        model,
        torch.randn(3, 64),
        tmp_path / "net.onnx",
        opset=opset,
        policy="condensed",
        dense_baseline=True,
    )
    assert sorted(optimized(tmp_path / "net.onnx")) == ["CondensedGemm", "Gelu", "Gemm"]
    assert "Erf" not in optimized(tmp_path / "net.dense.onnx")
