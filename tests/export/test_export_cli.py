"""fanin export and fanin inspect on ONNX files."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

from fanin.cli import app
from fanin.export import convert, plan_conversion

from .onnx_models import sparse, write_model

runner = CliRunner()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    return write_model(tmp_path / "in.onnx", [node], {"w": sparse((48, 32))})


def test_onnx_file_is_converted_and_the_table_printed(source: Path, tmp_path: Path):
    out = tmp_path / "out.onnx"
    result = runner.invoke(app, ["export", str(source), "-o", str(out), "--policy", "condensed"])
    assert result.exit_code == 0, result.output
    assert "Export to" in result.output
    assert [n.op_type for n in onnx.load(out).graph.node] == ["CondensedGemm"]


def test_portable_file_is_written(source: Path, tmp_path: Path):
    out = tmp_path / "out.onnx"
    result = runner.invoke(app, ["export", str(source), "-o", str(out), "--portable"])
    assert result.exit_code == 0, result.output
    assert not onnx.load(out).functions


def square_layer(tmp_path: Path) -> Path:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    shape = ("batch", 768)
    weights = {"w": sparse((768, 768), 0.95)}
    return write_model(tmp_path / "in.onnx", [node], weights, x=shape, y=shape)


def test_inspection_plans_for_a_batch_and_a_number_of_threads(tmp_path: Path):
    source = square_layer(tmp_path)
    options = ["--batch", "8", "--threads", "16"]
    result = runner.invoke(app, ["inspect", str(source), *options])
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    assert "--batch 8 --threads 16 would write" in shown
    (layer,) = plan_conversion(source, batch=8, threads=16)
    (alone,) = plan_conversion(source, batch=8)
    assert layer.speedup != alone.speedup
    assert f"{layer.speedup:.2g}× condensed: predicted at 8 rows" in shown


def test_the_report_says_for_how_many_threads_it_predicts(tmp_path: Path):
    source = square_layer(tmp_path)
    measured = "measured with 1 thread of"
    for threads, said in ((1, ""), (16, "predicted for 16 threads from those ")):
        report = convert(source, tmp_path / "out.onnx", threads=threads)
        assert report.threads == json.loads(report.to_json())["threads"] == threads
        assert f"times {said}{measured} {report.cost_model}" in report.to_rich_table().caption


def test_inspection_of_a_plain_file_says_what_an_export_would_make(source: Path, tmp_path: Path):
    before = sorted(tmp_path.iterdir())
    result = runner.invoke(app, ["inspect", str(source)])
    assert result.exit_code == 0, result.output
    first, note, _, plan, *_ = result.output.splitlines()
    assert first == str(source)
    assert note.startswith("no condensed nodes, opset")  # and no table of none
    assert plan.startswith("fanin export")
    assert plan.endswith("would write")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--threads", "0"], "threads is 0, it must be 1 to 1024"),
        (["--opset", "18"], "belongs to run folders"),
        (["--values-dtype", "int8"], "values_dtype is 'int8'"),
        (["--compute", "int8"], "compute is 'int8'"),
        (["--compute", "bfloat16", "--portable"], "a portable file has none"),
        (["--precision", "half"], "precision is 'half'"),
        (["--compute", "bfloat16", "--precision", "float16"], "is for graphs of float32"),
        (["--dense-baseline"], "belongs to run folders"),
        (["--policy", "fast"], "policy is 'fast'"),
        (["--batch", "0"], "batch is 0"),
        (["--batch", "9" * 20], "must be at most 2147483647"),
        (["--dim", f"batch={10**20}"], "must be at most 2147483647"),
    ],
)
def test_option_that_does_not_fit_is_refused(source: Path, tmp_path: Path, options, sentence):
    out = tmp_path / "out.onnx"
    result = runner.invoke(app, ["export", str(source), "-o", str(out), *options])
    assert result.exit_code != 0
    assert sentence in " ".join(result.output.replace("│", " ").split())
    assert not out.exists()
