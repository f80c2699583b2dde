"""Pruned ONNX files: which weights stay, for every operator that reads a weight."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from fanin.export import ExportError, convert, prune
from fanin.export.magnitude import largest_per_row
from fanin.trainer import prune_

from .onnx_models import node, node_types, run, write_model

RNG = np.random.default_rng(0)


def dense(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def rows_kept(rows: np.ndarray, before: np.ndarray, fan_in: int) -> None:
    """Each row keeps its largest entries as they were, and no others."""
    assert rows.shape == before.shape
    for row, old in zip(rows, before, strict=True):
        wanted = set(np.argsort(-np.abs(old), kind="stable")[:fan_in])
        assert set(np.flatnonzero(row)) == wanted
        assert all(row[at] == old[at] for at in wanted)


def weights_of(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_each_row_keeps_its_largest_weights_as_torch_has_it():
    weight = RNG.integers(-9, 10, (20, 37)).astype(np.float32)  # with equal ones
    mask = largest_per_row(weight, 5)
    assert (mask.sum(axis=1) == 5).all()
    layer = torch.nn.Linear(37, 20)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
    pruned = prune_(layer, 1 - 5 / 37)
    assert np.array_equal(pruned.masks["weight"].numpy(), mask)


LAYOUTS = {
    "MatMul": (("MatMul", ["x", "w"], {}), (64, 24), ("batch", 64), lambda w: w.T),
    "Gemm": (("Gemm", ["x", "w"], {}), (64, 24), ("batch", 64), lambda w: w.T),
    "Gemm transposed": (("Gemm", ["x", "w"], {"transB": 1}), (24, 64), ("batch", 64), lambda w: w),
    "left operand": (("MatMul", ["w", "x"], {}), (24, 64), ("batch", 64, 3), lambda w: w),
    "experts": (
        ("MatMul", ["x", "w"], {}),
        (2, 48, 24),
        (2, "batch", 48),
        lambda w: w.swapaxes(1, 2).reshape(48, 48),
    ),
    "Einsum": (
        ("Einsum", ["x", "w"], {"equation": "bti,ihd->bthd"}),
        (64, 4, 6),
        ("batch", 5, 64),
        lambda w: w.reshape(64, 24).T,
    ),
    "Conv": (
        ("Conv", ["x", "w"], {}),
        (16, 8, 3, 3),
        ("batch", 8, 9, 9),
        lambda w: w.reshape(16, -1),
    ),
    "grouped Conv": (
        ("Conv", ["x", "w"], {"group": 2}),
        (32, 4, 3, 3),
        ("batch", 8, 9, 9),
        lambda w: w.reshape(32, -1),
    ),
    "ConvTranspose": (
        ("ConvTranspose", ["x", "w"], {"group": 2}),
        (16, 8, 3, 3),
        ("batch", 16, 9, 9),
        lambda w: w.reshape(2, 8, 8, 9).swapaxes(1, 2).reshape(16, -1),
    ),
    "ConvTranspose of stride 2": (  # pixels of odd and even rows and columns have their own taps
        ("ConvTranspose", ["x", "w"], {"group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        (32, 8, 4, 4),
        ("batch", 32, 9, 9),
        lambda w: np.stack(
            [
                w[16 * group : 16 * group + 16, out, row::2, column::2].ravel()
                for group in range(2)
                for out in range(8)
                for row in range(2)
                for column in range(2)
            ]
        ),
    ),
    "ConvTranspose of one axis": (
        ("ConvTranspose", ["x", "w"], {"strides": [3]}),
        (32, 8, 6),
        ("batch", 32, 9),
        lambda w: np.stack([w[:, out, tap::3].ravel() for out in range(8) for tap in range(3)]),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_every_operator_are_those_that_the_conversion_stores(tmp_path: Path, layout: str):
    (op, inputs, attributes), shape, x, rows = LAYOUTS[layout]
    weight = dense(*shape)
    source = write_model(
        tmp_path / "in.onnx", [node(op, inputs, **attributes)], {"w": weight}, x=x, y=None
    )
    report = prune(source, tmp_path / "out.onnx", 0.75)
    (layer,) = report.layers
    inputs_of_row = rows(weight).shape[1]
    assert (layer.fan_in, layer.pruned, layer.name) == (inputs_of_row // 4, True, "w")
    assert layer.sparsity == pytest.approx(1 - layer.fan_in / inputs_of_row)
    rows_kept(rows(weights_of(tmp_path / "out.onnx")["w"]), rows(weight), layer.fan_in)
    converted = convert(tmp_path / "out.onnx", tmp_path / "fast.onnx", policy="condensed")
    assert {(x.decision, x.padding, x.fan_in) for x in converted.layers} == {
        ("condensed", 0, layer.fan_in)
    }


def test_a_weight_behind_other_operators_is_stored_pruned(tmp_path: Path):
    weight = dense(24, 64)
    nodes = [
        node("Cast", ["w"], "wide", to=TensorProto.FLOAT),
        node("Transpose", ["wide"], "turned", perm=[1, 0]),
        node("MatMul", ["x", "turned"]),
    ]
    arrays = {"w": weight.astype(np.float16)}
    source = write_model(tmp_path / "in.onnx", nodes, arrays, x=("batch", 64), y=None)
    prune(source, tmp_path / "out.onnx", 0.9)
    assert node_types(tmp_path / "out.onnx") == ["MatMul"]
    stored = weights_of(tmp_path / "out.onnx")["w"]
    rows_kept(stored.T, weight.astype(np.float16).astype(np.float32), 6)


def test_a_constant_of_two_readers_is_pruned_once_and_one_that_is_tied_stays_whole(tmp_path: Path):
    tied, shared = dense(40, 64), dense(64, 64)
    constant = helper.make_node(
        "Constant", [], ["c"], name="c", value=numpy_helper.from_array(shared)
    )
    nodes = [
        constant,
        node("Gather", ["tied", "x"], "e"),
        node("MatMul", ["e", "c"], "a"),
        node("MatMul", ["a", "c"], "b"),
        node("Transpose", ["tied"], "turned", perm=[1, 0]),
        node("MatMul", ["b", "turned"]),
    ]
    source = write_model(
        tmp_path / "in.onnx",
        nodes,
        {"tied": tied},
        x=("batch",),
        y=("batch", 40),
        elem_type=TensorProto.INT64,
    )
    # The output is of another type than the input.
    model = onnx.load(source)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(model, source)
    report = prune(source, tmp_path / "out.onnx", 0.9)
    assert [layer.pruned for layer in report.layers] == [True, True]
    assert report.notes == ("tied stays whole for what else reads it, beside tied_pruned",)
    stored = weights_of(tmp_path / "out.onnx")
    assert np.array_equal(stored["tied"], tied)
    rows_kept(stored["tied_pruned"].T, tied, 6)
    rows_kept(stored["c"].T, shared.T, 6)
    tokens = np.arange(5)
    expected = tied[tokens] @ stored["c"] @ stored["c"] @ stored["tied_pruned"]
    assert np.allclose(run(tmp_path / "out.onnx", x=tokens)[0], expected, rtol=1e-4, atol=1e-4)


def small_network(tmp_path: Path) -> Path:
    nodes = [
        node("Conv", ["x", "stem"], "a"),
        node("Flatten", ["a"], "f"),
        node("MatMul", ["f", "onnx::MatMul_7"], "h"),
        node("MatMul", ["h", "head.weight"]),
    ]
    arrays = {
        "stem": dense(48, 3, 3, 3),
        "onnx::MatMul_7": dense(48, 128),
        "head.weight": dense(128, 10),
    }
    return write_model(tmp_path / "in.onnx", nodes, arrays, x=("batch", 3, 3, 3), y=("batch", 10))


def test_short_rows_and_named_layers_stay_dense_and_the_report_says_why(tmp_path: Path):
    source = small_network(tmp_path)
    report = prune(source, tmp_path / "out.onnx", 0.8, dense_layers=["head*"])
    lines = {layer.name: layer.reason for layer in report.layers}
    assert lines == {
        "stem": "its rows have 27 inputs, fewer than 32",
        "MatMul_h": "",  # the weight's name says nothing
        "head.weight": "dense_layers names it",
    }
    assert "unchanged: dense_layers names it" in str(report)
    before, after = weights_of(source), weights_of(tmp_path / "out.onnx")
    assert np.array_equal(before["head.weight"], after["head.weight"])
    with pytest.raises(ExportError, match="no layer that can be pruned is named 'tail'"):
        prune(source, tmp_path / "no.onnx", 0.8, dense_layers=["tail"])
    assert not (tmp_path / "no.onnx").exists()


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_rows_of_recurrent_weights_are_those_of_each_gate(tmp_path: Path, op: str, gates: int):
    w, r = dense(2, gates * 64, 40), dense(2, gates * 64, 64)
    recurrent = node(op, ["x", "w", "r"], direction="bidirectional", hidden_size=64)
    source = write_model(
        tmp_path / "in.onnx", [recurrent], {"w": w, "r": r}, x=(5, "batch", 40), y=None
    )
    report = prune(source, tmp_path / "out.onnx", 0.9)
    assert {layer.name: layer.fan_in for layer in report.layers} == {"w": 4, "r": 6}
    stored = weights_of(tmp_path / "out.onnx")
    for name, before, fan_in in (("w", w, 4), ("r", r, 6)):
        size = before.shape[-1]
        rows_kept(stored[name].reshape(-1, size), before.reshape(-1, size), fan_in)


def test_what_no_export_condenses_is_left_with_the_reason(tmp_path: Path):
    nodes = [
        node("MatMul", ["x", "input"], "a"),
        node("MatMul", ["a", "wide"], "b"),
        node("Cast", ["b"], "c", to=TensorProto.DOUBLE),
        node("MatMul", ["c", "double"], "d"),
        node("Cast", ["d"], "e", to=TensorProto.FLOAT),
        node("MatMul", ["e", "batched"], "f"),
        node("DequantizeLinear", ["bytes", "scale"], "weight"),
        node("MatMul", ["f", "weight"], "g"),
        node("MatMul", ["g", "last"]),
    ]
    arrays = {
        "input": dense(64, 64),
        "wide": dense(64, 64),
        "double": dense(64, 64).astype(np.float64),
        "batched": dense(3, 64, 64),
        "bytes": RNG.integers(-9, 9, (64, 64)).astype(np.int8),
        "scale": np.float32(0.1),
        "last": np.full((64, 64), np.nan, np.float32),
    }
    default = helper.make_tensor_value_info("input", TensorProto.FLOAT, [64, 64])
    source = write_model(
        tmp_path / "in.onnx", nodes, arrays, x=("batch", 64), y=None, inputs=[default]
    )
    report = prune(source, tmp_path / "out.onnx", 0.5)
    assert {layer.name: layer.reason for layer in report.layers} == {
        "wide": "",
        "last": "it holds values that are not finite",
        "input": "input is a graph input, which a caller can replace; if none does, take it out of "
        "the inputs with onnxruntime.tools.remove_initializer_from_input",
        "double": "it is float64, which no kernel computes in",
        "batched": "",
        "bytes": "it is quantized; prune the float model before that",
    }


def test_a_weight_in_a_branch_is_pruned_where_it_stands(tmp_path: Path):
    weight, outer = dense(64, 48), dense(64, 48)
    branches = [
        helper.make_graph(
            [node("MatMul", ["x", name], f"y_{name}")],
            name,
            [],
            [helper.make_tensor_value_info(f"y_{name}", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(weight, "inner")] if name == "inner" else [],
        )
        for name in ("inner", "outer")
    ]
    choice = helper.make_node(
        "If", ["flag"], ["y"], then_branch=branches[0], else_branch=branches[1]
    )
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    source = write_model(
        tmp_path / "in.onnx", [choice], {"outer": outer}, x=("batch", 64), y=None, inputs=[flag]
    )
    report = prune(source, tmp_path / "out.onnx", 0.75)
    assert {layer.name: layer.fan_in for layer in report.layers} == {"inner": 16, "outer": 16}
    x = np.eye(64, dtype=np.float32)
    for value, old in ((True, weight), (False, outer)):
        (got,) = run(tmp_path / "out.onnx", x=x, flag=np.array(value))
        rows_kept(got.T, old.T, 16)


def test_erk_keeps_more_of_small_layers_and_as_much_overall(tmp_path: Path):
    report = prune(small_network(tmp_path), tmp_path / "out.onnx", 0.8, distribution="erk")
    large, small = (layer for layer in report.layers if layer.pruned)
    assert small.sparsity < large.sparsity
    kept = sum((1 - x.sparsity) * np.prod(x.shape) for x in (large, small))
    assert kept == pytest.approx(0.2 * (48 * 128 + 128 * 10), rel=0.05)


def test_what_is_sparse_enough_stays_as_it_is(tmp_path: Path):
    source = small_network(tmp_path)
    prune(source, tmp_path / "a.onnx", 0.8)
    with pytest.raises(ExportError, match="sparse already, with at most 9 weights in a row"):
        prune(tmp_path / "a.onnx", tmp_path / "b.onnx", 0.8)


def test_one_name_instead_of_a_list_is_refused(tmp_path: Path):
    with pytest.raises(TypeError, match=r"write \['head\*'\]"):
        prune(small_network(tmp_path), tmp_path / "out.onnx", 0.8, dense_layers="head*")
    with pytest.raises(TypeError, match=r"write \['0'\]"):
        prune_(torch.nn.Sequential(torch.nn.Linear(64, 64)), 0.8, dense_layers="0")


def test_taps_of_unequal_number_stay_dense(tmp_path: Path):
    nodes = [
        node("ConvTranspose", ["x", "up"], "a", strides=[2, 2]),
        node("Flatten", ["a"], "b"),
        node("MatMul", ["b", "w"]),
    ]
    arrays = {"up": dense(64, 8, 3, 3), "w": dense(8 * 81, 16)}
    source = write_model(tmp_path / "in.onnx", nodes, arrays, x=("batch", 64, 4, 4), y=None)
    lines = {layer.name: layer.reason for layer in prune(source, tmp_path / "o.onnx", 0.5).layers}
    assert lines["w"] == ""
    assert "stride does not divide its kernel" in lines["up"]


@pytest.mark.parametrize(
    ("sparsity", "match"), [(1.0, "below 1"), (0.0, "above 0"), (0.999, "largest feasible")]
)
def test_a_sparsity_that_cannot_be_is_refused(tmp_path: Path, sparsity: float, match: str):
    with pytest.raises(ValueError, match=match):
        prune(small_network(tmp_path), tmp_path / "out.onnx", sparsity)
    assert not (tmp_path / "out.onnx").exists()
