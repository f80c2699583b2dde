"""What reports say: padding as time, layers by name, times of another CPU, tables and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from typer.testing import CliRunner

from fanin._base import cpu_name
from fanin.cli import app
from fanin.export import ExportError, convert, inspect, plan_conversion
from fanin.export.cost_model import CostModel
from fanin.export.layer_names import is_made_up, name_in_reports

from .onnx_models import node, sparse, write_model

runner = CliRunner()


def unequal(tmp_path: Path, weight: str = "fc.weight") -> Path:
    """A layer of which a few rows are four times as long as the others."""
    rng = np.random.default_rng(0)
    matrix = np.zeros((512, 128), np.float32)
    for row in range(128):
        count = 80 if row % 4 == 0 else 20
        matrix[rng.choice(512, count, replace=False), row] = rng.standard_normal(count)
    return write_model(
        tmp_path / "in.onnx",
        [helper.make_node("MatMul", ["x", weight], ["y"], name="/layer.0/fc/MatMul")],
        {weight: matrix},
        x=("batch", 512),
        y=("batch", 128),
    )


def test_padding_is_said_as_a_share_and_as_time(tmp_path: Path):
    report = convert(unequal(tmp_path), tmp_path / "out.onnx", batch=64, verify=False)
    (layer,) = report.layers
    # 128 rows hold 80 entries each; 35 on average are weights. So few are not split into groups.
    assert (layer.stored, layer.padding) == (128 * 80, 128 * 45)
    assert layer.padding_share == pytest.approx(45 / 80)
    times, costs = layer.times, CostModel.of_this_machine()
    assert times.dense == costs.dense(64, 128, 512)
    assert times.chosen == costs.condensed(64, 128, 512, 128 * 80)
    assert times.equal_rows == costs.condensed(64, 128, 512, 128 * 35)
    assert layer.speedup == pytest.approx(times.dense / times.chosen)
    text = str(report)
    equal, now = times.dense / times.equal_rows, layer.speedup
    assert f"with equal rows fc.weight would be predicted {equal:.2g}× as fast" in text
    assert f"as dense instead of {now:.2g}×" in text
    assert " 56%" in text


def test_equal_rows_are_not_spoken_of(tmp_path: Path):
    matrix = np.zeros((64, 96), np.float32)
    matrix[:8] = 1
    source = write_model(
        tmp_path / "in.onnx",
        [node("MatMul", ["x", "w"])],
        {"w": matrix},
        x=("batch", 64),
        y=("batch", 96),
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed", verify=False)
    assert report.layers[0].times.equal_rows is None
    assert "equal rows" not in str(report)
    assert "padding" not in str(report)


@pytest.mark.parametrize(
    ("weight", "label"),
    [("fc.weight", "fc.weight"), ("onnx::MatMul_196", "/layer.0/fc/MatMul")],
)
def test_layers_are_named_by_their_node_where_the_weight_has_a_made_up_name(
    tmp_path: Path, weight: str, label: str
):
    source = unequal(tmp_path, weight)
    for report in (
        convert(source, tmp_path / "out.onnx", policy="condensed", verify=False),
        convert(source, tmp_path / "dense.onnx", policy="dense", verify=False),
    ):
        (layer,) = report.layers
        assert (layer.name, layer.label) == (weight, label)
        assert label.removesuffix(".weight") in str(report)


@pytest.mark.parametrize("name", ["onnx::Conv_196", "val_12", "_to_copy", "_to_copy_3", "317"])
def test_names_that_exporters_make_up(name: str):
    assert is_made_up(name)
    assert name_in_reports(name, "conv1") == "conv1"
    assert name_in_reports(name, "") == name


@pytest.mark.parametrize("name", ["layer1.0.conv.weight", "W1", "value_projection", "w", "t5.w"])
def test_names_that_people_gave(name: str):
    assert not is_made_up(name)


def test_times_of_another_cpu_are_flagged_with_the_command(tmp_path: Path, monkeypatch):
    for machine, flagged in (("Some CPU", True), ("Intel Xeon @ 2.50GHz (Cascade Lake)", False)):
        monkeypatch.setattr(cpu_name, "cpu_fields", lambda machine=machine: {"model name": machine})
        report = convert(unequal(tmp_path), tmp_path / "out.onnx", verify=False)
        sentence = f"another CPU than this one ({machine}); fanin calibrate --of layers measures it"
        assert (sentence in report.other_cpu) is (sentence in str(report)) is flagged
        assert bool(report.other_cpu) is flagged
    fixed = convert(unequal(tmp_path), tmp_path / "out.onnx", verify=False, policy="condensed")
    assert fixed.other_cpu == ""


def test_a_calibration_that_is_named_and_missing_is_an_error(tmp_path: Path, monkeypatch):
    missing = tmp_path / "own[1].json"
    monkeypatch.setenv("FANIN_CALIBRATION", str(missing))
    with pytest.raises(ExportError, match=r"FANIN_CALIBRATION is .*own\[1\]\.json, but there is"):
        CostModel.of_this_machine()
    # What was measured of it under another name counts.
    (tmp_path / "own[1].int8.json").write_text("{}")
    assert CostModel.of_this_machine().threads == 1


def transformer(tmp_path: Path) -> Path:
    """A layer of whose input the sizes are symbols, and one behind a Reshape."""
    shape = np.array([-1, 256], np.int64)
    nodes = [
        node("MatMul", ["x", "w"], "h"),
        node("Relu", ["h"], "r"),
        node("Reshape", ["r", "shape"], "flat"),
        node("MatMul", ["flat", "v"]),
    ]
    arrays = {"w": sparse((192, 256)), "v": sparse((256, 192)), "shape": shape}
    return write_model(
        tmp_path / "in.onnx", nodes, arrays, x=("batch", "sequence", 192), y=("rows", 192)
    )


def test_sizes_of_symbolic_dimensions_decide_also_behind_a_reshape(tmp_path: Path):
    source = transformer(tmp_path)
    for options, rows in (
        ({"dims": {"sequence": 128}}, "128 rows"),
        ({"dims": {"sequence": 128}, "batch": 2}, "256 rows"),
        ({"dims": {"sequence": 128, "batch": 4}, "batch": 2}, "512 rows"),
    ):
        plan = plan_conversion(source, **options)
        assert [layer.reason.rpartition("at ")[2] for layer in plan] == [rows, rows]


def test_outputs_are_compared_on_the_sizes_that_were_given(tmp_path: Path):
    report = convert(transformer(tmp_path), tmp_path / "out.onnx", dims={"batch": 5, "sequence": 7})
    assert {check.batches for check in report.parity} == {(5,)}


@pytest.mark.parametrize(
    ("dims", "error", "match"),
    [
        ({"seq": 4}, ExportError, "no dimension 'seq'.* its inputs have batch, sequence"),
        ({"sequence": 0}, ValueError, "'sequence' is 0, it must be at least 1"),
    ],
)
def test_a_size_that_fits_nothing_is_refused(tmp_path: Path, dims, error, match):
    with pytest.raises(error, match=match):
        convert(transformer(tmp_path), tmp_path / "out.onnx", dims=dims)
    assert not (tmp_path / "out.onnx").exists()


def test_json_is_alone_on_stdout_and_has_the_documented_fields(tmp_path: Path):
    source, out = str(unequal(tmp_path)), str(tmp_path / "out.onnx")
    pruned = str(tmp_path / "pruned.onnx")
    layer = {"name", "label", "node", "shape", "sparsity", "active", "fan_in", "stored", "padding"}
    layer |= {"padding_share", "bytes_dense", "bytes_condensed", "decision", "reason", "speedup"}
    layer |= {"times", "values_dtype", "compute"}
    plan = runner.invoke(app, ["inspect", source, "--json"])
    assert layer <= json.loads(plan.stdout)["plan"]["layers"][0].keys()
    export = runner.invoke(app, ["export", source, "-o", out, "--json", "--policy", "condensed"])
    found = json.loads(export.stdout)
    assert layer <= found["layers"][0].keys()
    assert {"dense", "chosen", "equal_rows"} == found["layers"][0]["times"].keys()
    assert {"path", "parity_error", "size_ratio", "other_cpu", "notes"} <= found.keys()
    condensed = json.loads(runner.invoke(app, ["inspect", out, "--json"]).stdout)
    assert condensed["plan"] is None
    assert condensed["layers"][0]["padding_share"] == pytest.approx(45 / 80)
    command = ["prune", source, "-o", pruned, "--sparsity", "0.97", "--json"]
    lines = json.loads(runner.invoke(app, command).stdout)["layers"]
    assert lines[0]["fan_in"] == 512 * 3 // 100
    refused = runner.invoke(app, ["inspect", str(tmp_path / "none.onnx"), "--json"])
    assert (refused.exit_code, refused.stdout) == (1, "")


def test_reports_print_themselves_in_full_and_escaped_in_notebooks(tmp_path: Path):
    source = unequal(tmp_path, "<b>.weight")
    report = convert(source, tmp_path / "out.onnx", policy="condensed", verify=False)
    for shown in (report, inspect(tmp_path / "out.onnx")):
        assert str(shown).count("\n") > 3
        assert "<table>" in shown._repr_html_()
    assert "<b>" in str(report)
    assert "&lt;b&gt;" in report._repr_html_()
    assert "<b>" not in report._repr_html_()


def test_tables_are_neither_cut_nor_colored_where_stdout_is_no_terminal(tmp_path: Path):
    source = unequal(tmp_path, "a_name_of_a_layer_" * 12)
    result = runner.invoke(app, ["inspect", str(source)], env={"COLUMNS": "40"})
    assert "a_name_of_a_layer_" * 12 in result.stdout
    assert "\x1b" not in result.stdout


def test_a_torch_file_is_refused_with_the_call_to_use(tmp_path: Path):
    file = tmp_path / "model.pt"
    file.write_bytes(b"PK\x03\x04")
    for command, call in (
        (["export"], 'fanin.export.export(model, example_inputs, "model.onnx")'),
        (["prune", "--sparsity", "0.9"], "fanin.trainer.prune_(model, 0.9)"),
    ):
        result = runner.invoke(app, [*command, str(file), "-o", str(tmp_path / "out.onnx")])
        assert result.exit_code == 1
        assert call in result.stderr
