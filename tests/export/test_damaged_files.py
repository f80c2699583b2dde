"""Damaged, hostile and odd files: a sentence, the source untouched, nothing half written."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper

from fanin.export import ExportError, convert, inspect, plan_conversion

from .onnx_models import node, sparse, write_model

W, V = sparse((48, 32)), sparse((32, 24), seed=1)
NUMBERS = (-1, 0, 1, 2, 7, 10, 16, 2**31 - 1)
NAMES = ("", "x", "w", "h", "y", "nowhere", "MatMul", "Conv", "If", "ai.fanin", "com.microsoft")


def linear(path: Path) -> Path:
    nodes = [
        node("MatMul", ["x", "w"], "h"),
        node("Add", ["h", "b"], "a"),
        node("Clip", ["a", "", "high"], "c"),
        node("Gemm", ["c", "v", ""], "y", alpha=0.5),
    ]
    arrays = {"w": W, "b": np.ones(32, np.float32), "high": np.float32(6), "v": V}
    return write_model(path, nodes, arrays, y=("batch", 24))


def convolutions(path: Path) -> Path:
    nodes = [
        node("Conv", ["x", "w", "b"], "h", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        node("BatchNormalization", ["h", "one", "b", "b", "one"], "n"),
        node("Relu", ["n"], "r"),
        node("Conv", ["r", "v"], "y", strides=[2, 2]),
    ]
    arrays = {"w": sparse((8, 4, 3, 3)), "v": sparse((6, 8, 1, 1))}
    arrays |= {"b": np.zeros(8, np.float32), "one": np.ones(8, np.float32)}
    return write_model(path, nodes, arrays, x=("n", 4, 8, 8), y=("n", 6, 4, 4))


def branches(path: Path) -> Path:
    """With a weight that is computed, one in a branch, and one of our own nodes."""
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    out = [helper.make_tensor_value_info("t", TensorProto.FLOAT, ["batch", 32])]
    weight = onnx.numpy_helper.from_array(W, "tw")
    branch = helper.make_graph([node("MatMul", ["x", "tw"], "t")], "branch", [], out, [weight])
    nodes = [
        node("Mul", ["v", "m"], "vm"),
        node("If", ["c"], "h", then_branch=branch, else_branch=branch),
        node("MatMul", ["h", "vm"], "y"),
    ]
    arrays = {"v": V, "m": (V != 0).astype(np.float32)}
    dense = write_model(path, nodes, arrays, inputs=[flag], y=("batch", 24))
    convert(dense, path.with_name("condensed.onnx"), policy="condensed", verify=False)
    path.with_name("condensed.onnx").replace(path)
    return path


def parts(message: Message) -> list[Message]:
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                found += parts(part)
    return found


def damage(message: Message, choose: random.Random) -> None:
    """Change one field anywhere in a model."""
    place = choose.choice([part for part in parts(message) if part.ListFields()])
    field, value = choose.choice(place.ListFields())
    text = field.type == field.TYPE_STRING
    if field.is_repeated and field.message_type is not None and choose.random() < 0.7:
        if choose.random() < 0.5:
            del value[choose.randrange(len(value))]
        else:
            value.add().CopyFrom(choose.choice(value))
    elif field.message_type is not None or choose.random() < 0.3:
        place.ClearField(field.name)
    elif field.type == field.TYPE_BYTES:
        setattr(place, field.name, value[: choose.randrange(len(value) + 1)])
    elif field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE) or field.enum_type is not None:
        place.ClearField(field.name)
    elif field.is_repeated:
        value[choose.randrange(len(value))] = choose.choice(NAMES if text else NUMBERS)
    else:
        setattr(place, field.name, choose.choice(NAMES if text else NUMBERS))


@pytest.mark.parametrize("make", [linear, convolutions, branches])
def test_a_damaged_file_is_converted_or_refused_with_a_sentence(tmp_path: Path, make):
    """Without the runtime, which some damaged files crash."""
    whole = onnx.load(make(tmp_path / "in.onnx")).SerializeToString()
    refused = 0
    for seed in range(24):
        choose = random.Random(seed)
        model = onnx.load_from_string(whole)
        damage(model, choose)
        written = model.SerializePartialToString()
        if seed % 10 == 0:
            written = written[: choose.randrange(len(written))]
        source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
        source.write_bytes(written)
        try:
            convert(source, target, policy=choose.choice(["condensed", "auto"]), verify=False)
        except ExportError:
            refused += 1
            assert not target.exists()
        for read in (plan_conversion, inspect):
            with contextlib.suppress(ExportError):
                read(source)
        assert source.read_bytes() == written
        target.unlink(missing_ok=True)
        assert [file.name for file in tmp_path.iterdir()] == ["in.onnx"]
    assert 3 < refused < 24


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_named(tmp_path: Path, value: float):
    broken = W.copy()
    broken[3, 4] = value
    nodes = [node("MatMul", ["x", "w"], "h"), node("MatMul", ["h", "v"], "y")]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": broken, "v": V}, y=("batch", 24))
    said = "outputs are not finite.*the weight w of a MatMul holds values that are not finite"
    with pytest.raises(ExportError, match=said):
        convert(source, tmp_path / "out.onnx", policy="condensed")
    assert [file.name for file in tmp_path.iterdir()] == ["in.onnx"]
    report = convert(source, tmp_path / "out.onnx", policy="condensed", verify=False)
    assert [layer.decision for layer in report.layers] == ["dense", "condensed"]
    assert report.layers[0].reason == "the weight holds values that are not finite"


def test_a_weight_of_a_sparse_and_a_dense_use_is_kept_for_the_second_and_named(tmp_path: Path):
    rows = helper.make_tensor_value_info("i", TensorProto.INT64, ["batch"])
    nodes = [node("MatMul", ["x", "t"], "h"), node("Gather", ["t", "i"], "g")]
    nodes.append(node("Add", ["h", "g"]))
    source = write_model(tmp_path / "in.onnx", nodes, {"t": W}, inputs=[rows])
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert "t stays in the file as well: Gather Gather_g reads it" in report.notes
    stored = {tensor.name for tensor in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert {"t", "t.values"} <= stored


def test_a_weight_that_is_scaled_at_run_time_has_a_reason(tmp_path: Path):
    scale = helper.make_tensor_value_info("s", TensorProto.FLOAT, [])
    nodes = [node("Mul", ["w", "s"], "v"), node("MatMul", ["x", "v"])]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": W}, inputs=[scale])
    (layer,) = plan_conversion(source)
    assert (layer.counted, layer.reason) == (
        False,
        "Mul before it has an input that is no constant",
    )


@pytest.mark.parametrize(
    ("op", "name"), [("LSTM", "direction"), ("Conv", "auto_pad"), ("FusedGemm", "activation")]
)
def test_bytes_in_place_of_a_text_are_named(tmp_path: Path, op: str, name: str):
    domain = "com.microsoft" if op == "FusedGemm" else ""
    bad = helper.make_node(op, ["x", "w"], ["y"], "bad", domain=domain, **{name: b"\xff"})
    graph = helper.make_graph(
        [bad],
        "g",
        [helper.make_tensor_value_info("x", 1, ["batch", 8])],
        [helper.make_tensor_value_info("y", 1, ["batch", 8])],
        [numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")],
    )
    versions = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=9), tmp_path / "in.onnx")
    with pytest.raises(ExportError, match=f"{name} of node 'bad' .{op}. is no UTF-8 text"):
        convert(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_a_constant_of_a_negative_size_is_named(tmp_path: Path):
    """NumPy reads -1 as the rest, and onnx's shape inference aborts on it."""
    model = onnx.load(linear(tmp_path / "in.onnx"))
    next(t for t in model.graph.initializer if t.name == "w").dims[0] = -1
    onnx.save(model, tmp_path / "in.onnx")
    with pytest.raises(ExportError, match="the constant 'w' has a negative size"):
        convert(tmp_path / "in.onnx", tmp_path / "out.onnx")
