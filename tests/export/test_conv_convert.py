"""Convolutions of ONNX files: every attribute, and what is left dense with which reason."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from fanin.export import convert, inspect
from fanin.export.onnx_inspect import condensed_weights
from fanin.ort_ops import register

from .onnx_models import sparse, write_model


def conv(inputs: list[str], output: str = "y", **attributes) -> onnx.NodeProto:
    return helper.make_node("Conv", inputs, [output], name="conv", **attributes)


def node(op_type: str, inputs: list[str], output: str = "y", **attributes) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, [output], name=op_type.lower(), **attributes)


def run(path: Path, x: np.ndarray, *, library: bool = False) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    if library:
        register(options)
    return onnxruntime.InferenceSession(path, options).run(None, {"x": x})


def converted(tmp_path: Path, nodes, arrays, shape, *, policy: str = "condensed", **fields):
    """Convert, and compare both files where onnxruntime runs the result with and without us."""
    fields.setdefault("opset", 20)
    source = write_model(tmp_path / "in.onnx", nodes, arrays, x=shape, y=None, **fields)
    report = convert(source, tmp_path / "out.onnx", policy=policy)
    sizes = [size if isinstance(size, int) else 11 for size in shape]
    sizes[0] = 3 if isinstance(shape[0], str) else shape[0]
    x = np.random.default_rng(1).standard_normal(sizes).astype(np.float32)
    expected = run(source, x)
    for library in (False, True):
        for actual, wanted in zip(
            run(tmp_path / "out.onnx", x, library=library), expected, strict=True
        ):
            np.testing.assert_allclose(actual, wanted, atol=2e-5 * np.abs(wanted).max())
    return report


def only_node(tmp_path: Path) -> onnx.NodeProto:
    (found,) = onnx.load(tmp_path / "out.onnx").graph.node
    return found


def attributes(found: onnx.NodeProto) -> dict:
    return {a.name: helper.get_attribute_value(a) for a in found.attribute}


ATTRIBUTES = {
    "none at all": ({}, (8, 4, 3, 3), ("n", 4, 9, 7), [0, 0, 0, 0]),
    "pads": ({"pads": [1, 0, 2, 3]}, (8, 4, 3, 3), ("n", 4, 9, 7), [1, 0, 2, 3]),
    "strides": ({"strides": [2, 3], "pads": [1] * 4}, (8, 4, 3, 3), ("n", 4, 9, 7), [1] * 4),
    "dilations": ({"dilations": [2, 1]}, (8, 4, 3, 2), ("n", 4, 9, 7), [0] * 4),
    "group": ({"group": 2, "pads": [1] * 4}, (8, 4, 3, 3), ("n", 8, 9, 7), [1] * 4),
    "one axis": ({"pads": [2, 1], "strides": [2]}, (8, 4, 5), ("n", 4, 20), [2, 1]),
    "VALID": ({"auto_pad": "VALID"}, (8, 4, 3, 3), ("n", 4, 9, 7), [0] * 4),
    "SAME_UPPER": ({"auto_pad": "SAME_UPPER"}, (8, 4, 4, 3), ("n", 4, 9, 7), [1, 1, 2, 1]),
    "SAME_LOWER": ({"auto_pad": "SAME_LOWER"}, (8, 4, 4, 3), ("n", 4, 9, 7), [2, 1, 1, 1]),
    "SAME of any size": (
        {"auto_pad": "SAME_UPPER"},
        (8, 4, 4, 3),
        ("n", 4, "h", "w"),
        [1, 1, 2, 1],
    ),
    "SAME with strides": (
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        (8, 4, 3, 3),
        ("n", 4, 9, 8),
        [1, 0, 1, 1],
    ),
    "SAME of one tap": (
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        (8, 4, 1, 1),
        ("n", 4, 9, 8),
        [0, 0, 0, 0],
    ),
}


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_convolution_is_condensed_with_its_attributes_filled_in(tmp_path: Path, case: str):
    given, shape, x, pads = ATTRIBUTES[case]
    arrays = {"w": sparse(shape, 0.8), "b": np.linspace(-1, 1, 8, dtype=np.float32)}
    report = converted(tmp_path, [conv(["x", "w", "b"], **given)], arrays, x)
    assert [layer.decision for layer in report.layers] == ["condensed"]
    assert report.layers[0].shape == shape
    found = attributes(only_node(tmp_path))
    axes = len(shape) - 2
    assert "auto_pad" not in found
    assert found["pads"] == pads
    assert found["strides"] == given.get("strides", [1] * axes)
    assert found["dilations"] == given.get("dilations", [1] * axes)
    assert (found["in_channels"], found["out_channels"]) == (x[1], 8)
    (weight,) = condensed_weights(tmp_path / "out.onnx").values()
    np.testing.assert_array_equal(weight.to_dense().reshape(shape), arrays["w"])


W = sparse((8, 4, 3, 3), 0.8)

LEFT = {
    "sparsity 0.0%": (
        [conv(["x", "w"], group=4)],
        {"w": np.ones((4, 1, 3, 3), np.float32)},
        ("n", 4, 9, 9),
    ),
    "over three axes": ([conv(["x", "w"])], {"w": sparse((8, 4, 3, 3, 3))}, ("n", 4, 5, 5, 5)),
    "auto_pad is SAME_UPPER with a stride of 2 and X has no fixed size": (
        [conv(["x", "w"], auto_pad="SAME_UPPER", strides=[1, 2])],
        {"w": W},
        ("n", 4, 9, "width"),
    ),
    "sparsity .* under 50%": ([conv(["x", "w"])], {"w": sparse((8, 4, 3, 3), 0.3)}, ("n", 4, 9, 9)),
    "ConvTranspose of three axes, unequal strides": (
        [node("ConvTranspose", ["x", "w"], strides=[2, 1])],
        {"w": sparse((4, 8, 3, 3))},
        ("n", 4, 9, 9),
    ),
    "its bias is no constant": (
        [node("ReduceMean", ["x", "axes"], "b", keepdims=0), conv(["x", "w", "b"])],
        {"w": sparse((4, 4, 3, 3), 0.8), "axes": np.array([0, 2, 3], np.int64)},
        ("n", 4, 9, 9),
    ),
}


@pytest.mark.parametrize("reason", LEFT)
def test_convolution_that_cannot_be_condensed_is_left_with_the_reason(tmp_path: Path, reason: str):
    nodes, arrays, shape = LEFT[reason]
    report = converted(tmp_path, nodes, arrays, shape)
    (layer,) = report.layers
    assert layer.decision == "dense"
    assert re.search(reason, layer.reason)
    found = [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node]
    assert found == [n.op_type for n in nodes]


BEHIND = {
    "Transpose": (
        [node("Transpose", ["s"], "w", perm=[3, 2, 0, 1])],
        {"s": np.ascontiguousarray(W.transpose(2, 3, 1, 0))},
    ),
    "Cast": ([node("Cast", ["s"], "w", to=1)], {"s": W.astype(np.float16)}),
    "Reshape": (
        [node("Reshape", ["s", "shape"], "w")],
        {"s": W.reshape(8, 36), "shape": np.array([8, 4, 3, 3], np.int64)},
    ),
    "DequantizeLinear": (
        [node("DequantizeLinear", ["s", "scale", "zero"], "w")],
        {
            "s": np.round(W * 20).astype(np.int8),
            "scale": np.array(0.05, np.float32),
            "zero": np.array(0, np.int8),
        },
    ),
}


@pytest.mark.parametrize("op_type", BEHIND)
def test_weight_behind_an_operator_is_condensed(tmp_path: Path, op_type: str):
    nodes, arrays = BEHIND[op_type]
    report = converted(tmp_path, [*nodes, conv(["x", "w"])], arrays, ("n", 4, 9, 7))
    assert report.layers[0].decision == "condensed"
    assert f"behind {op_type}" in report.layers[0].reason
    assert only_node(tmp_path).op_type == "CondensedConv"


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
def test_opsets_are_taken(tmp_path: Path, opset: int):
    nodes = [conv(["x", "w"], "h", pads=[1] * 4), node("Relu", ["h"])]
    report = converted(tmp_path, nodes, {"w": W}, ("n", 4, 9, 7), opset=opset)
    assert report.layers[0].decision == "condensed"
    assert attributes(only_node(tmp_path))["clip_min"] == 0.0


def test_two_convolutions_share_one_weight(tmp_path: Path):
    nodes = [
        conv(["x", "w"], "a", pads=[1] * 4),
        helper.make_node("Conv", ["x", "w"], ["b"], name="other", dilations=[2, 2], pads=[2] * 4),
        node("Concat", ["a", "b"], axis=1),
    ]
    report = converted(tmp_path, nodes, {"w": W}, ("n", 4, 9, 7))
    (layer,) = report.layers
    assert layer.nodes == ("conv", "other")
    graph = onnx.load(tmp_path / "out.onnx").graph
    assert len({n.input[1] for n in graph.node if n.op_type == "CondensedConv"}) == 1


def test_unequal_filters_are_padded_and_the_padding_reported(tmp_path: Path):
    weight = W.copy()
    weight[0] = 1
    report = converted(tmp_path, [conv(["x", "w"])], {"w": weight}, ("n", 4, 9, 7))
    counts = np.count_nonzero(weight.reshape(8, -1), axis=1)
    assert report.layers[0].padding == 36 * 8 - counts.sum()


def test_inspect_shows_convolutions_with_their_shapes(tmp_path: Path):
    nodes = [conv(["x", "w"], "h", pads=[1] * 4), node("Relu", ["h"])]
    converted(tmp_path, nodes, {"w": W}, ("n", 4, 9, 7))
    found = inspect(tmp_path / "out.onnx")
    assert found.runs_without_library
    (layer,) = found.layers
    assert (layer.kind, layer.shape, layer.reason) == (
        "CondensedConv",
        (8, 4, 3, 3),
        "clip [0, inf]",
    )


@pytest.mark.parametrize("policy", ["structured", "dense"])
def test_portable_forms_are_standard_convolutions(tmp_path: Path, policy: str):
    weight = W.copy()
    weight[::2] = 0
    arrays = {"w": weight, "b": np.linspace(-1, 1, 8, dtype=np.float32)}
    nodes = [conv(["x", "w", "b"], "h", pads=[1] * 4), node("Relu", ["h"])]
    report = converted(tmp_path, nodes, arrays, ("n", 4, 9, 7), policy=policy)
    assert report.layers[0].decision == policy
    found = [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node]
    assert (
        found
        == {"structured": ["Conv", "Gather", "Add", "Relu"], "dense": ["Conv", "Relu"]}[policy]
    )
    assert not onnx.load(tmp_path / "out.onnx").functions


def test_float16_model_stays_float16(tmp_path: Path):
    nodes = [conv(["x", "w", "b"], pads=[1] * 4)]
    arrays = {"w": W.astype(np.float16), "b": np.ones(8, np.float16)}
    source = write_model(
        tmp_path / "in.onnx",
        nodes,
        arrays,
        x=("n", 4, 9, 7),
        y=None,
        opset=20,
        elem_type=onnx.TensorProto.FLOAT16,
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.layers[0].values_dtype == "float16"
    x = np.random.default_rng(0).standard_normal((2, 4, 9, 7)).astype(np.float16)
    (expected,) = run(source, x)
    (actual,) = run(tmp_path / "out.onnx", x, library=True)
    assert actual.dtype == np.float16
    np.testing.assert_allclose(actual, expected, rtol=4e-3, atol=4e-3)
