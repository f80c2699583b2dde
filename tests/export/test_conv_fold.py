"""Ablated filters: channels that leave the file, channels that must stay, and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from fanin.export import ExportReport, convert
from fanin.export.onnx_inspect import condensed_weights
from fanin.ort_ops import register

from .onnx_models import sparse, write_model

GONE = 5
"""Ablated filters of the first convolution, of 16; those before ZERO have a bias <= 0."""

ZERO = 3


def first_weight() -> np.ndarray:
    weight = sparse((16, 4, 3, 3), 0.5)
    weight[:, 0, 0, 0] = 1
    weight[:GONE] = 0
    return weight


def bias() -> np.ndarray:
    values = np.random.default_rng(1).standard_normal(16).astype(np.float32)
    values[:GONE] = [-1, -0.5, 0, 0.5, 2]
    return values


FIRST = helper.make_node("Conv", ["x", "w1", "b1"], ["a"], name="first", pads=[1] * 4)
RELU = helper.make_node("Relu", ["a"], ["r"], name="relu")


def second(x: str = "r", **attributes) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, "w2", "b2"], ["y"], name="second", **attributes)


def arrays(kernel: int = 3, sparsity: float = 0.8, **more: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "w1": first_weight(),
        "b1": bias(),
        "w2": sparse((8, 16, kernel, kernel), sparsity, seed=3),
        "b2": np.linspace(-1, 1, 8, dtype=np.float32),
        **more,
    }


def folded(tmp_path: Path, nodes, constants, *, opset: int = 20, **options) -> ExportReport:
    """Convert, and compare with the source on inputs where borders matter."""
    source = write_model(
        tmp_path / "in.onnx",
        nodes,
        constants,
        x=("n", 4, 8, 8),
        y=None,
        opset=opset,
        ir_version=9,
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed", **options)
    x = np.random.default_rng(7).standard_normal((2, 4, 8, 8)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(source).run(None, {"x": x})
    for library in (False, True):
        settings = onnxruntime.SessionOptions()
        if library:
            register(settings)
        session = onnxruntime.InferenceSession(tmp_path / "out.onnx", settings)
        (actual,) = session.run(None, {"x": x})
        np.testing.assert_allclose(actual, expected, atol=2e-5 * np.abs(expected).max())
    return report


def channels(tmp_path: Path) -> tuple[int, int]:
    """Output channels of the first and input channels of the second convolution."""
    graph = onnx.load(tmp_path / "out.onnx").graph
    shapes = {t.name: list(t.dims) for t in graph.initializer}
    found = {}
    for node in graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "CondensedConv":
            found[node.name] = (attributes["in_channels"], attributes["out_channels"])
        elif node.op_type == "Conv":
            found[node.name] = tuple(shapes[node.input[1]][1::-1])
    return found["first"][1], found["second"][0]


@pytest.mark.parametrize("sparsity", [0.8, 0.0])
@pytest.mark.parametrize("kernel", [1, 3])
def test_without_padding_every_ablated_filter_leaves(tmp_path: Path, kernel: int, sparsity: float):
    constants = arrays(kernel, sparsity)
    report = folded(tmp_path, [FIRST, RELU, second()], constants)
    assert report.folded == (f"{GONE} ablated filters of w1",)
    assert report.unfolded == ()
    assert channels(tmp_path) == (11, 11)
    after_relu = np.maximum(bias()[:GONE].astype(np.float64), 0)
    shift = constants["w2"][:, :GONE].astype(np.float64).sum(axis=(2, 3)) @ after_relu
    if sparsity:
        actual = condensed_weights(tmp_path / "out.onnx")["second"].bias
    else:
        graph = onnx.load(tmp_path / "out.onnx").graph
        name = next(n for n in graph.node if n.name == "second").input[2]
        actual = numpy_helper.to_array(next(t for t in graph.initializer if t.name == name))
    np.testing.assert_allclose(actual, constants["b2"] + shift, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sparsity", [0.8, 0.0])
def test_before_padding_only_channels_that_are_zero_leave(tmp_path: Path, sparsity: float):
    report = folded(tmp_path, [FIRST, RELU, second(pads=[1] * 4)], arrays(3, sparsity))
    assert report.folded == (f"{ZERO} ablated filters of w1",)
    assert report.unfolded == (
        f"{GONE - ZERO} ablated filters of w1: w2 pads, and they are not 0 there",
    )
    assert channels(tmp_path) == (13, 13)


def test_same_padding_counts_as_padding(tmp_path: Path):
    node = second(auto_pad="SAME_UPPER")
    report = folded(tmp_path, [FIRST, RELU, node], arrays(3, 0.0))
    assert report.folded == (f"{ZERO} ablated filters of w1",)
    report = folded(tmp_path, [FIRST, RELU, second(auto_pad="SAME_UPPER")], arrays(1, 0.0))
    assert report.folded == (f"{GONE} ablated filters of w1",)


def test_dense_convolution_without_bias_gets_one(tmp_path: Path):
    node = helper.make_node("Conv", ["r", "w2"], ["y"], name="second")
    constants = arrays(3, 0.0)
    del constants["b2"]
    report = folded(tmp_path, [FIRST, RELU, node], constants)
    assert report.folded == (f"{GONE} ablated filters of w1",)


NORM = helper.make_node("BatchNormalization", ["r", "scale", "shift", "mean", "var"], ["n"])


def norm_arrays(width: int = 16) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "scale": rng.uniform(0.5, 1.5, width).astype(np.float32),
        "shift": rng.standard_normal(width).astype(np.float32),
        "mean": rng.standard_normal(width).astype(np.float32),
        "var": rng.uniform(0.5, 1.5, width).astype(np.float32),
    }


BETWEEN = {
    "norm after the activation": ([RELU, NORM, second("n")], norm_arrays(), GONE),
    "constants of each channel": (
        [
            helper.make_node("Mul", ["a", "f"], ["m"], name="mul"),
            helper.make_node("Sigmoid", ["m"], ["g"], name="gate"),
            helper.make_node("Mul", ["m", "g"], ["r"], name="silu"),
            second(),
        ],
        {"f": np.linspace(1, 2, 16, dtype=np.float32).reshape(16, 1, 1)},
        GONE,
    ),
    "MaxPool with padding": (
        [
            RELU,
            helper.make_node(
                "MaxPool", ["r"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
            ),
            second("p"),
        ],
        {},
        GONE,
    ),
    "AveragePool that leaves padding out": (
        [
            RELU,
            helper.make_node("AveragePool", ["r"], ["p"], kernel_shape=[3, 3], pads=[1] * 4),
            second("p"),
        ],
        {},
        GONE,
    ),
    "AveragePool that counts padding": (
        [
            RELU,
            helper.make_node(
                "AveragePool",
                ["r"],
                ["p"],
                name="pool",
                kernel_shape=[3, 3],
                pads=[1] * 4,
                count_include_pad=1,
            ),
            second("p"),
        ],
        {},
        ZERO,
    ),
    "GlobalAveragePool": (
        [RELU, helper.make_node("GlobalAveragePool", ["r"], ["p"]), second("p")],
        {"w2": sparse((8, 16, 1, 1), 0.7, seed=3)},
        GONE,
    ),
    "two readers": (
        [
            RELU,
            helper.make_node("Conv", ["r", "w2", "b2"], ["s"], name="second"),
            helper.make_node("Conv", ["r", "w2"], ["t"], name="third"),
            helper.make_node("Sub", ["s", "t"], ["y"]),
        ],
        {},
        GONE,
    ),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_channels_fold_through(tmp_path: Path, what: str):
    nodes, more, count = BETWEEN[what]
    report = folded(tmp_path, [FIRST, *nodes], arrays(3) | more)
    assert report.folded == (f"{count} ablated filters of w1",)
    assert channels(tmp_path) == (16 - count, 16 - count)


GEMM = helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], name="head", transB=1)


def head(features: int, sparsity: float) -> dict[str, np.ndarray]:
    return {"w3": sparse((6, features), sparsity), "b3": np.ones(6, np.float32)}


FLATTENED = {
    "Flatten": ([RELU, helper.make_node("Flatten", ["r"], ["f"]), GEMM], {}, 16 * 64),
    "Reshape to a known width": (
        [RELU, helper.make_node("Reshape", ["r", "to"], ["f"]), GEMM],
        {"to": np.array([-1, 16 * 64], np.int64)},
        16 * 64,
    ),
    "Reshape to the rest": (
        [RELU, helper.make_node("Reshape", ["r", "to"], ["f"]), GEMM],
        {"to": np.array([0, -1], np.int64)},
        16 * 64,
    ),
    "ReduceMean": (
        [RELU, helper.make_node("ReduceMean", ["r", "axes"], ["f"], keepdims=0), GEMM],
        {"axes": np.array([-1, -2], np.int64)},
        16,
    ),
    "constants of each pixel after Flatten": (
        [
            RELU,
            helper.make_node("Flatten", ["r"], ["g"]),
            helper.make_node("Add", ["g", "pixels"], ["f"], name="add"),
            GEMM,
        ],
        {"pixels": np.random.default_rng(4).standard_normal(16 * 64).astype(np.float32)},
        16 * 64,
    ),
}


@pytest.mark.parametrize("sparsity", [0.9, 0.0])
@pytest.mark.parametrize("what", FLATTENED)
def test_channel_is_a_block_of_columns_of_the_head(tmp_path: Path, what: str, sparsity: float):
    nodes, more, features = FLATTENED[what]
    constants = {"w1": first_weight(), "b1": bias()} | head(features, sparsity) | more
    report = folded(tmp_path, [FIRST, *nodes], constants)
    assert report.folded == (f"{GONE} ablated filters of w1",)
    if sparsity:
        found = condensed_weights(tmp_path / "out.onnx")["head"].in_features
    else:
        graph = onnx.load(tmp_path / "out.onnx").graph
        name = next(n for n in graph.node if n.name == "head").input[1]
        found = next(t.dims[1] for t in graph.initializer if t.name == name)
    assert found == features // 16 * 11


STOPS = {
    "Add residual reads it": (
        [
            RELU,
            helper.make_node("Conv", ["x", "w3"], ["side"], name="side", pads=[1] * 4),
            helper.make_node("Add", ["r", "side"], ["s"], name="residual"),
            second("s"),
        ],
        {"w3": np.ones((16, 4, 3, 3), np.float32)},
    ),
    "Concat concat reads it": (
        [
            RELU,
            helper.make_node("Concat", ["r", "r"], ["c"], name="concat", axis=0),
            second("c"),
        ],
        {},
    ),
    "CondensedConv w3 reads it": (
        [
            RELU,
            helper.make_node("Conv", ["r", "w3"], ["c"], name="grouped", group=16),
            second("c"),
        ],
        {"w3": np.ones((16, 1, 1, 1), np.float32)},
    ),
    "Mul by_pixel reads it": (
        [helper.make_node("Mul", ["a", "grid"], ["r"], name="by_pixel"), second()],
        {"grid": np.ones((1, 1, 8, 8), np.float32)},
    ),
    "Softmax soft reads it": (
        [helper.make_node("Softmax", ["a"], ["r"], name="soft", axis=1), second()],
        {},
    ),
    "AveragePool pool reads it": (
        [
            RELU,
            helper.make_node(
                "AveragePool", ["r"], ["p"], name="pool", kernel_shape=[3, 3], auto_pad="SAME_UPPER"
            ),
            second("p"),
        ],
        {},
    ),
    "Reshape mix reads it": (
        [
            RELU,
            helper.make_node("Reshape", ["r", "to"], ["p"], name="mix"),
            second("p"),
        ],
        {"to": np.array([0, 16, 4, 16], np.int64)},
    ),
}


@pytest.mark.parametrize("reason", STOPS)
def test_fold_stops_with_the_reason(tmp_path: Path, reason: str):
    nodes, more = STOPS[reason]
    report = folded(tmp_path, [FIRST, *nodes], arrays(3) | more)
    assert report.folded == ()
    assert report.unfolded == (f"{GONE} ablated filters of w1: {reason}",)


def test_filters_of_groups_stay(tmp_path: Path):
    node = helper.make_node("Conv", ["x", "w1", "b1"], ["a"], name="first", group=2)
    constants = arrays(3) | {"w1": np.ascontiguousarray(first_weight()[:, :2])}
    report = folded(tmp_path, [node, RELU, second()], constants)
    assert report.unfolded == (f"{GONE} ablated filters of w1: it has groups",)


def test_output_of_the_model_keeps_its_channels(tmp_path: Path):
    node = helper.make_node("Relu", ["a"], ["y"])
    constants = {name: array for name, array in arrays().items() if name.endswith("1")}
    report = folded(tmp_path, [FIRST, node], constants)
    assert report.unfolded == (f"{GONE} ablated filters of w1: y is an output of the model",)


def test_folding_can_be_switched_off(tmp_path: Path):
    report = folded(tmp_path, [FIRST, RELU, second()], arrays(3), fold=False)
    assert report.folded == report.unfolded == ()
    assert channels(tmp_path) == (16, 16)


def test_a_layer_of_constants_alone_folds_along_a_chain(tmp_path: Path):
    """A filter of the second layer that read only folded channels is constant itself."""
    weight = sparse((8, 16, 1, 1), 0.7, seed=3)
    weight[:, 10] = 1
    weight[2] = 0
    weight[2, 4] = 1
    nodes = [
        FIRST,
        RELU,
        helper.make_node("Conv", ["r", "w2", "b2"], ["s"], name="second"),
        helper.make_node("Conv", ["s", "w3"], ["y"], name="third"),
    ]
    constants = arrays() | {"w2": weight, "w3": sparse((4, 8, 3, 3), 0.6)}
    report = folded(tmp_path, nodes, constants)
    assert report.folded == (
        f"{GONE} ablated filters of w1",
        "1 ablated filters of w2",
    )
