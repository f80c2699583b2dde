"""Exports whose linear layers compute in bfloat16."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

from fanin.export import CondensedWeight, ExportError, convert, export, inspect, onnx_convert
from fanin.export import compute as compute_module
from fanin.export.onnx_inspect import condensed_weights
from fanin.export.onnx_op import condensed_layer_model
from fanin.ort_ops.contract import COMPUTE_BFLOAT16
from fanin.ort_ops.reference import round_bfloat16

from .onnx_models import node, run, sparse, write_model
from .test_forms import unequal

W1, W2 = sparse((48, 64)), sparse((64, 32), seed=1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    nodes = [
        node("MatMul", ["x", "w1"], "h"),
        node("Relu", ["h"], "r"),
        node("MatMul", ["r", "w2"]),
    ]
    return write_model(tmp_path / "in.onnx", nodes, {"w1": W1, "w2": W2})


def computes(path) -> list[int | None]:
    """The attribute of each CondensedGemm."""
    nodes = [n for n in onnx.load(path).graph.node if n.op_type == "CondensedGemm"]
    return [next((a.i for a in n.attribute if a.name == "compute"), None) for n in nodes]


def by_hand(x: np.ndarray) -> np.ndarray:
    """Both layers on rounded inputs and weights, in float64."""
    first, second = (round_bfloat16(np.ascontiguousarray(w)).astype(float) for w in (W1, W2))
    hidden = np.maximum(round_bfloat16(x).astype(float) @ first, 0).astype(np.float32)
    return round_bfloat16(hidden).astype(float) @ second


def test_linear_layers_round_what_they_read_and_the_report_says_so(source, tmp_path):
    report = convert(source, tmp_path / "out.onnx", policy="condensed", compute="bfloat16")
    assert computes(report.path) == [16, 16]
    assert [(layer.compute, layer.values_dtype) for layer in report.layers] == [
        ("bfloat16", "bfloat16")
    ] * 2
    stored = condensed_weights(report.path)
    assert all(weight.values.dtype.name == "bfloat16" for weight in stored.values())
    # Parity is with the same values computed in float32; the two differ by roundings of inputs.
    assert 1e-4 < report.parity_error < 2.0**-7
    assert all(check.tolerance == 4e-2 for check in report.parity)
    table = report.to_rich_table()
    assert "parity is with float32, 4e-02 allowed" in table.caption
    assert str(next(iter(table.columns[-1].cells))).endswith(", in bfloat16")
    assert json.loads(report.to_json())["layers"][0]["compute"] == "bfloat16"
    assert [layer.compute for layer in inspect(report.path).layers] == ["bfloat16"] * 2
    x = np.random.default_rng(2).standard_normal((9, 48)).astype(np.float32)
    want = by_hand(x)
    for library in (False, True):
        (got,) = run(Path(report.path), x=x, library=library)
        # A hidden value at a tie may round to its other neighbor.
        assert np.abs(got - want).max() < 1e-3 * np.abs(want).max()


def test_without_the_option_files_have_no_such_attribute(source, tmp_path):
    report = convert(source, tmp_path / "out.onnx", policy="condensed", values_dtype="bfloat16")
    assert computes(report.path) == [None, None]
    assert {layer.compute for layer in report.layers} == {"float32"}
    (function,) = onnx.load(report.path).functions
    casts = [n for n in function.node if n.op_type == "Cast" and "X" in n.input]
    assert [list(n.output) for n in casts] == [["x"]]


def test_a_file_that_computes_so_stays_so_when_it_is_converted_again(source, tmp_path):
    once = convert(source, tmp_path / "once.onnx", policy="condensed", compute="bfloat16")
    twice = convert(once.path, tmp_path / "twice.onnx", policy="condensed")
    assert computes(twice.path) == [16, 16]
    x = np.random.default_rng(3).standard_normal((3, 48)).astype(np.float32)
    (a,), (b,) = (run(Path(r.path), x=x, library=True) for r in (once, twice))
    np.testing.assert_array_equal(a, b)


def test_groups_of_rows_keep_it(tmp_path):
    weight = CondensedWeight.from_dense(unequal()).astype("bfloat16")
    onnx.save(condensed_layer_model(weight, None, compute=COMPUTE_BFLOAT16), tmp_path / "in.onnx")
    report = convert(tmp_path / "in.onnx", tmp_path / "out.onnx", policy="condensed")
    kept = computes(report.path)
    assert len(kept) > 1
    assert set(kept) == {16}


def test_convolutions_and_other_forms_are_named_as_staying_in_float32(tmp_path):
    nodes = [
        node("Conv", ["x", "k"], "c", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        node("Flatten", ["c"], "f"),
        node("MatMul", ["f", "w"]),
    ]
    arrays = {"k": sparse((8, 4, 3, 3)), "w": sparse((128, 32))}
    source = write_model(tmp_path / "in.onnx", nodes, arrays, x=("batch", 4, 4, 4))
    report = convert(source, tmp_path / "out.onnx", policy="condensed", compute="bfloat16")
    assert {layer.name: layer.compute for layer in report.layers} == {
        "k": "float32",
        "w": "bfloat16",
    }
    assert any(note.endswith("not bfloat16: k") for note in report.notes)
    dense = convert(source, tmp_path / "dense.onnx", policy="dense", compute="bfloat16")
    assert any("no layer computes in bfloat16" in note for note in dense.notes)


def test_a_large_model_is_checked_by_layer_with_its_rounding(source, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_convert, "LARGE", 1000)
    report = convert(source, tmp_path / "out.onnx", policy="condensed", compute="bfloat16")
    assert len(report.parity) == 2
    # Against the rounded inputs, so nothing but float32 sums differs.
    assert all(check.relative_error < 1e-5 for check in report.parity)


def test_a_model_that_bfloat16_changes_too_much_is_not_written(source, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_convert, "BFLOAT16_TOLERANCE", 1e-5)
    with pytest.raises(ExportError, match="differs from the rounded weights in float32"):
        convert(source, tmp_path / "out.onnx", policy="condensed", compute="bfloat16")
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"compute": "int8"}, "compute is 'int8', it must be float32 or bfloat16"),
        ({"compute": "bfloat16", "values_dtype": "float16"}, "values_dtype is 'float16'; leave"),
        ({"compute": "bfloat16", "portable": True}, "a portable file has none; leave one out"),
        ({"compute": "bfloat16", "device": "cuda"}, "is for CPUs, device is 'cuda'; leave one out"),
    ],
)
def test_options_that_contradict_each_other_are_refused(source, tmp_path, options, reason):
    with pytest.raises(ValueError, match=reason):
        convert(source, tmp_path / "out.onnx", policy="condensed", **options)
    assert not (tmp_path / "out.onnx").exists()


def test_values_of_the_same_type_may_be_asked_for_as_well():
    types = compute_module.values_for
    assert types("bfloat16", "bfloat16", "float32", portable=False, device="cpu") == "bfloat16"
    assert types("float32", "float16", "float32", portable=True, device="cuda") == "float16"


def test_torch_models_compute_in_bfloat16(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 24))
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.mul_(torch.rand_like(layer.weight) < 0.2)
    kept = [parameter.clone() for parameter in model.parameters()]
    report = export(
        model,
        torch.randn(3, 40),
        tmp_path / "m.onnx",
        policy="condensed",
        compute="bfloat16",
    )
    for parameter, before in zip(model.parameters(), kept, strict=True):
        assert torch.equal(parameter, before)
    assert computes(report.path) == [16, 16]
    assert {layer.compute for layer in report.layers} == {"bfloat16"}
    assert 1e-4 < report.parity_error < 2.0**-7


def test_the_checker_knows_the_attribute(source, tmp_path):
    report = convert(source, tmp_path / "out.onnx", policy="condensed", compute="bfloat16")
    model = onnx.load(report.path)
    onnx.checker.check_model(model, full_check=True)
    (attribute,) = [a for a in model.graph.node[0].attribute if a.name == "compute"]
    attribute.CopyFrom(helper.make_attribute("compute", 16.0))
    with pytest.raises(onnx.checker.ValidationError, match="compute"):
        onnx.checker.check_model(model)
