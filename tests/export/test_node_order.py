"""Graphs whose nodes are in no order, and those that can have none."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fanin.export import ExportError, convert

from .onnx_models import node, run, sparse, write_model

ARRAYS = {"w": sparse((48, 40)), "v": sparse((40, 32), seed=1)}
LAYERS = [
    node("MatMul", ["x", "w"], "a"),
    node("Relu", ["a"], "b"),
    node("MatMul", ["b", "v"], "y"),
]
X = np.random.default_rng(0).standard_normal((3, 48)).astype(np.float32)


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_nodes_in_any_order_are_sorted(tmp_path: Path, order: tuple[int, ...]):
    sorted_ = write_model(tmp_path / "sorted.onnx", LAYERS, ARRAYS)
    source = write_model(tmp_path / "in.onnx", [LAYERS[place] for place in order], ARRAYS)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert "its nodes were not topologically sorted, and are now" in report.notes
    onnx.checker.check_model(tmp_path / "out.onnx", full_check=True)
    expected = run(sorted_, x=X)[0]
    np.testing.assert_allclose(
        run(tmp_path / "out.onnx", library=True, x=X)[0], expected, atol=1e-5
    )


def test_a_node_comes_after_what_its_branches_read(tmp_path: Path):
    inner = [node("MatMul", ["a", "v"], "p"), node("Relu", ["p"], "t")]
    branches = {
        f"{name}_branch": helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        )
        for name, nodes, output in (
            ("then", inner, "t"),
            ("else", [node("MatMul", ["a", "v"], "e")], "e"),
        )
    }
    choose = helper.make_node("If", ["c"], ["y"], name="if", **branches)
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    source = write_model(
        tmp_path / "in.onnx", [choose, node("MatMul", ["x", "w"], "a")], ARRAYS, inputs=[flag]
    )
    convert(source, tmp_path / "out.onnx", policy="condensed")
    for value in (True, False):
        product = X @ ARRAYS["w"] @ ARRAYS["v"]
        got = run(tmp_path / "out.onnx", library=True, x=X, c=np.array(value))[0]
        np.testing.assert_allclose(got, np.maximum(product, 0) if value else product, atol=1e-4)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({0: node("MatMul", ["b", "w"], "a")}, "'Relu_b' .Relu., 'MatMul_a' .MatMul. form a cycle"),
        ({1: node("Relu", ["b"], "b")}, "'Relu_b' .Relu. reads its own output"),
        ({1: node("Relu", ["a"], "a")}, "'MatMul_a' .MatMul. and 'Relu_a' .Relu. both compute 'a'"),
        ({1: node("Relu", ["q"], "b")}, "'Relu_b' .Relu. reads 'q', which is not in the graph"),
        ({2: node("MatMul", ["b", "v"], "z")}, "the output 'y' is not computed by any node"),
    ],
)
def test_a_graph_that_has_no_order_is_refused_with_the_node(tmp_path: Path, changed, sentence: str):
    nodes = [changed.get(place, layer) for place, layer in enumerate(LAYERS)]
    source = write_model(tmp_path / "in.onnx", nodes, ARRAYS)
    before = source.read_bytes()
    with pytest.raises(ExportError, match=sentence):
        convert(source, tmp_path / "out.onnx", policy="condensed")
    assert source.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["in.onnx"]
