"""Folding of ablated neurons: the same outputs, fewer of everything; and where it must stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

from fanin.export import convert, export
from fanin.export.onnx_inspect import condensed_weights
from fanin.export.passes.condense import CondensePass
from fanin.export.passes.fold_ablated import FoldAblatedPass

from .onnx_models import write_model

UNARY = {
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Gelu": nn.functional.gelu,
    "Softplus": nn.functional.softplus,
    "HardSwish": nn.functional.hardswish,
    "Elu": nn.functional.elu,
}


class Net:
    """A random network, made as a graph and computed in torch in float64 at the same time."""

    def __init__(self, seed: int, width: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.x = self.rng.standard_normal((5, width)).astype(np.float32)
        self.name, self.width = "x", width
        self.value = torch.from_numpy(self.x).double()
        self.before: tuple[str, torch.Tensor] | None = None

    def constant(self, array: np.ndarray) -> tuple[str, torch.Tensor]:
        name = f"c{len(self.arrays)}"
        self.arrays[name] = array.astype(np.float32)
        return name, torch.from_numpy(self.arrays[name]).double()

    def emit(self, op: str, inputs: list[str], value: torch.Tensor, **attributes) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, inputs, [name], name=f"n{len(self.nodes)}", **attributes)
        )
        self.name, self.value, self.width = name, value, value.shape[-1]

    def linear(self, width: int, ablated: float, gemm: bool) -> None:
        self.before = (self.name, self.value)
        mask = self.rng.random((width, self.width)) < 0.3
        mask[self.rng.random(width) < ablated] = False
        name, weight = self.constant(self.rng.standard_normal(mask.shape) * mask)
        bias_name, bias = self.constant(self.rng.standard_normal(width))
        value = self.value @ weight.T + bias
        if gemm:
            self.emit("Gemm", [self.name, name, bias_name], value, transB=1)
        else:
            self.arrays[name] = np.ascontiguousarray(self.arrays[name].T)
            self.emit("MatMul", [self.name, name], value - bias)
            self.emit("Add", [self.name, bias_name], value)

    def unary(self, op: str) -> None:
        self.emit(op, [self.name], UNARY[op](self.value))

    def silu(self) -> None:
        name, value = self.name, self.value
        self.emit("Sigmoid", [name], torch.sigmoid(value))
        self.emit("Mul", [name, self.name], value * self.value)

    def per_feature(self, op: str) -> None:
        size = self.width if self.rng.random() < 0.7 else 1
        name, constant = self.constant(self.rng.standard_normal(size))
        value = self.value + constant if op == "Add" else self.value * constant
        self.emit(op, [self.name, name], value)

    def batch_norm(self) -> None:
        names, parts = zip(
            *(self.constant(np.abs(self.rng.standard_normal(self.width)) + 0.5) for _ in range(4)),
            strict=True,
        )
        scale, shift, mean, var = parts
        value = (self.value - mean) / torch.sqrt(var + 1e-5) * scale + shift
        self.emit("BatchNormalization", [self.name, *names], value)

    def layer_norm(self) -> None:
        (scale_name, scale), (shift_name, shift) = (
            self.constant(self.rng.standard_normal(self.width)) for _ in range(2)
        )
        value = nn.functional.layer_norm(self.value, (self.width,), scale, shift)
        self.emit("LayerNormalization", [self.name, scale_name, shift_name], value)

    def residual(self) -> None:
        if self.before is not None and self.before[1].shape == self.value.shape:
            name, value = self.before
            self.emit("Add", [self.name, name], self.value + value)

    def concat(self) -> None:
        if self.before is not None:
            name, value = self.before
            self.emit("Concat", [self.name, name], torch.cat([self.value, value], 1), axis=1)

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", self.x.shape[1]])],
            [helper.make_tensor_value_info(self.name, TensorProto.FLOAT, ["batch", self.width])],
            [numpy_helper.from_array(array, name) for name, array in self.arrays.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model)


STEPS = st.one_of(
    st.sampled_from([f"unary {op}" for op in UNARY]),
    st.sampled_from(["silu", "add", "mul", "batch_norm", "layer_norm", "residual", "concat"]),
    st.sampled_from(["gemm", "matmul"]),
)


def build(seed: int, width: int, steps: list[str]) -> Net:
    net = Net(seed, width)
    net.linear(12, 0.4, gemm=True)
    for step in [*steps, "gemm"]:
        match step.split():
            case ["unary", op]:
                net.unary(op)
            case [("add" | "mul") as op]:
                net.per_feature(op.capitalize())
            case [("gemm" | "matmul") as op]:
                net.linear(12, 0.3, gemm=op == "gemm")
            case [other]:
                getattr(net, other)()
    return net


def check_fold(seed: int, width: int, steps: list[str], threshold: float) -> None:
    net = build(seed, width, steps)
    model = ir.serde.deserialize_model(net.model())
    CondensePass(min_sparsity=threshold)(model)
    FoldAblatedPass()(model)
    from fanin.export.passes.attach_functions import AttachFunctionsPass

    AttachFunctionsPass()(model)
    proto = ir.serde.serialize_model(model)
    onnx.checker.check_model(proto)
    (actual,) = ReferenceEvaluator(proto).run(None, {"x": net.x})
    expected = net.value.numpy()
    # Roundings of float32 grow with the values on the way, not with the final ones alone.
    scale = max(np.abs(expected).max(), 1)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-4 * scale)


RANDOM_NET = {
    "seed": st.integers(0, 2**32 - 1),
    "width": st.integers(1, 9),
    "steps": st.lists(STEPS, max_size=6),
    # Above what the layers have, some stay dense: the pass also narrows dense layers.
    "threshold": st.sampled_from([0.0, 0.5, 0.78]),
}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(**RANDOM_NET)
def test_folded_network_computes_what_torch_does(seed, width, steps, threshold):
    check_fold(seed, width, steps, threshold)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(**RANDOM_NET)
def test_folded_network_computes_what_torch_does_500_times(seed, width, steps, threshold):
    check_fold(seed, width, steps, threshold)


def ablated_pair(*between: onnx.NodeProto, arrays: dict | None = None) -> dict:
    """Two sparse layers, of which the first has 8 of 24 neurons ablated, with nodes between."""
    rng = np.random.default_rng(2)
    first = rng.standard_normal((24, 10)) * (rng.random((24, 10)) < 0.3)
    first[:8], first[8:, 0] = 0, 1
    second = rng.standard_normal((6, 24)) * (rng.random((6, 24)) < 0.3)
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"], name="first", transB=1),
        *between,
        helper.make_node("Gemm", ["b", "w2"], ["y"], name="second", transB=1),
    ]
    constants = {
        "w1": first.astype(np.float32),
        "b1": rng.standard_normal(24).astype(np.float32),
        "w2": second.astype(np.float32),
    }
    return {"nodes": nodes, "arrays": constants | (arrays or {})}


def converted(tmp_path: Path, pair: dict, **fields):
    source = write_model(
        tmp_path / "in.onnx",
        pair["nodes"],
        pair["arrays"],
        x=("batch", 10),
        y=("batch", 6),
        opset=20,
        ir_version=9,
        **fields,
    )
    return convert(source, tmp_path / "out.onnx", policy="condensed")


GELU = helper.make_node("Gelu", ["a"], ["b"], name="gelu")


def test_folded_layers_are_smaller_and_the_bias_holds_the_constants(tmp_path: Path):
    pair = ablated_pair(GELU)
    report = converted(tmp_path, pair)
    assert report.folded == ("8 ablated neurons of w1",)
    weights = condensed_weights(tmp_path / "out.onnx")
    assert (weights["first"].out_features, weights["first"].active) == (16, 16)
    assert weights["second"].in_features == 16
    constants = nn.functional.gelu(torch.from_numpy(pair["arrays"]["b1"][:8]).double()).numpy()
    expected = pair["arrays"]["w2"][:, :8].astype(np.float64) @ constants
    np.testing.assert_allclose(weights["second"].bias, expected, rtol=1e-6)
    (hidden,) = (v for v in onnx.load(tmp_path / "out.onnx").graph.value_info if v.name == "a")
    assert hidden.type.tensor_type.shape.dim[1].dim_value == 16


def test_constants_of_each_feature_are_cut_as_well(tmp_path: Path):
    scale = np.linspace(0.5, 2, 24, dtype=np.float32)
    pair = ablated_pair(
        helper.make_node("Mul", ["a", "scale"], ["b"], name="mul"), arrays={"scale": scale}
    )
    assert converted(tmp_path, pair).folded == ("8 ablated neurons of w1",)
    graph = onnx.load(tmp_path / "out.onnx").graph
    (active,) = (t for t in graph.initializer if t.name == "scale.active")
    np.testing.assert_array_equal(numpy_helper.to_array(active), scale[8:])


STOPS = {
    "LayerNormalization norm reads it": (
        [helper.make_node("LayerNormalization", ["a", "one"], ["b"], name="norm")],
        {"one": np.ones(24, np.float32)},
    ),
    "Add residual reads it": (
        [
            helper.make_node("Gemm", ["x", "w3"], ["side"], name="side"),
            helper.make_node("Add", ["a", "side"], ["b"], name="residual"),
        ],
        {"w3": np.ones((10, 24), np.float32)},
    ),
    "Concat concat reads it": (
        [
            helper.make_node("Concat", ["a", "a"], ["twice"], name="concat", axis=0),
            helper.make_node("Relu", ["twice"], ["b"]),
        ],
        {},
    ),
    "Reshape mix reads it": (
        [
            helper.make_node("Reshape", ["a", "shape"], ["b"], name="mix"),
        ],
        {"shape": np.array([-1, 24], np.int64)},
    ),
    "Softmax soft reads it": ([helper.make_node("Softmax", ["a"], ["b"], name="soft")], {}),
    "what follows is not finite on them": (
        [helper.make_node("Sqrt", ["a"], ["c"], name="root"), helper.make_node("Relu", "c", "b")],
        {"b1": np.full(24, -1, np.float32)},
    ),
}


@pytest.mark.parametrize("reason", STOPS)
def test_fold_stops_with_the_reason(tmp_path: Path, reason: str):
    nodes, arrays = STOPS[reason]
    pair = ablated_pair(*nodes, arrays=arrays)
    source = write_model(
        tmp_path / "in.onnx",
        pair["nodes"],
        pair["arrays"],
        x=("batch", 10),
        y=None,
        opset=20,
        ir_version=9,
    )
    report = convert(
        source, tmp_path / "out.onnx", policy="condensed", verify="finite" not in reason
    )
    assert report.folded == ()
    assert report.unfolded[0] == f"8 ablated neurons of w1: {reason}"
    assert condensed_weights(tmp_path / "out.onnx")["first"].out_features == 24


def test_output_of_the_model_keeps_its_neurons(tmp_path: Path):
    pair = ablated_pair(GELU)
    source = write_model(
        tmp_path / "in.onnx", pair["nodes"][:2], pair["arrays"], x=("batch", 10), y=None, opset=20
    )
    model = onnx.load(source)
    model.graph.output[0].name = "b"
    onnx.save(model, source)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.unfolded == ("8 ablated neurons of w1: b is an output of the model",)


def test_several_layers_may_read_the_neurons(tmp_path: Path):
    pair = ablated_pair(GELU)
    pair["nodes"] += [
        helper.make_node("Gemm", ["b", "w2", "shift"], ["y2"], name="third", transB=1),
    ]
    pair["arrays"]["shift"] = np.ones(6, np.float32)
    source = write_model(
        tmp_path / "in.onnx", pair["nodes"], pair["arrays"], x=("batch", 10), y=None, opset=20
    )
    model = onnx.load(source)
    model.graph.output.append(helper.make_tensor_value_info("y2", TensorProto.FLOAT, None))
    onnx.save(model, source)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.folded == ("8 ablated neurons of w1",)
    assert {w.in_features for w in condensed_weights(tmp_path / "out.onnx").values()} == {10, 16}


def test_model_of_torch_folds_and_exports_to_the_same_bytes_twice(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 32),
        nn.BatchNorm1d(32),
        nn.GELU(),
        nn.Dropout(),
        nn.Linear(32, 16),
        nn.SiLU(),
        nn.Linear(16, 3),
    )
    with torch.no_grad():
        for layer in (model[0], model[4]):
            layer.weight.mul_(torch.rand(layer.weight.shape) < 0.2)
            layer.weight[::3] = 0
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    reports = [
        export(model, torch.randn(2, 12), tmp_path / f"{name}.onnx", policy="condensed")
        for name in "ab"
    ]
    assert reports[0].folded == ("11 ablated neurons of 0", "6 ablated neurons of 4")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert model.training
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
