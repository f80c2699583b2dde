"""Cases that the files of tools/foreign_zoo.py brought up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fanin.export import ExportError, convert
from fanin.export.onnx_cases import dequantizes, own_noise
from fanin.export.small_outputs import SIGMOID_SCALE, least_scales
from fanin.export.verify import Case, Reference, check_parity

from .onnx_models import node, sparse, write_model

W = sparse((48, 32))


def scales(tmp_path: Path, nodes: list[onnx.NodeProto], **arrays: np.ndarray) -> tuple[float, ...]:
    path = write_model(tmp_path / "in.onnx", nodes, {"w": W, **arrays}, y=None)
    return least_scales(onnx.load(path))


def branch(op: str, name: str) -> onnx.GraphProto:
    made = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node(op, ["a"], [name])], name, [], [made])


def test_output_of_sigmoid_is_found_behind_what_moves_its_entries(tmp_path: Path):
    nodes = [
        node("MatMul", ["x", "w"], "a"),
        node("Sigmoid", ["a"], "s"),
        node("Transpose", ["s"], "t"),
        node("Concat", ["t", "t"], "c", axis=0),
        node("ReduceMean", ["c", "axes"]),
    ]
    assert scales(tmp_path, nodes, axes=np.array([0])) == (SIGMOID_SCALE,)


@pytest.mark.parametrize(("other", "expected"), [("Sigmoid", SIGMOID_SCALE), ("Identity", 0.0)])
def test_every_branch_counts(tmp_path: Path, other: str, expected: float):
    nodes = [
        node("MatMul", ["x", "w"], "a"),
        helper.make_node(
            "If",
            ["which"],
            ["y"],
            then_branch=branch("Sigmoid", "s"),
            else_branch=branch(other, "o"),
        ),
    ]
    assert scales(tmp_path, nodes, which=np.array(True)) == (expected,)


def test_other_outputs_have_no_least_scale(tmp_path: Path):
    nodes = [
        node("MatMul", ["x", "w"], "a"),
        node("Sigmoid", ["a"], "s"),
        node("Concat", ["s", "a"], axis=1),
    ]
    assert scales(tmp_path, nodes) == (0.0,)


@pytest.mark.parametrize(("wrong", "fits"), [(4e-7, True), (4e-6, False)])
def test_small_sigmoid_may_be_off_by_what_runtimes_are(tmp_path: Path, wrong: float, fits: bool):
    nodes = [node("Identity", ["x"], "a"), node("Sigmoid", ["a"])]
    path = write_model(tmp_path / "in.onnx", nodes, {}, y=("batch", 48))
    x = np.full((1, 48), -8, np.float32)
    exact = 1 / (1 + np.exp(8))
    reference = Reference("the original", [Case((x,), (np.full_like(x, exact + wrong),))])
    if fits:
        check_parity(path, reference)
    else:
        with pytest.raises(ExportError, match="over the tolerance"):
            check_parity(path, reference)


@pytest.mark.parametrize(("integers", "most"), [(False, 1e-4), (True, 1e-5)])
def test_own_noise_counts_less_where_the_runtime_may_use_int8(integers: bool, most: float):
    y = np.ones((2, 32), np.float32)
    case = Case((y,), (y,), (y * np.float32(1.01),))
    assert own_noise([case], ["float32"], integers=integers) == (most,)


def test_dequantized_weights_are_found_in_branches(tmp_path: Path):
    nodes = [
        node("MatMul", ["x", "w"], "a"),
        helper.make_node(
            "If",
            ["which"],
            ["y"],
            then_branch=branch("DequantizeLinear", "s"),
            else_branch=branch("Identity", "o"),
        ),
    ]
    path = write_model(tmp_path / "in.onnx", nodes, {"w": W, "which": np.array(True)}, y=None)
    assert dequantizes(onnx.load(path))


def test_output_declared_with_another_rank_is_corrected(tmp_path: Path):
    """As ddddocr's: a size that is computed hides the rank until constants are folded."""
    nodes = [
        node("MatMul", ["x", "w"], "a"),
        node("Shape", ["a"], "n"),
        node("Concat", ["one", "n"], "size", axis=0),
        node("Reshape", ["a", "size"]),
    ]
    source = write_model(
        tmp_path / "in.onnx",
        nodes,
        {"w": W, "one": np.array([1])},
        y=("batch", 32),
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert [layer.decision for layer in report.layers] == ["condensed"]
    output = onnx.load(tmp_path / "out.onnx").graph.output[0]
    assert len(output.type.tensor_type.shape.dim) == 3


def test_sparse_default_of_a_graph_input_is_reported_with_its_zeros(tmp_path: Path):
    source = write_model(
        tmp_path / "in.onnx",
        [node("MatMul", ["x", "w"])],
        {"w": W},
        inputs=[helper.make_tensor_value_info("w", TensorProto.FLOAT, W.shape)],
    )
    layer = convert(source, tmp_path / "out.onnx").layers[0]
    assert layer.sparsity == pytest.approx(1 - np.count_nonzero(W) / W.size)
    assert (layer.shape, layer.decision) == ((32, 48), "dense")
    assert "remove_initializer_from_input" in layer.reason
