"""The files of a conversion: versions, names, data files, and what a failure leaves behind."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fanin.export import ExportError, convert, onnx_convert
from fanin.export.report import UNCHANGED

from .._waiting import PATIENCE
from .onnx_models import node, run, sparse, write_model

W = sparse((48, 32))
B = np.linspace(-1, 1, 32, dtype=np.float32)
MATMUL = [node("MatMul", ["x", "w"])]


def test_functions_metadata_and_names_of_the_source_stay(tmp_path: Path):
    twice = helper.make_function(
        "custom",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["hidden"], name="first", doc_string="/home/me.py"),
        helper.make_node("Twice", ["hidden"], ["y"], name="second", domain="custom"),
    ]
    source = write_model(
        tmp_path / "in.onnx", nodes, {"w": W}, functions=[twice], producer_name="somebody"
    )
    model = onnx.load(source)
    model.opset_import.append(helper.make_opsetid("custom", 1))
    helper.set_model_props(model, {"author": "a user"})
    onnx.save(model, source)
    convert(source, tmp_path / "out.onnx", policy="condensed")
    out = onnx.load(tmp_path / "out.onnx")
    assert {(f.domain, f.name) for f in out.functions} == {
        ("custom", "Twice"),
        ("ai.fanin", "CondensedGemm"),
    }
    assert [(p.key, p.value) for p in out.metadata_props] == [("author", "a user")]
    assert out.producer_name == "somebody"
    assert [n.name for n in out.graph.node] == ["first", "second"]
    assert out.graph.node[0].output == ["hidden"]
    assert (out.graph.input[0].name, out.graph.output[0].name) == ("x", "y")
    assert b"/home/me.py" not in (tmp_path / "out.onnx").read_bytes()


@pytest.mark.parametrize("ir_version", range(4, 12))
def test_ir_version_stays_or_rises_to_nine(tmp_path: Path, ir_version: int):
    opset = 11 if ir_version < 8 else 17
    source = write_model(tmp_path / "in.onnx", MATMUL, {"w": W}, opset=opset, ir_version=ir_version)
    convert(source, tmp_path / "out.onnx", policy="condensed")
    out = onnx.load(tmp_path / "out.onnx")
    assert out.ir_version == max(9, ir_version)
    assert {e.domain: e.version for e in out.opset_import} == {"": 17, "ai.fanin": 1}


@pytest.mark.parametrize("opset", [16, 23])
def test_opsets_from_16_on_stay(tmp_path: Path, opset: int):
    source = write_model(tmp_path / "in.onnx", MATMUL, {"w": W}, opset=opset, ir_version=10)
    assert convert(source, tmp_path / "out.onnx", policy="condensed").opset == opset


def test_external_data_is_read_and_written_without_touching_the_source(tmp_path: Path):
    (tmp_path / "in").mkdir()
    big = sparse((512, 512), 0.9)
    source = write_model(
        tmp_path / "in/in.onnx",
        MATMUL,
        {"w": big},
        x=("batch", 512),
        y=("batch", 512),
        external=True,
    )
    before = {p.name: hashlib.sha256(p.read_bytes()).digest() for p in source.parent.iterdir()}
    assert len(before) == 2
    report = convert(
        source, tmp_path / "out.onnx", policy="condensed", external_data_threshold=1000
    )
    assert {p.name: hashlib.sha256(p.read_bytes()).digest() for p in source.parent.iterdir()} == (
        before
    )
    assert Path(report.data_path).parent == tmp_path
    assert report.size_ratio < 0.25


@pytest.mark.parametrize("threshold", [None, 1000])
def test_result_needs_no_data_file_of_the_source(tmp_path: Path, threshold: int | None):
    """Weights that stay dense lie in the source's data file; the threshold is the result's own."""
    folder = tmp_path / "in"
    folder.mkdir()
    nodes = [node("MatMul", ["x", "w"], "a"), node("MatMul", ["a", "kept"], "b")]
    nodes.append(node("Add", ["b", "small"]))
    arrays = {
        "w": sparse((48, 64), 0.9),
        "kept": sparse((64, 96), 0.0, seed=1),
        "small": sparse((96,), 0.0, seed=2),
    }
    source = write_model(folder / "in.onnx", nodes, arrays, y=("batch", 96), external=True)
    chosen = {} if threshold is None else {"external_data_threshold": threshold}
    report = convert(source, tmp_path / "out.onnx", policy="condensed", **chosen)
    assert (report.data_path is None) == (threshold is None)
    x = np.random.default_rng(3).standard_normal((5, 48)).astype(np.float32)
    (expected,) = run(source, x=x)
    shutil.rmtree(folder)
    (actual,) = run(tmp_path / "out.onnx", library=True, x=x)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_same_model_converts_to_the_same_bytes(tmp_path: Path):
    nodes = [node("MatMul", ["x", "w"], "p"), node("Add", ["p", "b"])]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": W, "b": B})
    convert(source, tmp_path / "first.onnx", policy="condensed")
    convert(source, tmp_path / "second.onnx", policy="condensed")
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()


def test_what_cannot_be_converted_is_refused_and_nothing_is_written(tmp_path: Path):
    out = tmp_path / "out" / "out.onnx"
    out.parent.mkdir()
    text = tmp_path / "text.onnx"
    text.write_text("no model")
    newer = write_model(tmp_path / "newer.onnx", MATMUL, {"w": W}, opset=24, ir_version=11)
    old = write_model(
        tmp_path / "old.onnx",
        [node("MatMul", ["x", "w"], "h"), node("BatchNormalization", ["h", *"bbbb"], spatial=0)],
        {"w": W, "b": B},
        opset=7,
        ir_version=4,
    )
    lost = write_model(tmp_path / "lost.onnx", MATMUL, {"w": W}, external=True)
    for sibling in tmp_path.iterdir():
        if sibling.is_file() and sibling.suffix not in (".onnx",):
            sibling.unlink()
    for source, error, sentence in [
        (text, ExportError, "is not an ONNX model or is damaged"),
        (tmp_path / "none.onnx", FileNotFoundError, "does not exist"),
        (newer, ExportError, "is of opset 24; up to 23 can be converted"),
        (old, ExportError, "is of opset 7, and onnx's version converter fails on it"),
        (lost, ExportError, "data file .* is missing or too short for w; copy it beside"),
    ]:
        with pytest.raises(error, match=sentence):
            convert(source, out)
    with pytest.raises(ValueError, match="is the model itself"):
        convert(newer, newer)
    assert not list(out.parent.iterdir())


def test_failed_parity_names_the_node_and_leaves_no_file(tmp_path: Path, monkeypatch):
    from fanin.export.passes import fuse_activation

    def wrong(producer, low, high):  # noqa: ARG001
        producer.attributes.add(fuse_activation.ir.AttrFloat32("clip_min", low + 0.25))

    monkeypatch.setattr(fuse_activation, "_clip", wrong)
    nodes = [
        node("MatMul", ["x", "v"], "a"),
        node("MatMul", ["a", "w"], "b"),
        node("Relu", ["b"], "c"),
        node("MatMul", ["c", "v2"]),
    ]
    arrays = {"v": sparse((48, 48)), "w": W, "v2": sparse((32, 32))}
    source = write_model(tmp_path / "in.onnx", nodes, arrays)
    with pytest.raises(ExportError, match=r"differs from the original .* begins at node MatMul_b"):
        convert(source, tmp_path / "out.onnx", policy="condensed")
    assert [p.name for p in tmp_path.iterdir()] == ["in.onnx"]


def test_a_graph_that_stays_as_it_is_is_not_compared_with_itself(tmp_path: Path, monkeypatch):
    def unwanted(*_, **__):
        raise ExportError("it is run")

    monkeypatch.setattr(onnx_convert, "cases_for", unwanted)
    source = write_model(tmp_path / "in.onnx", MATMUL, {"w": sparse((48, 32), 0.1)})
    report = convert(source, tmp_path / "out.onnx")
    assert (report.parity, report.not_checked) == ((), (UNCHANGED,))
    before, after = onnx.load(source), onnx.load(tmp_path / "out.onnx")
    assert before.graph.node == after.graph.node
    assert before.graph.initializer == after.graph.initializer
    # The version converter changes it.
    source = write_model(tmp_path / "in.onnx", MATMUL, {"w": sparse((48, 32), 0.1)}, opset=13)
    with pytest.raises(ExportError, match="it is run"):
        convert(source, tmp_path / "out.onnx")


def test_inputs_of_the_user_are_compared(tmp_path: Path):
    source = write_model(tmp_path / "in.onnx", MATMUL, {"w": W})
    x = np.ones((7, 48), np.float32)
    report = convert(source, tmp_path / "out.onnx", policy="condensed", inputs=[{"x": x}])
    assert report.parity[0].batches[0] == 7
    with pytest.raises(ExportError, match="the given inputs are z; the model takes x"):
        convert(source, tmp_path / "out.onnx", policy="condensed", inputs=[{"z": x}])


def test_conversion_does_not_import_torch(tmp_path: Path):
    source = write_model(tmp_path / "in.onnx", MATMUL, {"w": W})
    code = f"""
import sys
sys.modules["torch"] = None
from fanin.export import convert
report = convert({str(source)!r}, {str(tmp_path / "out.onnx")!r}, policy="condensed")
print(report.layers[0].decision)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout == "condensed\n"


def test_a_norm_that_lists_a_bias_without_having_it_does_not_crash_the_runtime(tmp_path: Path):
    weight = sparse((48, 32))
    source = write_model(
        tmp_path / "in.onnx",
        [node("LayerNormalization", ["x", "scale", ""], "n"), node("MatMul", ["n", "w"], "y")],
        {"scale": np.ones(48, np.float32), "w": weight},
    )
    convert(source, tmp_path / "out.onnx", policy="condensed")
    norm = onnx.load(tmp_path / "out.onnx").graph.node[0]
    assert list(norm.input) == ["x", "scale"]
    x = np.random.default_rng(0).standard_normal((2, 48)).astype(np.float32)
    y = run(tmp_path / "out.onnx", library=True, x=x)[0]
    wide = x.astype(np.float64)
    deviation = wide - wide.mean(1, keepdims=True)
    expected = deviation / np.sqrt((deviation**2).mean(1, keepdims=True) + 1e-5) @ weight
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
