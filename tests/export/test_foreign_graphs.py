"""Graphs with loops, functions, several data files, optional values, and mixed precisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fanin.export import ExportError, convert

from .onnx_models import node, node_types, run, sparse, write_model

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
W = sparse((48, 48))
X = np.random.default_rng(0).standard_normal((3, 48)).astype(np.float32)
ROWS = ("batch", 48)


def value(name: str, shape, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.mark.parametrize("inside", [True, False])
def test_a_weight_in_a_loop_or_around_it_is_condensed(tmp_path: Path, inside: bool):
    body = helper.make_graph(
        [node("MatMul", ["h", "w"], "g"), node("Identity", ["go"], "on")],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("h", ROWS)],
        [value("on", [], TensorProto.BOOL), value("g", ROWS)],
        [numpy_helper.from_array(W, "w")] if inside else [],
    )
    loop = node("Loop", ["count", "", "x"], body=body)
    arrays = {"count": np.array(3)} | ({} if inside else {"w": W})
    source = write_model(tmp_path / "in.onnx", [loop], arrays, x=ROWS, y=ROWS)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert [layer.decision for layer in report.layers] == ["condensed"]
    got = run(tmp_path / "out.onnx", library=True, x=X)[0]
    np.testing.assert_allclose(got, X @ W @ W @ W, rtol=1e-4, atol=1e-4)
    # No dense copy stays in the file or in its computed dense size.
    assert report.file_bytes < W.nbytes < report.dense_file_bytes < 2 * W.nbytes + 4096


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_weight_in_a_scan_is_condensed(tmp_path: Path, precision: str):
    body = helper.make_graph(
        [node("MatMul", ["s", "w"], "p"), node("Add", ["p", "xt"], "n"), node("Neg", ["n"], "o")],
        "body",
        [value("s", ROWS), value("xt", ROWS)],
        [value("n", ROWS), value("o", ROWS)],
    )
    scan = helper.make_node("Scan", ["x", "steps"], ["last", "y"], body=body, num_scan_inputs=1)
    source = write_model(
        tmp_path / "in.onnx",
        [scan],
        {"w": W},
        x=ROWS,
        y=("time", *ROWS),
        inputs=[value("steps", ("time", *ROWS))],
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed", precision=precision)
    assert [layer.decision for layer in report.layers] == ["condensed"]
    steps = np.stack([X, -X])
    kind = np.float16 if precision == "float16" else np.float32
    got = run(tmp_path / "out.onnx", library=True, x=X.astype(kind), steps=steps.astype(kind))[0]
    first = X @ W + X
    expected = -np.stack([first, first @ W - X])
    tolerance = 2e-2 if precision == "float16" else 1e-4
    np.testing.assert_allclose(got, expected, atol=tolerance * np.abs(expected).max())


def test_functions_stay_beside_ours_and_their_weights_have_a_reason(tmp_path: Path):
    held = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(W, "w"))
    nodes = [held, node("MatMul", ["a", "w"], "b")]
    body = helper.make_function("own", "Layer", ["a"], ["b"], nodes, [helper.make_opsetid("", 17)])
    call = helper.make_node("Layer", ["x"], ["h"], name="call", domain="own")
    source = write_model(
        tmp_path / "in.onnx",
        [call, node("MatMul", ["h", "v"])],
        {"v": W},
        x=ROWS,
        y=ROWS,
        functions=[body],
    )
    model = onnx.load(source)
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(model, source)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    found = {layer.name: layer.decision for layer in report.layers}
    assert found == {"v": "condensed", "w": "dense"}
    assert "in the function Layer" in report.layers[-1].reason
    assert {f.name for f in onnx.load(tmp_path / "out.onnx").functions} == {
        "Layer",
        "CondensedGemm",
    }


def test_weights_in_a_data_file_each_are_read_and_a_missing_one_is_named(tmp_path: Path):
    nodes = [node("MatMul", ["x", "first"], "h"), node("MatMul", ["h", "second"])]
    folder = tmp_path / "source"
    folder.mkdir()
    path = write_model(folder / "in.onnx", nodes, {"first": W, "second": W}, x=ROWS, y=ROWS)
    onnx.save(
        onnx.load(path),
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=False,
        size_threshold=0,
    )
    assert len(list(folder.iterdir())) == 3
    convert(path, tmp_path / "out.onnx", policy="condensed", external_data_threshold=0)
    got = run(tmp_path / "out.onnx", library=True, x=X)[0]
    np.testing.assert_allclose(got, X @ W @ W, atol=1e-4)
    (folder / "second").unlink()
    with pytest.raises(ExportError, match="data file second is missing or too short for second"):
        convert(path, tmp_path / "other.onnx")
    assert not (tmp_path / "other.onnx").exists()


def test_optional_inputs_and_outputs_stay(tmp_path: Path):
    nodes = [node("OptionalGetElement", ["o"], "h"), node("MatMul", ["h", "w"], "p")]
    nodes += [node("Optional", ["p"])]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": W}, opset=18, ir_version=9)
    model = onnx.load(source)
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, ROWS))
    model.graph.input[0].CopyFrom(helper.make_value_info("o", optional))
    model.graph.output[0].CopyFrom(helper.make_value_info("y", optional))
    onnx.save(model, source)
    with pytest.raises(ExportError, match=r"its input o is no tensor.*pass inputs of your own"):
        convert(source, tmp_path / "out.onnx", policy="condensed")
    report = convert(source, tmp_path / "out.onnx", policy="condensed", inputs=[{"o": X}])
    assert len(report.parity) == 2
    got = run(tmp_path / "out.onnx", library=True, o=X)[0]
    np.testing.assert_allclose(got, X @ W, atol=1e-5)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 15, 16, 18, 21, 23])
@pytest.mark.parametrize("half", [False, True])
def test_every_opset_with_and_without_a_part_in_float16(tmp_path: Path, opset: int, half: bool):
    kind = np.float16 if half else np.float32
    nodes = [
        node("Cast", ["x"], "h", to=HALF if half else FLOAT),
        node("Gemm", ["h", "w", "b"], "g"),
        node("Relu", ["g"], "r"),
        node("MatMul", ["r", "v"], "p"),
        node("Cast", ["p"], "y", to=FLOAT),
    ]
    arrays = {"w": W, "v": W, "b": np.linspace(-1, 1, 48)}
    arrays = {name: array.astype(kind) for name, array in arrays.items()}
    source = write_model(tmp_path / "in.onnx", nodes, arrays, x=ROWS, y=ROWS, opset=opset)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert len(report.parity) == 2
    assert node_types(tmp_path / "out.onnx").count("CondensedGemm") == 2
    got = run(tmp_path / "out.onnx", library=True, x=X)[0]
    expected = np.maximum(X @ W + arrays["b"].astype(np.float32), 0) @ W
    np.testing.assert_allclose(got, expected, atol=(4e-3 if half else 1e-5) * expected.max())


def test_types_that_a_converter_has_left_wrong_are_inferred_again(tmp_path: Path):
    nodes = [node("MatMul", ["x", "w"], "h"), node("Relu", ["h"], "r"), node("MatMul", ["r", "v"])]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": W, "v": W}, x=ROWS, y=ROWS)
    model = onnx.load(source)
    model.graph.value_info.append(value("r", ROWS, HALF))
    onnx.save(model, source)
    # ONNX Runtime takes some of them, not this one.
    report = convert(source, tmp_path / "out.onnx", policy="condensed", verify=False)
    assert len(report.condensed_layers) == 2
    got = run(tmp_path / "out.onnx", library=True, x=X)[0]
    np.testing.assert_allclose(got, np.maximum(X @ W, 0) @ W, atol=1e-4)
    assert any("types that it states" in note for note in report.notes)


@pytest.mark.parametrize("opset", [16, 23])
def test_bfloat16_weights_behind_casts_are_condensed_and_activations_have_a_reason(tmp_path, opset):
    from ml_dtypes import bfloat16

    rounded = W.astype(bfloat16)
    nodes = [node("Cast", ["w"], "v", to=FLOAT), node("MatMul", ["x", "v"])]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": rounded}, x=ROWS, y=ROWS, opset=opset)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.condensed_layers
    got = run(tmp_path / "out.onnx", library=True, x=X)[0]
    np.testing.assert_allclose(got, X @ rounded.astype(np.float32), atol=1e-5)
    nodes = [node("Cast", ["x"], "h", to=TensorProto.BFLOAT16), node("MatMul", ["h", "w"], "p")]
    nodes += [node("Cast", ["p"], "y", to=FLOAT)]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": rounded}, x=ROWS, y=ROWS, opset=opset)
    (layer,) = convert(source, tmp_path / "out.onnx", policy="condensed").layers
    assert (layer.decision, layer.reason) == ("dense", "computes in bfloat16, which no kernel does")
