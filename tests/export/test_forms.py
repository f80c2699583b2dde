"""The form of each layer: predictions, row groups, and what the file then holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from fanin.export import CondensedWeight, ExportError, convert
from fanin.export.cost_model import Calibration, CostModel
from fanin.export.forms import Chooser
from fanin.export.onnx_inspect import condensed_weights
from fanin.export.row_groups import MIN_SAVED_ENTRIES, split_rows
from fanin.ort_ops import register

from .onnx_models import sparse, write_model


def unequal(rows: int = 1024, columns: int = 1024, seed: int = 0) -> np.ndarray:
    """Weights of which few rows are long: padding to the longest one would store a lot."""
    rng = np.random.default_rng(seed)
    density = np.where(np.arange(rows) % 8 == 0, 0.5, 0.05)[:, None]
    return (rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < density)).astype(
        np.float32
    )


def converted(tmp_path: Path, weight: np.ndarray, **options):
    """Convert one layer ``[out, in]`` with a ReLU; returns the report."""
    out_features, in_features = weight.shape
    bias = np.linspace(-1, 1, out_features, dtype=np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="layer", transB=1),
        helper.make_node("Relu", ["h"], ["y"], name="relu"),
    ]
    source = write_model(
        tmp_path / "in.onnx",
        nodes,
        {"w": weight, "b": bias},
        x=("batch", in_features),
        y=("batch", out_features),
    )
    return convert(source, tmp_path / "out.onnx", **options)


def op_types(tmp_path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]


def outputs(path: Path, x: np.ndarray, *, library: bool) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    if library:
        register(options)
    return onnxruntime.InferenceSession(path, options).run(None, {"x": x})[0]


def assert_same_outputs(tmp_path: Path, columns: int) -> None:
    x = np.random.default_rng(1).standard_normal((5, columns)).astype(np.float32)
    expected = outputs(tmp_path / "in.onnx", x, library=False)
    for library in (False, True):
        actual = outputs(tmp_path / "out.onnx", x, library=library)
        np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())


def ablated(shape: tuple[int, int] = (64, 32)) -> np.ndarray:
    weight = sparse(shape, 0.4)
    weight[::2] = 0
    return weight


def test_structured_form_multiplies_active_rows_and_puts_them_in_place(tmp_path: Path):
    report = converted(tmp_path, ablated(), policy="structured")
    assert report.layers[0].decision == "structured"
    assert op_types(tmp_path) == ["MatMul", "Gather", "Add", "Relu"]
    assert not onnx.load(tmp_path / "out.onnx").functions
    assert_same_outputs(tmp_path, 32)


def test_structured_layer_whose_neurons_were_folded_is_one_small_product(tmp_path: Path):
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="first", transB=1),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Gemm", ["t", "v"], ["y"], name="second", transB=1),
    ]
    arrays = {"w": ablated(), "b": np.ones(64, np.float32), "v": sparse((8, 64), 0.6)}
    source = write_model(tmp_path / "in.onnx", nodes, arrays, x=("batch", 32), y=("batch", 8))
    report = convert(source, tmp_path / "out.onnx", policy="structured")
    assert report.folded == ("32 ablated neurons of w",)
    assert op_types(tmp_path) == ["Gemm", "Tanh", "Gemm"]
    shapes = {t.name: list(t.dims) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert shapes["w.weight"] == [32, 32]
    assert shapes["v.weight"] == [8, 32]
    assert_same_outputs(tmp_path, 32)


@pytest.mark.parametrize("policy", ["auto", "dense", "structured"])
def test_portable_file_has_standard_operators_only(tmp_path: Path, policy: str):
    converted(tmp_path, ablated(), policy=policy, portable=True)
    model = onnx.load(tmp_path / "out.onnx")
    assert {n.domain for n in model.graph.node} == {""}
    assert [entry.domain for entry in model.opset_import] == [""]
    assert_same_outputs(tmp_path, 32)


def test_layers_that_would_get_slower_stay_as_they_are_with_the_reason(tmp_path: Path):
    report = converted(tmp_path, sparse((64, 64), 0.55), policy="auto")
    assert report.layers[0].decision == "dense"
    assert "predicted" in report.layers[0].reason
    assert op_types(tmp_path) == ["Gemm", "Relu"]
    assert report.cost_model == Calibration.shipped().machine


def test_large_sparse_layer_is_condensed_with_its_prediction(tmp_path: Path):
    report = converted(tmp_path, sparse((768, 768), 0.95), policy="auto")
    (layer,) = report.layers
    assert layer.decision == "condensed"
    assert layer.speedup > 3
    assert layer.reason == f"{layer.speedup:.2g}× predicted at 1 row"


def test_form_depends_on_the_batch():
    rng = np.random.default_rng(0)
    weight = CondensedWeight.from_dense(
        (rng.standard_normal((768, 768)) * (rng.random((768, 768)) < 0.5)).astype(np.float32)
    )
    costs = replace(TABLE, condensed=(((1e-7, 1e-6), (1e-6, 1e-5)), ((1e-5, 1e-2), (1e-4, 1.0))))
    chooser = Chooser("auto", costs=CostModel(costs))
    assert [chooser.choose(weight, rows).form for rows in (1, 100)] == ["condensed", "dense"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"policy": "fast"}, "policy is 'fast', it must be auto, condensed, structured, dense"),
        ({"batch": 0}, "batch is 0, it must be at least 1"),
        ({"policy": "condensed", "portable": True}, "portable files hold no condensed layers"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        converted(tmp_path, sparse((8, 8)), **options)


def test_symbolic_dimensions_count_as_documented():
    chooser = Chooser("auto", batch=4)
    assert chooser.rows_of(["batch", 768]) == 4
    assert chooser.rows_of(["batch", 197, 768]) == 4 * 197
    assert chooser.rows_of(["batch", "tokens", 768]) == 4 * 32
    assert chooser.rows_of(["197*batch", 768]) == 4 * 197
    assert chooser.rows_of(["batch*tokens", 768]) == 4 * 32
    assert chooser.rows_of([64, "batch", 768]) == 64 * 4
    assert chooser.rows_of([1, "tokens", 768]) == 32
    assert chooser.rows_of(None) == 4


def test_unequal_rows_become_groups_that_store_less(tmp_path: Path):
    weight = unequal()
    report = converted(tmp_path, weight, policy="condensed")
    (layer,) = report.layers
    parts = condensed_weights(tmp_path / "out.onnx")
    assert set(parts) == set(layer.nodes)
    assert layer.nodes[-1] == "layer"
    assert len(parts) > 1
    np.testing.assert_array_equal(sum(part.to_dense() for part in parts.values()), weight)
    stored = sum(part.values.size for part in parts.values())
    padded = CondensedWeight.from_dense(weight).values.size
    assert stored < 0.9 * padded
    assert layer.padding == stored - np.count_nonzero(weight)
    assert op_types(tmp_path) == ["CondensedGemm"] * len(parts)
    assert_same_outputs(tmp_path, 1024)


def test_rows_drawn_at_random_are_padded(tmp_path: Path):
    report = converted(tmp_path, sparse((1024, 1024), 0.95), policy="condensed")
    (layer,) = report.layers
    assert layer.nodes == ("layer",)
    assert layer.padding > 0


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 120), spread=st.floats(0, 1))
def test_groups_hold_every_weight_once_and_never_store_more(seed, rows, spread):
    rng = np.random.default_rng(seed)
    density = rng.random((rows, 1)) ** (1 + 4 * spread)
    dense = np.where(rng.random((rows, 400)) < density, 1, 0).astype(np.float32)
    bias = np.arange(rows, dtype=np.float32)
    weight = CondensedWeight.from_dense(dense, bias)
    groups = split_rows(weight)
    np.testing.assert_array_equal(sum(group.to_dense() for group in groups), dense)
    np.testing.assert_array_equal(sum(group.bias for group in groups), bias)
    stored = sum(group.values.size for group in groups)
    assert stored <= weight.values.size
    if len(groups) > 1:
        assert weight.values.size - stored >= max(MIN_SAVED_ENTRIES, 0.1 * weight.values.size)


def test_constant_fan_in_is_one_group():
    rng = np.random.default_rng(0)
    kept = np.argsort(rng.random((300, 200)), axis=1) < 40
    weight = CondensedWeight.from_dense(kept.astype(np.float32))
    assert split_rows(weight) == [weight]


TABLE = Calibration(
    machine="test",
    batches=(1, 100),
    weights=(100, 10_000),
    densities=(0.01, 1.0),
    dense=((1e-6, 1e-4), (1e-4, 1e-2)),
    condensed=(((1e-7, 1e-6), (1e-6, 1e-4)), ((1e-5, 1e-4), (1e-4, 1e-2))),
    scatter=((1e-7, 1e-6), (1e-6, 1e-5)),
)


def test_power_laws_are_interpolated_exactly():
    costs = CostModel(TABLE)
    for batch, side in [(1, 10), (10, 30), (100, 100), (1000, 200)]:
        assert costs.dense(batch, side, side) == pytest.approx(1e-8 * batch * side * side)
    assert costs.condensed(1, 100, 100, 1_000) == pytest.approx(1e-5)
    assert costs.structured(1, 100, 100, 100) == pytest.approx(1e-4)
    assert costs.structured(1, 100, 100, 50) == pytest.approx(0.5e-4 + 1e-6)


def test_calibration_of_the_user_is_taken(tmp_path: Path, monkeypatch):
    path = tmp_path / "own" / "calibration.json"
    TABLE.save(path)
    assert json.loads(path.read_text())["format_version"] == 1
    monkeypatch.setenv("FANIN_CALIBRATION", str(path))
    assert CostModel.of_this_machine().machine.startswith("test;")  # it has no convolutions
    np.testing.assert_array_equal(Calibration.load(path).condensed, TABLE.condensed)


@pytest.mark.parametrize(
    "text", ["{}", "no json", '{"format_version": 2}', '{"format_version": 1, "machine": "x"}']
)
def test_damaged_calibration_is_refused_with_the_remedy(tmp_path: Path, monkeypatch, text: str):
    path = tmp_path / "calibration.json"
    path.write_text(text)
    monkeypatch.setenv("FANIN_CALIBRATION", str(path))
    with pytest.raises(ExportError, match=r"no calibration of this version.*fanin calibrate"):
        converted(tmp_path, sparse((8, 8)))
