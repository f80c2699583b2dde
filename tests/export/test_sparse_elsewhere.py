"""Sparse weights are condensed or named: computed ones, and those of other operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn.utils import parametrizations, prune
from typer.testing import CliRunner

from fanin.cli import app
from fanin.export import ExportError, ExportReport, convert, export
from fanin.export.onnx_convert import plan_conversion
from fanin.export.passes import constants
from fanin.export.passes.elsewhere import LEAST_ENTRIES

IN, OUT = 96, 64


def weight(*shape: int, sparsity: float = 0.9, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < sparsity, 0, rng.standard_normal(shape)).astype(np.float32)


def write(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, np.ndarray],
    x_shape: Sequence[int | str] = ("batch", IN),
    imports: Sequence[str] = (),
) -> Path:
    arrays = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], arrays)
    opsets = [helper.make_opsetid("", 18), *(helper.make_opsetid(name, 1) for name in imports)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def node(op: str, inputs: str, output: str = "y", **attributes) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


GEMM = node("Gemm", "x w b", transB=1)
BIAS = np.zeros(OUT, np.float32)
DENSE = weight(OUT, IN, sparsity=0, seed=1)
MASK = weight(OUT, IN) != 0

COMPUTED = {
    "pruned": (
        [node("Mul", "mask orig", "w"), GEMM],
        {"mask": MASK.astype(np.float32), "orig": DENSE},
    ),
    "mask of booleans": (
        [node("Cast", "mask", "m", to=1), node("Mul", "orig m", "w"), GEMM],
        {"mask": MASK, "orig": DENSE},
    ),
    "chosen": (
        [node("Where", "mask orig none", "w"), GEMM],
        {"mask": MASK, "orig": DENSE, "none": np.float32(0)},
    ),
    "weight norm": (
        [
            node("ReduceL2", "v axes", "norm"),
            node("Div", "g norm", "factor"),
            node("Mul", "factor v", "w"),
            GEMM,
        ],
        {"v": weight(OUT, IN), "axes": np.array([1]), "g": np.ones((OUT, 1), np.float32)},
    ),
    "spectral norm": (
        [
            node("MatMul", "v right", "wu"),
            node("MatMul", "left wu", "sigma"),
            node("Div", "v sigma", "w"),
            GEMM,
        ],
        {
            "v": weight(OUT, IN),
            "right": np.ones(IN, np.float32),
            "left": np.ones(OUT, np.float32),
        },
    ),
    "two halves": (
        [node("Concat", "upper lower", "w", axis=0), GEMM],
        {"upper": weight(OUT // 2, IN), "lower": weight(OUT // 2, IN, seed=2)},
    ),
    "scaled and transposed": (
        [node("Mul", "v scale", "s"), node("Transpose", "s", "w"), GEMM],
        {"v": weight(IN, OUT), "scale": np.float32(0.25)},
    ),
}


@pytest.mark.parametrize("case", COMPUTED)
def test_weight_computed_from_constants_is_condensed(tmp_path: Path, case: str):
    nodes, constants = COMPUTED[case]
    source = write(tmp_path / "in.onnx", nodes, {**constants, "b": BIAS})
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    (layer,) = report.layers
    assert layer.decision == "condensed"
    assert layer.sparsity == pytest.approx(0.9, abs=0.02)
    # Nothing of the dense form stays in the file.
    assert report.file_bytes < 0.5 * source.stat().st_size
    assert not [one for one in onnx.load(tmp_path / "out.onnx").graph.node if one.op_type == "Mul"]


def test_convolution_of_a_pruned_weight_is_condensed(tmp_path: Path):
    constants = {"mask": weight(16, 8, 3, 3) != 0, "orig": weight(16, 8, 3, 3, sparsity=0)}
    nodes = [node("Where", "mask orig none", "w"), node("Conv", "x w", pads=[1] * 4)]
    source = write(
        tmp_path / "in.onnx",
        nodes,
        {**constants, "none": np.float32(0)},
        x_shape=("batch", 8, 6, 6),
    )
    (layer,) = convert(source, tmp_path / "out.onnx", policy="condensed").layers
    assert (layer.decision, layer.name) == ("condensed", "orig")


def test_product_with_activations_is_no_weight(tmp_path: Path):
    nodes = [node("Mul", "x mask", "m"), node("MatMul", "m w")]
    constants = {"mask": weight(40, IN), "w": weight(IN, OUT)}
    source = write(tmp_path / "in.onnx", nodes, constants, x_shape=(40, IN))
    (layer,) = convert(source, tmp_path / "out.onnx", policy="condensed").layers
    assert layer.name == "w"


def test_more_numbers_than_memory_allows_are_not_computed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(constants, "_MOST_COMPUTED", 4000)
    nodes = [node("MatMul", "left right", "w"), GEMM]
    arrays = {"left": weight(OUT, 2), "right": weight(2, IN), "b": BIAS}
    source = write(tmp_path / "in.onnx", nodes, arrays)
    (layer,) = convert(source, tmp_path / "out.onnx", policy="condensed").layers
    assert layer.reason == "MatMul of constants of 64×2 and 2×96 before it makes too many numbers"


def test_long_and_forked_chains_of_constants_are_followed_once(tmp_path: Path):
    names = [f"c{at}" for at in range(601)]
    nodes = [
        node("Max", f"{a} {a}", b) if at < 60 else node("Identity", a, b)
        for at, (a, b) in enumerate(pairwise(names))
    ]
    nodes.append(node("Gemm", "x c600 b", transB=1))
    source = write(tmp_path / "in.onnx", nodes, {"c0": weight(OUT, IN), "b": BIAS})
    (layer,) = convert(source, tmp_path / "out.onnx", policy="condensed").layers
    assert layer.reason == "by its zeros, behind Max and Identity"


def test_constants_of_a_branch_do_not_stay_behind(tmp_path: Path):
    def branch(name: str) -> onnx.GraphProto:
        arrays = {f"{name}_w": weight(OUT, IN), f"{name}_m": MASK.astype(np.float32)}
        return helper.make_graph(
            [
                node("Mul", f"{name}_w {name}_m", f"{name}_k"),
                node("Transpose", f"{name}_k", f"{name}_t"),
                node("MatMul", f"x {name}_t", f"{name}_y"),
            ],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(v, k) for k, v in arrays.items()],
        )

    choose = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("one"), else_branch=branch("two")
    )
    source = write(tmp_path / "in.onnx", [choose], {"c": np.array(True)})
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert len(report.condensed_layers) == 2
    model = onnx.load(tmp_path / "out.onnx")
    (kept,) = [one for one in model.graph.node if one.op_type == "If"]
    for attribute in kept.attribute:
        names = {one.name for one in attribute.g.initializer}
        assert not {name for name in names if name.endswith(("_w", "_m"))}


class Pruned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(IN, OUT), nn.Linear(OUT, 10)
        prune.random_unstructured(self.first, "weight", 0.9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def test_module_that_torch_prunes_is_condensed_without_prune_remove(tmp_path: Path):
    torch.manual_seed(0)
    report = export(Pruned(), torch.randn(2, IN), tmp_path / "out.onnx", policy="condensed")
    (layer,) = report.condensed_layers
    assert layer.name.startswith("first.weight")
    assert layer.sparsity == pytest.approx(0.9, abs=0.01)


def test_file_that_torch_wrote_of_a_pruned_module_is_condensed(tmp_path: Path):
    path = tmp_path / "in.onnx"
    example = (torch.randn(2, IN),)
    torch.onnx.export(Pruned().eval(), example, path, dynamo=True, optimize=False, verbose=False)
    report = convert(path, tmp_path / "out.onnx", policy="condensed")
    assert len(report.condensed_layers) == 1


def test_module_with_weight_norm_is_condensed(tmp_path: Path):
    torch.manual_seed(0)
    layer = nn.Linear(IN, OUT)
    layer.weight.data *= torch.rand_like(layer.weight) < 0.1
    model = nn.Sequential(parametrizations.weight_norm(layer))
    report = export(model, torch.randn(2, IN), tmp_path / "out.onnx", policy="condensed")
    assert len(report.condensed_layers) == 1


RNN = node("RNN", "x W R", "y", hidden_size=OUT)
GATES = {"W": weight(1, OUT, IN), "R": weight(1, OUT, OUT)}


def elsewhere(path: Path, **options) -> ExportReport:
    source = write(path / "in.onnx", [RNN], GATES, x_shape=(5, 2, IN))
    return convert(source, path / "out.onnx", **options)


def test_sparse_weight_of_another_operator_is_named(tmp_path: Path):
    report = elsewhere(tmp_path)
    assert [(layer.name, layer.kind, layer.decision) for layer in report.layers] == [
        ("W", "RNN", "dense"),
        ("R", "RNN", "dense"),
    ]
    assert report.layers[0].reason == "RNN reads it, which is not condensed"
    assert plan_conversion(tmp_path / "in.onnx") == report.layers


def test_layer_with_a_thousand_scales_has_one_line(tmp_path: Path):
    rng = np.random.default_rng(0)
    integers = rng.integers(1, 100, (LEAST_ENTRIES, 8)).astype(np.int8)
    integers[rng.random(integers.shape) < 0.9] = 0
    arrays = {
        "q": integers,
        "scale": np.full(LEAST_ENTRIES, 0.01, np.float32),
        "zero": np.zeros(LEAST_ENTRIES, np.int8),
        "x_scale": np.float32(0.1),
        "x_zero": np.int8(0),
    }
    nodes = [
        node("QuantizeLinear", "x x_scale x_zero", "xq"),
        node("DequantizeLinear", "xq x_scale x_zero", "xd"),
        node("DequantizeLinear", "q scale zero", "w", axis=0),
        node("Gemm", "xd w", "y", transB=1),
    ]
    source = write(tmp_path / "in.onnx", nodes, arrays, x_shape=("batch", 8))
    (layer,) = convert(source, tmp_path / "out.onnx", policy="dense").layers
    assert (layer.name, layer.reason) == ("q", "policy dense, 8 bits as it was")


def test_operator_of_another_domain_is_named_with_it(tmp_path: Path):
    fused = node("TransposeMatMul", "x w", domain="com.microsoft")
    source = write(tmp_path / "in.onnx", [fused], {"w": weight(IN, OUT)}, imports=["com.microsoft"])
    model = onnx.load(source)
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "batch"
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = OUT
    onnx.save(model, source)
    (layer,) = convert(source, tmp_path / "out.onnx").layers
    assert layer.reason == (
        "com.microsoft::TransposeMatMul reads it, which is not condensed; convert the file as it "
        "was before ONNX Runtime optimized or quantized it"
    )


@pytest.mark.parametrize(
    ("nodes", "arrays"),
    [
        ([node("Where", "mask dense none", "W")], {"mask": GATES["W"] != 0, "none": np.float32(0)}),
        ([node("Sigmoid", "s", "g"), node("Mul", "sparse g", "W")], {"s": np.float32(1)}),
        ([node("Reshape", "flat size", "W")], {"size": np.array(GATES["W"].shape)}),
    ],
    ids=["mask", "gate", "flat"],
)
def test_computed_weight_of_another_operator_is_named(tmp_path: Path, nodes, arrays):
    dense = np.where(GATES["W"] == 0, 1, GATES["W"]).astype(np.float32)
    given = {"dense": dense, "sparse": GATES["W"], "flat": GATES["W"].reshape(-1)}
    read = {name for one in nodes for name in one.input}
    given = {name: array for name, array in given.items() if name in read}
    source = write(
        tmp_path / "in.onnx",
        [*nodes, RNN],
        {**arrays, **given, "R": weight(1, OUT, OUT, sparsity=0)},
        x_shape=(5, 2, IN),
    )
    (layer,) = convert(source, tmp_path / "out.onnx").layers
    assert (layer.kind, layer.shape) == ("RNN", GATES["W"].shape)
    assert layer.sparsity == pytest.approx(0.9, abs=0.02)


def test_model_without_sparse_weights_says_which_comes_closest(tmp_path: Path):
    constants = {"w": weight(OUT, IN, sparsity=0.12), "b": BIAS}
    source = write(tmp_path / "in.onnx", [GEMM], constants)
    report = convert(source, tmp_path / "out.onnx")
    sparsity = 1 - np.count_nonzero(constants["w"]) / constants["w"].size
    wanted = f"no sparse weights found; the sparsest is w at {sparsity:.0%}"
    assert wanted in report.notes
    assert wanted in CliRunner().invoke(app, ["inspect", str(source)]).output
    torch.manual_seed(0)
    report = export(nn.Linear(IN, OUT), torch.randn(2, IN), tmp_path / "torch.onnx")
    assert "no sparse weights found; the sparsest is weight at 0%" in report.notes


def test_model_without_weights_says_so(tmp_path: Path):
    source = write(tmp_path / "in.onnx", [node("Relu", "x")], {})
    assert "no weights found" in convert(source, tmp_path / "out.onnx").notes


def test_sparse_layers_can_be_required(tmp_path: Path):
    with pytest.raises(ExportError, match=r"stays dense.*W \(90%\): RNN reads it.*nothing was"):
        elsewhere(tmp_path, require_sparse=True)
    assert not (tmp_path / "out.onnx").exists()
    with pytest.raises(ExportError, match="every layer stays dense"):
        export(nn.Linear(IN, OUT), torch.randn(2, IN), tmp_path / "out.onnx", require_sparse=True)
    source = write(tmp_path / "sparse.onnx", [GEMM], {"w": weight(OUT, IN), "b": BIAS})
    sparse = {"policy": "condensed", "require_sparse": True}
    convert(source, tmp_path / "out.onnx", **sparse)
    again = convert(tmp_path / "out.onnx", tmp_path / "again.onnx", **sparse)
    assert again.notes == ("the source holds 1 condensed node already",)
    dense = {"policy": "dense", "verify": False}
    note = convert(tmp_path / "out.onnx", tmp_path / "again.onnx", **dense).notes[0]
    assert "holds 1 condensed node already, of which 1 became dense (" in note
    assert note.endswith(": policy dense)")
    with pytest.raises(ExportError, match=r"every layer stays dense.*of which 1 became dense"):
        convert(tmp_path / "out.onnx", tmp_path / "again.onnx", require_sparse=True, **dense)
    command = ["export", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "y.onnx")]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert CliRunner().invoke(app, [*command, "--require-sparse"]).exit_code == 1


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """A chain of operators of square weights, each sparse or not, some computed or of others."""
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, np.ndarray] = {}
    value, size = "x", 48
    for at in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["MatMul", "Gemm", "Einsum", "left", "Mul", "masked", "RNN"]))
        sparsity = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
        name, out = f"w{at}", f"v{at}"
        constants[name] = weight(size, size, sparsity=sparsity, seed=at)
        if kind == "Einsum":
            nodes.append(node("Einsum", f"{value} {name}", out, equation="bi,oi->bo"))
        elif kind == "left":
            nodes.append(node("MatMul", f"{name} {value}", out))
        elif kind == "masked":
            constants[f"m{at}"] = (weight(size, size, seed=9) != 0).astype(np.float32)
            nodes += [node("Mul", f"{name} m{at}", f"k{at}"), node("MatMul", f"{value} k{at}", out)]
        elif kind == "RNN":
            constants[f"axis{at}"] = np.array([0])
            constants[name] = weight(1, size, size, sparsity=sparsity, seed=at)
            constants[f"r{at}"] = weight(1, size, size, sparsity=0, seed=at)
            nodes += [
                node("Unsqueeze", f"{value} axis{at}", f"s{at}"),
                helper.make_node(
                    "RNN", [f"s{at}", name, f"r{at}"], ["", f"h{at}"], hidden_size=size
                ),
                node("Squeeze", f"h{at} axis{at}", out),
            ]
        else:
            nodes.append(node(kind, f"{value} {name}", out))
        value = out
    nodes.append(node("Identity", value))
    return nodes, constants


@settings(max_examples=25, deadline=None)
@given(graph=graphs())
def test_every_sparse_constant_is_accounted_for(tmp_path_factory: pytest.TempPathFactory, graph):
    nodes, constants = graph
    source = write(tmp_path_factory.mktemp("g") / "in.onnx", nodes, constants, x_shape=(48, 48))
    layers = {layer.name: layer for layer in plan_conversion(source, policy="condensed")}
    masks = {name for one in nodes for name in one.input if name.startswith("m")}
    tables = {one.input[1] for one in nodes if one.op_type == "Mul" and one.output[0][0] == "v"}
    for name, array in constants.items():
        if array.ndim < 2 or np.count_nonzero(array) > 0.5 * array.size:
            continue
        assert name in layers or name in masks | tables, name
        if name in layers:
            assert layers[name].reason
