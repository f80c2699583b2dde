"""What convolutions take over: norms, residual adds, activations; and where they must not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from fanin.export import ExportReport, convert
from fanin.export.onnx_inspect import condensed_weights
from fanin.ort_ops import register

from .conv_nets import ConvNet
from .onnx_models import sparse, write_model


def export_net(tmp_path: Path, net: ConvNet, **options) -> ExportReport:
    """Convert a network and compare with torch's float64."""
    onnx.save(net.model(), tmp_path / "in.onnx")
    report = convert(tmp_path / "in.onnx", tmp_path / "out.onnx", policy="condensed", **options)
    expected = net.value.numpy()
    for library in (False, True):
        settings = onnxruntime.SessionOptions()
        if library:
            register(settings)
        session = onnxruntime.InferenceSession(tmp_path / "out.onnx", settings)
        (actual,) = session.run(None, {"x": net.x})
        np.testing.assert_allclose(actual, expected, atol=2e-5 * np.abs(expected).max())
    return report


def node_types(tmp_path: Path) -> list[str]:
    return [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node]


def clips(tmp_path: Path) -> list[tuple[float, float]]:
    found = []
    for node in onnx.load(tmp_path / "out.onnx").graph.node:
        values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "CondensedConv":
            found.append((values["clip_min"], values["clip_max"]))
    return found


@pytest.mark.parametrize("bias", [True, False])
def test_norm_goes_into_values_and_bias(tmp_path: Path, bias: bool):
    net = ConvNet(0)
    net.conv(8, 3, ablated=0.3, bias=bias)
    net.batch_norm()
    net.unary("Relu")
    export_net(tmp_path, net)
    assert node_types(tmp_path) == ["CondensedConv"]
    assert clips(tmp_path) == [(0.0, math.inf)]
    (weight,) = condensed_weights(tmp_path / "out.onnx").values()
    parts = [net.arrays[name].astype(np.float64) for name in net.nodes[1].input[1:]]
    scale = parts[0] / np.sqrt(parts[3] + 1e-5)
    shift = parts[1] - parts[2] * scale
    offset = net.arrays[net.nodes[0].input[2]] if bias else np.zeros(8)
    np.testing.assert_allclose(weight.bias, offset * scale + shift, rtol=1e-6)
    dense = net.arrays[net.nodes[0].input[1]].reshape(8, -1)
    np.testing.assert_allclose(weight.to_dense(), dense * scale[:, None], rtol=1e-6)


def test_constants_of_each_channel_fold_as_norms_do(tmp_path: Path):
    net = ConvNet(1)
    net.conv(8, 3)
    net.per_channel("Mul")
    net.per_channel("Add")
    net.batch_norm()
    report = export_net(tmp_path, net)
    assert node_types(tmp_path) == ["CondensedConv"]
    assert [line.split()[0] for line in report.fused] == ["Mul", "Add", "BatchNormalization"]


def test_norm_of_a_value_that_others_read_stays(tmp_path: Path):
    net = ConvNet(2)
    net.conv(8, 3)
    net.batch_norm()
    net.residual()
    export_net(tmp_path, net)
    assert node_types(tmp_path) == ["CondensedConv", "BatchNormalization", "Add"]


def test_norm_between_two_uses_of_one_weight_changes_one_of_them(tmp_path: Path):
    weight = sparse((8, 4, 3, 3), 0.8)
    ones = np.ones(8, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="one", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["a", "two", "one_", "one_", "one_"], ["b"]),
        helper.make_node("Conv", ["x", "w"], ["c"], name="other", pads=[1] * 4),
        helper.make_node("Concat", ["b", "c"], ["y"], axis=1),
    ]
    arrays = {"w": weight, "two": 2 * ones, "one_": ones}
    source = write_model(
        tmp_path / "in.onnx", nodes, arrays, x=("n", 4, 8, 8), y=None, opset=20, ir_version=9
    )
    convert(source, tmp_path / "out.onnx", policy="condensed")
    weights = condensed_weights(tmp_path / "out.onnx")
    np.testing.assert_array_equal(weights["other"].to_dense(), weight.reshape(8, -1))
    scaled = weight.reshape(8, -1) * (2 / np.sqrt(1 + 1e-5))
    np.testing.assert_allclose(weights["one"].to_dense(), scaled, rtol=1e-6)


@pytest.mark.parametrize("activation", ["relu6", "Relu", None])
def test_residual_add_and_the_activation_after_it_are_fused(tmp_path: Path, activation: str | None):
    net = ConvNet(3)
    net.conv(8, 1)
    net.unary("HardSwish")
    net.conv(8, 3)
    net.batch_norm()
    net.residual()
    if activation == "relu6":
        net.relu6()
    elif activation:
        net.unary(activation)
    export_net(tmp_path, net)
    assert "Add" not in node_types(tmp_path)
    graph = onnx.load(tmp_path / "out.onnx").graph
    constants = {t.name for t in graph.initializer}
    added = [n for n in graph.node if n.op_type == "CondensedConv" and n.input[5] not in constants]
    assert len(added) == 1
    expected = {"relu6": (0.0, 6.0), "Relu": (0.0, math.inf), None: (-math.inf, math.inf)}
    assert clips(tmp_path)[-1] == expected[activation]


def two_branches(clip_first: bool = False) -> list[onnx.NodeProto]:
    middle = [helper.make_node("Relu", ["a"], ["ra"])] if clip_first else []
    left = "ra" if clip_first else "a"
    return [
        helper.make_node("Conv", ["x", "w"], ["a"], name="left", pads=[1] * 4),
        *middle,
        helper.make_node("Conv", ["x", "v"], ["b"], name="right", pads=[1] * 4),
        helper.make_node("Add", [left, "b"], ["s"], name="add"),
        helper.make_node("Relu", ["s"], ["y"], name="relu"),
    ]


def convert_nodes(tmp_path: Path, nodes, arrays, outputs: int = 1, x=("n", 4, 8, 8), **options):
    source = write_model(tmp_path / "in.onnx", nodes, arrays, x=x, y=None, opset=20, ir_version=9)
    if outputs > 1:
        model = onnx.load(source)
        model.graph.output.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, None))
        onnx.save(model, source)
    return convert(source, tmp_path / "out.onnx", policy="condensed", **options)


ARRAYS = {"w": sparse((8, 4, 3, 3), 0.8), "v": sparse((8, 4, 3, 3), 0.8, seed=1)}


def residuals(tmp_path: Path) -> dict[str, str]:
    return {
        n.name: n.input[5]
        for n in onnx.load(tmp_path / "out.onnx").graph.node
        if n.op_type == "CondensedConv"
    }


def test_later_one_of_two_convolutions_takes_the_others_output(tmp_path: Path):
    report = convert_nodes(tmp_path, two_branches(), ARRAYS)
    assert residuals(tmp_path) == {"left": "w.no_residual", "right": "a"}
    assert report.fused == ("Add into v", "Relu into v")
    assert node_types(tmp_path) == ["CondensedConv", "CondensedConv"]


def test_convolution_that_clips_before_the_add_is_added_by_the_other(tmp_path: Path):
    convert_nodes(tmp_path, two_branches(clip_first=True), ARRAYS)
    assert residuals(tmp_path) == {"left": "w.no_residual", "right": "ra"}
    assert clips(tmp_path) == [(0.0, math.inf), (0.0, math.inf)]


def test_output_of_the_model_is_not_fused_away(tmp_path: Path):
    convert_nodes(tmp_path, two_branches(), ARRAYS, outputs=2)
    assert residuals(tmp_path) == {"left": "b", "right": "w.no_residual"}


STAYS = {
    "an add that broadcasts": (
        [
            helper.make_node("GlobalAveragePool", ["x"], ["p"]),
            helper.make_node("Conv", ["x", "w"], ["a"], name="left"),
            helper.make_node("Add", ["a", "p"], ["y"], name="add"),
        ],
        {"w": sparse((4, 4, 3, 3), 0.8)},
        {},
    ),
    "a sum of a value with itself": (
        [
            helper.make_node("Conv", ["x", "w"], ["a"], name="left"),
            helper.make_node("Add", ["a", "a"], ["y"], name="add"),
        ],
        {"w": sparse((4, 4, 3, 3), 0.8)},
        {},
    ),
    "sizes that are not known to be equal": (
        [
            helper.make_node("Conv", ["x", "w"], ["a"], name="left", strides=[2, 2], pads=[1] * 4),
            helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Add", ["a", "p"], ["y"], name="add"),
        ],
        {"w": sparse((4, 4, 3, 3), 0.8)},
        {"x": ("n", 4, "h", "w_")},
    ),
}


@pytest.mark.parametrize("what", STAYS)
def test_add_stays(tmp_path: Path, what: str):
    nodes, arrays, fields = STAYS[what]
    convert_nodes(tmp_path, nodes, arrays, verify="not known" not in what, **fields)
    assert node_types(tmp_path)[-1] == "Add"


def gates(tmp_path: Path) -> list[tuple[float, float]]:
    found = []
    for node in onnx.load(tmp_path / "out.onnx").graph.node:
        values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "CondensedConv":
            found.append((values.get("gate_scale", 0.0), values.get("gate_shift", 1.0)))
    return found


def test_hard_swish_becomes_the_gate(tmp_path: Path):
    net = ConvNet(8)
    net.conv(8, 3)
    net.batch_norm()
    net.unary("HardSwish")
    net.conv(4, 1)
    report = export_net(tmp_path, net)
    assert node_types(tmp_path) == ["CondensedConv", "CondensedConv"]
    assert gates(tmp_path) == [(pytest.approx(1 / 6), 0.5), (0.0, 1.0)]
    assert "HardSwish into" in " ".join(report.fused)


@pytest.mark.parametrize("order", [("a", "h"), ("h", "a")])
def test_x_times_hard_sigmoid_of_x_becomes_the_gate(tmp_path: Path, order):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="c", pads=[1] * 4),
        helper.make_node("HardSigmoid", ["a"], ["h"], name="h", alpha=0.25, beta=0.75),
        helper.make_node("Mul", order, ["y"], name="m"),
    ]
    convert_nodes(tmp_path, nodes, {"w": ARRAYS["w"]})
    assert node_types(tmp_path) == ["CondensedConv"]
    assert gates(tmp_path) == [(0.25, 0.75)]


@pytest.mark.parametrize("other", ["the sum is read", "the share is read", "another sum"])
def test_gate_stays_where_something_else_reads_or_is_multiplied(tmp_path: Path, other: str):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="c", pads=[1] * 4),
        helper.make_node("Conv", ["x", "v"], ["b"], name="d", pads=[1] * 4),
        helper.make_node("HardSigmoid", ["a"], ["h"], name="h", alpha=1 / 6),
        helper.make_node("Mul", ["b" if other == "another sum" else "a", "h"], ["m"], name="m"),
        helper.make_node("Sub", ["m", "h" if "share" in other else "a"], ["s"], name="s"),
        helper.make_node("Sub", ["s", "b"], ["y"], name="y"),
    ]
    convert_nodes(tmp_path, nodes, ARRAYS)
    assert "Mul" in node_types(tmp_path)
    assert gates(tmp_path) == [(0.0, 1.0)] * 2


def test_hard_sigmoid_goes_into_weights_and_clip(tmp_path: Path):
    """Squeeze-and-excitation ends so: it is a product, a sum, and a clip to 0 and 1."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="c", pads=[1] * 4),
        helper.make_node("HardSigmoid", ["a"], ["y"], name="h", alpha=0.25, beta=0.75),
    ]
    convert_nodes(tmp_path, nodes, {"w": ARRAYS["w"]})
    assert node_types(tmp_path) == ["CondensedConv"]
    assert clips(tmp_path) == [(0.0, 1.0)]
    (weight,) = condensed_weights(tmp_path / "out.onnx").values()
    np.testing.assert_allclose(weight.bias, 0.75)
    np.testing.assert_allclose(weight.to_dense().reshape(8, 4, 3, 3), ARRAYS["w"] * 0.25)


@pytest.mark.parametrize("policy", ["dense", "condensed"])
def test_a_file_with_gates_is_converted_again(tmp_path: Path, policy: str):
    net = ConvNet(9, channels=8)
    net.conv(8, 3)
    net.unary("HardSwish")
    net.residual()
    export_net(tmp_path, net)
    assert gates(tmp_path) == [(pytest.approx(1 / 6), 0.5)]
    convert(tmp_path / "out.onnx", tmp_path / "again.onnx", policy=policy)
    settings = onnxruntime.SessionOptions()
    register(settings)
    session = onnxruntime.InferenceSession(tmp_path / "again.onnx", settings)
    (actual,) = session.run(None, {"x": net.x})
    expected = net.value.numpy()
    np.testing.assert_allclose(actual, expected, atol=2e-5 * np.abs(expected).max())


def test_files_without_gates_carry_the_shorter_function(tmp_path: Path):
    for activation, gated in (("Relu", False), ("HardSwish", True)):
        net = ConvNet(10)
        net.conv(8, 3)
        net.unary(activation)
        export_net(tmp_path, net)
        (function,) = onnx.load(tmp_path / "out.onnx").functions
        assert ("gated" in {name for node in function.node for name in node.output}) == gated
