"""What becomes of sparse weights in ONNX files that other tools made."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fanin.export import ExportError, convert
from fanin.export.onnx_inspect import condensed_weights
from fanin.export.verify import max_error

from .onnx_models import node, node_types, run, sparse, write_model

W = sparse((48, 32))
B = np.linspace(-1, 1, 32, dtype=np.float32)


def quantized(weight: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "q": np.clip(np.round(weight / 0.02), -127, 127).astype(np.int8),
        "scale": np.float32(0.02),
        "zero": np.int8(0),
    }


MATMUL = [node("MatMul", ["x", "w"])]
CASES = {
    "matmul": (MATMUL, {"w": W}, {}),
    "matmul with bias": (
        [node("MatMul", ["x", "w"], "h"), node("Add", ["b", "h"])],
        {"w": W, "b": B},
        {},
    ),
    "3-D matmul with bias": (
        [node("MatMul", ["x", "w"], "h"), node("Add", ["h", "b"])],
        {"w": W, "b": B.reshape(1, 1, 32)},
        {"x": ("batch", "tokens", 48), "y": ("batch", "tokens", 32)},
    ),
    "1-D matmul": (MATMUL, {"w": W}, {"x": (48,), "y": (32,)}),
    "gemm": ([node("Gemm", ["x", "w", "b"])], {"w": W, "b": B}, {}),
    "gemm without bias": ([node("Gemm", ["x", "w"])], {"w": W}, {}),
    "gemm transB": ([node("Gemm", ["x", "w", "b"], transB=1)], {"w": W.T, "b": B}, {}),
    "gemm transA": (
        [node("Gemm", ["x", "w"], transA=1)],
        {"w": W},
        {"x": (48, "batch")},
    ),
    "gemm alpha and beta": (
        [node("Gemm", ["x", "w", "b"], alpha=0.5, beta=-2.0)],
        {"w": W, "b": B[:1]},
        {},
    ),
    "gemm of a matrix C": (
        [node("Gemm", ["x", "w", "c"], beta=0.25)],
        {"w": W, "c": np.arange(64, dtype=np.float32).reshape(2, 32)},
        {"x": (2, 48), "y": (2, 32)},
    ),
    "Transpose": (
        [node("Transpose", ["w"], "t", perm=[1, 0]), node("MatMul", ["x", "t"])],
        {"w": W.T},
        {},
    ),
    "Identity and Cast": (
        [
            node("Identity", ["w"], "i"),
            node("Cast", ["i"], "t", to=TensorProto.FLOAT),
            node("MatMul", ["x", "t"]),
        ],
        {"w": W.astype(np.float16)},
        {},
    ),
    "DequantizeLinear": (
        [node("DequantizeLinear", ["q", "scale", "zero"], "t"), node("MatMul", ["x", "t"])],
        quantized(W),
        {},
    ),
    "DequantizeLinear and Transpose": (
        [
            node("DequantizeLinear", ["q", "scale", "zero"], "d"),
            node("Transpose", ["d"], "t", perm=[1, 0]),
            node("MatMul", ["x", "t"]),
        ],
        quantized(W.T),
        {},
    ),
    "Constant": (
        [
            helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(W)),
            node("MatMul", ["x", "w"]),
        ],
        {},
        {},
    ),
}


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
@pytest.mark.parametrize("case", CASES)
def test_sparse_weight_is_condensed_and_the_outputs_stay(tmp_path: Path, case: str, opset: int):
    nodes, arrays, fields = CASES[case]
    source = write_model(tmp_path / "in.onnx", nodes, arrays, opset=opset, **fields)
    before = source.read_bytes()
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert source.read_bytes() == before
    (layer,) = report.layers
    assert (layer.decision, layer.shape) == ("condensed", (32, 48))
    assert [check.engine.split()[-2] for check in report.parity] == ["without", "with"]
    types = node_types(tmp_path / "out.onnx")
    assert types.count("CondensedGemm") == 1
    assert not {"MatMul", "Gemm"} & set(types)
    rng = np.random.default_rng(3)
    shape = [d if isinstance(d, int) else 6 for d in fields.get("x", ("batch", 48))]
    x = rng.standard_normal(shape).astype(np.float32)
    (expected,) = run(source, x=x)
    for library in (False, True):
        (actual,) = run(tmp_path / "out.onnx", library=library, x=x)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_initializer_of_two_nodes_is_stored_once(tmp_path: Path):
    nodes = [
        node("MatMul", ["x", "w"], "h"),
        node("Add", ["h", "b"], "a"),
        node("Relu", ["a"], "r"),
        node("MatMul", ["r", "w"]),
    ]
    square = sparse((48, 48))
    arrays = {"w": square, "b": np.ones(48, np.float32)}
    source = write_model(tmp_path / "in.onnx", nodes, arrays, y=("batch", 48))
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    (layer,) = report.layers
    assert layer.nodes == ("MatMul_h", "MatMul_y")
    first, second = onnx.load(tmp_path / "out.onnx").graph.node
    assert (first.input[1:3], first.input[4]) == (second.input[1:3], second.input[4])
    assert first.input[3] != second.input[3]
    weights = condensed_weights(tmp_path / "out.onnx")
    np.testing.assert_array_equal(weights["MatMul_h"].to_dense(), square.T)


def test_report_calls_layers_as_its_table_does(tmp_path: Path):
    """PyTorch's exporter calls nodes ``node_linear_1``, which tells nobody which layer it is."""
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight"], ["a"], name="node_linear", transB=1),
        helper.make_node("Relu", ["a"], ["b"], name="node_relu"),
        helper.make_node("Gemm", ["b", "fc2.weight"], ["c"], name="node_linear_1", transB=1),
        helper.make_node("Add", ["c", "x"], ["d"], name="node_add"),
        helper.make_node("Clip", ["d", "", "high"], ["e"], name="node_clip"),
        helper.make_node("Gemm", ["e", "fc3.weight"], ["f"], name="node_linear_2", transB=1),
        helper.make_node("Softmax", ["f"], ["y"], name="node_softmax"),
    ]
    first, third = sparse((64, 48), 0.7), sparse((32, 48), 0.7, seed=2)
    first[:3] = third[:2] = 0
    arrays = {
        "fc1.weight": first,
        "fc2.weight": sparse((48, 64), 0.7, seed=1),
        "fc3.weight": third,
        "high": np.float32(6),
    }
    source = write_model(tmp_path / "in.onnx", nodes, arrays, opset=18)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.fused == ("Add into fc2", "Relu into fc1", "Clip into fc2")
    assert report.folded == ("3 ablated neurons of fc1",)
    assert report.unfolded == ("2 ablated neurons of fc3: Softmax node_softmax reads it",)
    table = {name.removesuffix(".weight") for name in (layer.name for layer in report.layers)}
    assert table == {"fc1", "fc2", "fc3"}
    names = [n.name for n in onnx.load(tmp_path / "out.onnx").graph.node]
    assert names == ["node_linear", "node_linear_1", "node_linear_2", "node_softmax"]


def test_obstacle_is_called_as_the_table_does_too(tmp_path: Path):
    nodes = [
        helper.make_node("MatMul", ["x", "fc1.weight"], ["a"], name="node_linear"),
        helper.make_node("MatMul", ["head.weight", "a"], ["y"], name="node_linear_1"),
    ]
    first = sparse((48, 64), 0.7)
    first[:, :3] = 0
    arrays = {"fc1.weight": first, "head.weight": sparse((4, 8), 0.0)}
    source = write_model(tmp_path / "in.onnx", nodes, arrays, x=(8, 48), y=None)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.unfolded == ("3 ablated neurons of fc1: MatMul head reads it",)


def test_report_of_an_unverified_conversion_is_written_as_well(tmp_path: Path):
    source = write_model(
        tmp_path / "in.onnx", [node("MatMul", ["x", "w"])], {"w": sparse((48, 32))}
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed", verify=False)
    assert report.parity_error is None
    assert json.loads(report.to_json())["parity_error"] is None


def test_weight_that_another_operator_reads_stays_beside_its_condensed_form(tmp_path: Path):
    nodes = [
        node("Gather", ["w", "ids"], "e"),
        node("Transpose", ["w"], "t", perm=[1, 0]),
        node("Add", ["e", "x"], "h"),
        node("MatMul", ["h", "t"]),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])
    source = write_model(
        tmp_path / "in.onnx", nodes, {"w": sparse((32, 48))}, inputs=[ids], y=("batch", 32)
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.layers[0].decision == "condensed"
    assert report.notes == ("w stays in the file as well: Gather Gather_e reads it",)
    assert "w" in {t.name for t in onnx.load(tmp_path / "out.onnx").graph.initializer}


def test_transpose_that_nobody_reads_any_more_does_not_keep_its_weight(tmp_path: Path):
    nodes = [node("Transpose", ["w"], "t", perm=[1, 0]), node("MatMul", ["x", "t"])]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": W.T})
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.notes == ()
    assert "w" not in {t.name for t in onnx.load(tmp_path / "out.onnx").graph.initializer}


def sparse_tensor(weight: np.ndarray, name: str) -> onnx.SparseTensorProto:
    places = np.argwhere(weight)
    return helper.make_sparse_tensor(
        numpy_helper.from_array(weight[weight != 0], name),
        numpy_helper.from_array(places.astype(np.int64), f"{name}_places"),
        list(weight.shape),
    )


@pytest.mark.parametrize("kind", ["initializer", "linear indices", "constant"])
def test_sparse_tensors_of_onnx_are_read(tmp_path: Path, kind: str):
    tensor = sparse_tensor(W, "w")
    if kind == "linear indices":
        tensor.indices.CopyFrom(numpy_helper.from_array(np.flatnonzero(W).astype(np.int64)))
    constant = [helper.make_node("Constant", [], ["w"], sparse_value=tensor)]
    nodes = [*(constant if kind == "constant" else ()), *MATMUL]
    source = write_model(tmp_path / "in.onnx", nodes, {})
    if kind != "constant":
        model = onnx.load(source)
        model.graph.sparse_initializer.append(tensor)
        onnx.save(model, source)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.notes == ("w was a sparse tensor, read as a dense one",)
    (weight,) = condensed_weights(tmp_path / "out.onnx").values()
    np.testing.assert_array_equal(weight.to_dense(), W.T)
    assert len(report.parity) == 2


def test_standard_operators_may_be_imported_by_their_long_name(tmp_path: Path):
    source = write_model(tmp_path / "in.onnx", MATMUL, {"w": W})
    model = onnx.load(source)
    model.opset_import[0].domain = "ai.onnx"
    model.graph.node[0].domain = "ai.onnx"
    onnx.save(model, source)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.layers[0].decision == "condensed"
    assert len(report.parity) == 2


def test_sequence_of_outputs_is_compared(tmp_path: Path):
    nodes = [
        node("MatMul", ["x", "w"], "h"),
        node("Relu", ["h"], "r"),
        node("SequenceConstruct", ["h", "r"]),
    ]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": W})
    model = onnx.load(source)
    sequence = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    model.graph.output[0].CopyFrom(sequence)
    onnx.save(model, source)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert len(report.parity) == 2
    x = np.random.default_rng(0).standard_normal((3, 48)).astype(np.float32)
    (actual,) = run(tmp_path / "out.onnx", library=True, x=x)
    np.testing.assert_allclose(actual, [x @ W, np.maximum(x @ W, 0)], atol=1e-5)


def test_sequence_of_inputs_is_compared_when_it_is_given(tmp_path: Path):
    nodes = [node("ConcatFromSequence", ["s"], "x", axis=0), *MATMUL]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": W})
    model = onnx.load(source)
    port = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2, 48])
    model.graph.input[0].CopyFrom(port)
    onnx.save(model, source)
    with pytest.raises(ExportError, match=r"input s is no tensor.*inputs of your own"):
        convert(source, tmp_path / "out.onnx", policy="condensed")
    parts = [np.ones((2, 48), np.float32), np.zeros((2, 48), np.float32)]
    report = convert(source, tmp_path / "out.onnx", policy="condensed", inputs=[{"s": parts}])
    assert report.layers[0].decision == "condensed"
    assert len(report.parity) == 2


def test_texts_are_made_up_and_compared(tmp_path: Path):
    text = helper.make_tensor_value_info("t", TensorProto.STRING, ["words"])
    nodes = [node("Identity", ["t"], "same"), *MATMUL]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": W}, inputs=[text])
    model = onnx.load(source)
    model.graph.output.append(helper.make_tensor_value_info("same", TensorProto.STRING, None))
    onnx.save(model, source)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert [check.relative_error < 1e-5 for check in report.parity] == [True, True]
    words = np.array(["Ab", "CD"], object)
    assert max_error(words, words.copy()) == 0
    assert max_error(words, words[::-1]) == np.inf


def test_size_that_only_a_weight_tells_is_found_for_the_comparison(tmp_path: Path, capfd):
    shape = {"x": (None, None, None), "y": (None, None, None)}
    source = write_model(tmp_path / "in.onnx", MATMUL, {"w": W}, **shape)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert {check.batches for check in report.parity} == {(2, 1)}
    assert capfd.readouterr().err == ""


def test_source_that_onnx_itself_refuses_is_blamed(tmp_path: Path):
    source = write_model(tmp_path / "in.onnx", MATMUL, {"w": W}, x=("batch", 47))
    with pytest.raises(ExportError, match=r"(?s)onnx refuses .* and it refuses .*in.onnx already"):
        convert(source, tmp_path / "out.onnx", min_sparsity=1.0)
    assert not (tmp_path / "out.onnx").exists()


def test_data_file_that_the_source_reads_stays_although_its_name_is_of_an_older_export(
    tmp_path: Path,
):
    source = write_model(tmp_path / "in.onnx", MATMUL, {"w": W})
    first = convert(source, tmp_path / "m.onnx", policy="condensed", external_data_threshold=0)
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(Path(first.path).read_bytes())
    data = Path(first.data_path).read_bytes()
    convert(copy, tmp_path / "m.onnx", policy="dense", external_data_threshold=0)
    assert Path(first.data_path).read_bytes() == data
    assert len(condensed_weights(copy)) == 1


LEFT = {
    "is a graph input, which a caller can replace": (
        MATMUL,
        {"w": W},
        {"inputs": [helper.make_tensor_value_info("w", TensorProto.FLOAT, [48, 32])]},
    ),
    "the weight is the left operand": (
        [node("MatMul", ["w", "x"])],
        {"w": sparse((2, 32, 48))},
        {"x": (48, "batch"), "y": (2, 32, "batch")},
    ),
    "sparsity .* under 50%": (MATMUL, {"w": sparse((48, 32), 0.2)}, {}),
    "the weight has 4 dimensions": (
        MATMUL,
        {"w": sparse((1, 2, 48, 32))},
        {"x": (2, "batch", 48), "y": (1, 2, "batch", 32)},
    ),
    "computes in float64, which no kernel does": (
        MATMUL,
        {"w": W.astype(np.float64)},
        {"elem_type": TensorProto.DOUBLE},
    ),
}


@pytest.mark.parametrize("reason", LEFT)
def test_weight_that_cannot_be_condensed_is_left_with_the_reason(tmp_path: Path, reason: str):
    nodes, arrays, fields = LEFT[reason]
    source = write_model(tmp_path / "in.onnx", nodes, arrays, **fields)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    (layer,) = report.layers
    assert layer.decision == "dense"
    assert re.search(reason, layer.reason)
    assert node_types(tmp_path / "out.onnx") == [n.op_type for n in nodes]


def test_quantized_weight_keeps_its_values(tmp_path: Path):
    nodes, arrays, _ = CASES["DequantizeLinear"]
    convert(
        write_model(tmp_path / "in.onnx", nodes, arrays), tmp_path / "out.onnx", policy="condensed"
    )
    (weight,) = condensed_weights(tmp_path / "out.onnx").values()
    expected = arrays["q"].T.astype(np.float32) * arrays["scale"]
    np.testing.assert_array_equal(weight.to_dense(), expected)


def test_float16_model_stays_float16(tmp_path: Path):
    nodes = [node("MatMul", ["x", "w"], "h"), node("Add", ["h", "b"])]
    arrays = {"w": W.astype(np.float16), "b": B.astype(np.float16)}
    source = write_model(tmp_path / "in.onnx", nodes, arrays, elem_type=TensorProto.FLOAT16)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.layers[0].values_dtype == "float16"
    x = np.random.default_rng(0).standard_normal((4, 48)).astype(np.float16)
    exact = x.astype(np.float64) @ arrays["w"].astype(np.float64) + arrays["b"]
    (actual,) = run(tmp_path / "out.onnx", library=True, x=x)
    assert actual.dtype == np.float16
    np.testing.assert_allclose(actual, exact, rtol=1e-3, atol=1e-3)


def branch(name: str, weight: str) -> onnx.GraphProto:
    return helper.make_graph(
        [
            helper.make_node("MatMul", ["x", weight], [f"{name}_h"], name=f"{name}_mm"),
            helper.make_node("Relu", [f"{name}_h"], [f"{name}_out"], name=f"{name}_relu"),
        ],
        name,
        [],
        [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, ["batch", 32])],
        [numpy_helper.from_array(sparse((48, 32), seed=5), "inner")] if weight == "inner" else [],
    )


@pytest.mark.parametrize("weight", ["w", "inner"])
def test_weight_in_an_if_branch_is_condensed(tmp_path: Path, weight: str):
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    nodes = [
        node("If", ["flag"], then_branch=branch("yes", weight), else_branch=branch("no", "w")),
    ]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": W}, inputs=[flag])
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert {layer.decision for layer in report.layers} == {"condensed"}
    x = np.random.default_rng(0).standard_normal((4, 48)).astype(np.float32)
    for flag_value in (False, True):
        inputs = {"x": x, "flag": np.array(flag_value)}
        (expected,) = run(source, **inputs)
        for library in (False, True):
            (actual,) = run(tmp_path / "out.onnx", library=library, **inputs)
            np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_weight_in_a_loop_body_is_condensed(tmp_path: Path):
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h_in", "w"], ["h_out"], name="step"),
            helper.make_node("Identity", ["go_in"], ["go_out"], name="go"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h_in", TensorProto.FLOAT, ["batch", 48]),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h_out", TensorProto.FLOAT, ["batch", 48]),
        ],
    )
    nodes = [node("Loop", ["count", "", "x"], body=body)]
    arrays = {"w": sparse((48, 48)), "count": np.array(3, np.int64)}
    source = write_model(tmp_path / "in.onnx", nodes, arrays, y=("batch", 48))
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.layers[0].nodes == ("step",)
    assert {check.relative_error <= 1e-5 for check in report.parity} == {True}
