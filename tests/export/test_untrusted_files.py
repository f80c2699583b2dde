"""Models from elsewhere: what they may make the export read, and how it refuses them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from fanin.cli import app
from fanin.export import ExportError, convert, inspect, onnx_convert, plan_conversion

from .onnx_models import node, sparse, write_model

W = sparse((48, 32))
MATMUL = [node("MatMul", ["x", "w"])]


def external(location: str) -> TensorProto:
    """W in another file."""
    tensor = numpy_helper.from_array(W, "w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Numbers beside the folder of the model that is after them."""
    (tmp_path / "models").mkdir()
    path = tmp_path / "secret.bin"
    path.write_bytes(W.tobytes())
    (tmp_path / "models" / "link.bin").symlink_to(path)
    return path


def evil(secret: Path, location: str, end: bytes = b"") -> Path:
    source = write_model(secret.parent / "models" / "evil.onnx", MATMUL, {})
    model = onnx.load(source)
    model.graph.initializer.append(external(location.replace("SECRET", str(secret))))
    source.write_bytes(model.SerializeToString() + end)
    return source


READERS = {
    "convert": lambda path: convert(path, path.with_name("out.onnx"), verify=False),
    "plan": plan_conversion,
    "inspect": inspect,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("location", ["../secret.bin", "SECRET", "link.bin"])
def test_weights_outside_of_the_models_folder_are_not_read(secret: Path, location: str, read):
    source = evil(secret, location)
    with pytest.raises(ExportError, match=r"evil\.onnx: the weights of 'w' lie outside of"):
        read(source)
    assert sorted(os.listdir(source.parent)) == ["evil.onnx", "link.bin"]


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_cannot_be_checked_is_not_read(secret: Path, read):
    source = evil(secret, "../secret.bin", end=b"\x83\x7d\x84\x7d")  # an empty group
    with pytest.raises(ExportError, match=r"not an ONNX model or is damaged: .*protobuf group"):
        read(source)


@pytest.mark.parametrize("command", [["export"], ["inspect"]])
def test_the_commands_say_it_in_a_sentence(secret: Path, command: list[str]):
    source = evil(secret, "../secret.bin")
    options = ["-o", str(source.with_name("out.onnx"))] if command == ["export"] else []
    done = CliRunner().invoke(app, [*command, str(source), *options])
    assert done.exit_code == 1
    assert "lie outside of the model's folder" in " ".join(done.output.split())
    assert not source.with_name("out.onnx").exists()


@pytest.mark.parametrize("name", ["m.json", "m.textproto", "m.onnxtxt"])
def test_a_file_is_read_as_the_format_that_was_checked(tmp_path: Path, name: str):
    """The onnx package takes the parser by the name, and text may hold another model."""
    path = tmp_path / name
    os.rename(write_model(tmp_path / "m.onnx", MATMUL, {"w": W}), path)
    report = convert(path, tmp_path / "out.onnx", policy="condensed")
    assert [layer.decision for layer in report.layers] == ["condensed"]
    path.write_text('ir_version: 8 graph { name: "g" }')
    with pytest.raises(ExportError, match="not an ONNX model or is damaged"):
        inspect(path)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("place", ["output", "doc_string", "initializer"])
def test_text_that_is_not_utf8_is_refused(tmp_path: Path, place: str, read):
    source = write_model(tmp_path / "m.onnx", [node("Identity", ["x"], "text"), *MATMUL], {"w": W})
    model = onnx.load(source)
    if place == "doc_string":
        model.graph.node[0].doc_string = "TEXT"
    elif place == "initializer":
        model.graph.initializer[0].name = "TEXT"
    else:
        model.graph.node[0].output[0] = "TEXT"
    source.write_bytes(model.SerializeToString().replace(b"TEXT", b"\xff\xfe\xfd\xfc"))
    with pytest.raises(ExportError, match=r"m\.onnx is damaged: .*xff.* is not UTF-8"):
        read(source)


def damaged(model: onnx.ModelProto, kind: str) -> None:
    if kind == "no output":
        del model.graph.node[0].output[:]
    else:
        model.graph.initializer.add(name="u", dims=[1])  # of no type


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no output", r"m\.onnx: the output 'y' is not computed by any node"),
        ("no type", r"onnx refuses .*m\.onnx: .*Field 'data_type'"),
    ],
)
def test_an_error_that_comes_from_a_damaged_source_names_it(tmp_path: Path, kind, reason):
    source = write_model(tmp_path / "m.onnx", MATMUL, {"w": W})
    model = onnx.load(source)
    damaged(model, kind)
    onnx.save(model, source)
    with pytest.raises(ExportError, match=reason):
        convert(source, tmp_path / "out.onnx", verify=False)
    assert not (tmp_path / "out.onnx").exists()


def test_an_error_of_our_own_is_not_put_on_a_sound_source(tmp_path: Path, monkeypatch):
    def fails(*_, **__):
        raise IndexError("ours")

    monkeypatch.setattr(onnx_convert, "lower", fails)
    source = write_model(tmp_path / "m.onnx", MATMUL, {"w": W})
    with pytest.raises(IndexError, match="ours"):
        plan_conversion(source)


def condensed_source(tmp_path: Path, change) -> Path:
    """A file that holds an op of ours already, but not a sound one."""
    source = write_model(tmp_path / "m.onnx", MATMUL, {"w": W})
    path = tmp_path / "condensed.onnx"
    convert(source, path, policy="condensed")
    model = onnx.load(path)
    change(model.graph)
    onnx.save(model, path)
    return path


def without_in_features(graph: onnx.GraphProto) -> None:
    attributes = [a for a in graph.node[0].attribute if a.name != "in_features"]
    del graph.node[0].attribute[:]
    graph.node[0].attribute.extend(attributes)


def with_a_wrong_index(graph: onnx.GraphProto) -> None:
    (tensor,) = [t for t in graph.initializer if t.name == graph.node[0].input[2]]
    indices = numpy_helper.to_array(tensor).copy()
    indices[0, 0] = 999
    tensor.CopyFrom(numpy_helper.from_array(indices, tensor.name))


def with_a_real_in_features(graph: onnx.GraphProto) -> None:
    without_in_features(graph)
    graph.node[0].attribute.append(helper.make_attribute("in_features", np.float32(48)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without_in_features, "the attribute in_features is missing"),
        (with_a_wrong_index, r"indices\[0, 0\] is 999, in_features is 48"),
        (with_a_real_in_features, "'in_features' is not of type INT"),
    ],
)
def test_an_unsound_node_of_ours_in_the_source_is_named(tmp_path: Path, change, problem: str):
    source = condensed_source(tmp_path, change)
    with pytest.raises(ExportError, match=rf"node 'MatMul_y' \(CondensedGemm\): .*{problem}"):
        convert(source, tmp_path / "out.onnx")
