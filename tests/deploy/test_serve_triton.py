"""The Triton model repository, parsed with Triton's own protobuf schema."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from fanin import ort_ops
from fanin.deploy import SessionError, open_session
from fanin.deploy.serve import ModelSource, SettingsError
from fanin.deploy.serve.triton import TritonSettings, write_triton_model

from ._serving import gain_model, save


@pytest.fixture(scope="module")
def parse():
    """Parse config.pbtxt with Triton's schema; unknown fields and wrong types are errors.

    Loaded by its path: ``import tritonclient.grpc`` wants grpc, which reading a config does not.
    """
    package = importlib.util.find_spec("tritonclient")
    if package is None:
        pytest.skip("needs tritonclient: pip install 'tritonclient[http]'")
    path = Path(package.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    from google.protobuf import text_format

    def read(text):
        return text_format.Parse(text, module.ModelConfig())

    with pytest.raises(text_format.ParseError):
        read("no_such_field: 1")
    return read


def write(path, out, name="net", **more):
    return write_triton_model(TritonSettings(ModelSource(name, path), out, **more))


def test_the_config_describes_the_model_and_names_the_library(parse, save_condensed, tmp_path):
    path = save_condensed()
    folder = write(path, tmp_path / "repo", threads=3, instances=2)
    assert folder == tmp_path / "repo" / "net"
    config = parse((folder / "config.pbtxt").read_text())
    assert (config.name, config.backend, config.max_batch_size) == ("net", "onnxruntime", 0)
    (tensor,) = config.input
    assert (tensor.name, list(tensor.dims)) == ("X", [-1, 4])
    assert tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[
        tensor.data_type
    ].name == ("TYPE_FP32")
    assert [(tensor.name, list(tensor.dims)) for tensor in config.output] == [("Y", [-1, 4])]
    library = f"/models/net/{ort_ops.get_library_path().name}"
    assert list(config.model_operations.op_library_filename) == [library]
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    assert parameters == {"intra_op_thread_count": "3", "inter_op_thread_count": "1"}
    (group,) = config.instance_group
    assert (group.count, group.kind) == (2, group.KIND_CPU)
    assert not config.HasField("dynamic_batching")


def test_the_repository_runs_as_the_model_does(save_condensed, tmp_path):
    """Uses the repository's library, as Triton's backend registers it."""
    import onnxruntime

    path = save_condensed()
    folder = write(path, tmp_path / "repo")
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(folder / ort_ops.get_library_path().name))
    session = onnxruntime.InferenceSession(folder / "1" / "model.onnx", options)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (expected,) = open_session(path, threads=1).run(None, {"X": x})
    assert session.run(None, {"X": x})[0].tobytes() == expected.tobytes()


def test_external_data_go_along(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(
        gain_model(3, width=512),
        path,
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    folder = write(path, tmp_path / "repo")
    x = np.ones((1, 512), np.float32)
    session = open_session(folder / "1" / "model.onnx", threads=1)
    assert (session.run(None, {"x": x})[0] == 3).all()


def test_a_model_in_the_runtimes_own_format_is_refused(tmp_path):
    """Triton would take that file for the model."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    source = save(gain_model(3), tmp_path / "m.onnx")
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    settings = TritonSettings(ModelSource("m", tmp_path / "m.ort"), tmp_path / "repository")
    with pytest.raises(SessionError, match=r"m\.ort: this is not an ONNX file"):
        write_triton_model(settings)
    assert not (tmp_path / "repository" / "m").exists()


def test_with_batching_triton_adds_the_batch_dimension(parse, tmp_path):
    path = save(gain_model(1), tmp_path / "m.onnx")
    folder = write(path, tmp_path / "repo", max_batch=8)
    config = parse((folder / "config.pbtxt").read_text())
    assert config.max_batch_size == 8
    assert config.HasField("dynamic_batching")
    assert [list(tensor.dims) for tensor in (*config.input, *config.output)] == [[4], [4]]


def test_a_fixed_batch_cannot_be_batched(tmp_path):
    model = gain_model(1)
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_value = 2
    path = save(model, tmp_path / "m.onnx")
    with pytest.raises(SettingsError, match="'x' has shape \\[2, 4\\]"):
        write(path, tmp_path / "repo", max_batch=8)
    assert not (tmp_path / "repo").exists()


def test_types_and_scalars(parse, tmp_path):
    types = {"a": TensorProto.INT64, "b": TensorProto.STRING, "c": TensorProto.BOOL}
    inputs = [
        helper.make_tensor_value_info(name, kind, [] if name == "a" else ["n", 2])
        for name, kind in types.items()
    ]
    outputs = [
        helper.make_tensor_value_info(f"{name}_out", kind, [] if name == "a" else ["n", 2])
        for name, kind in types.items()
    ]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in types]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    folder = write(save(model, tmp_path / "m.onnx"), tmp_path / "repo")
    config = parse((folder / "config.pbtxt").read_text())
    kinds = config.input[0].DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    found = [(kinds[item.data_type].name, list(item.dims)) for item in config.input]
    assert found == [("TYPE_INT64", [1]), ("TYPE_STRING", [-1, 2]), ("TYPE_BOOL", [-1, 2])]
    assert config.input[0].HasField("reshape")
    assert not config.input[1].HasField("reshape")


def test_a_second_version_joins_the_first_and_none_is_overwritten(save_condensed, tmp_path):
    path = save_condensed()
    folder = write(path, tmp_path / "repo")
    write(path, tmp_path / "repo", version=2)
    names = sorted(item.name for item in folder.iterdir())
    assert names == ["1", "2", "config.pbtxt", ort_ops.get_library_path().name]
    with pytest.raises(SettingsError, match="already exists"):
        write(path, tmp_path / "repo", version=2)


def test_a_model_that_does_not_open_leaves_nothing(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"garbage")
    with pytest.raises(SessionError, match="not an ONNX"):
        write(path, tmp_path / "repo")
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize("copy", ["copyfile", "copyfileobj"], ids=["model", "library"])
def test_a_disk_that_is_full_leaves_no_part_of_a_model(save_condensed, tmp_path, monkeypatch, copy):
    def full(source, target):  # noqa: ARG001
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, copy, full)
    with pytest.raises(OSError, match="No space left"):
        write(save_condensed(), tmp_path / "repo")
    assert list((tmp_path / "repo").iterdir()) == []


def test_the_command(save_condensed, tmp_path):
    def run(*more):
        command = [sys.executable, "-m", "fanin", "triton-repo", f"net={save_condensed()}"]
        return subprocess.run([*command, *more], capture_output=True, text=True, cwd=tmp_path)

    done = run("--out", "repo", "--mount", "/srv", "--model-version", "4")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "repo" / "net" / "4" / "model.onnx").is_file()
    assert '"/srv/net/' in (tmp_path / "repo" / "net" / "config.pbtxt").read_text()
    done = run("--out", "repo", "--mount", "relative")
    assert (done.returncode, "absolute path" in done.stderr) == (1, True)
