"""The doctor on a model file: whether it opens, which kernels its layers use, remedies."""

import re
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnxruntime.quantization.shape_inference import quant_pre_process

from fanin.deploy import open_session
from fanin.deploy.doctor import check_model_file
from fanin.export import CondensedWeight
from fanin.export.onnx_op import condensed_layer_model
from fanin.ort_ops import _native


def findings(path):
    return {check.name: check for check in check_model_file(path)}


def test_it_names_the_kernels_that_a_session_packs_for(save_condensed, monkeypatch):
    monkeypatch.delenv("FANIN_ISA", raising=False)
    path = save_condensed()
    found = findings(path)
    assert found["model model.onnx"].ok
    detail = found["model model.onnx"].detail
    assert detail == "opens; X tensor(float)[batch, 4] → Y tensor(float)[batch, 4]"
    layers = found["its layers"]
    assert layers.ok
    arrays = [onnx.numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer]
    values, indices, bias, rows = arrays[:4]
    packed = _native.PackedGemm(
        values=values, indices=indices, rows=rows, bias=bias, in_features=4, out_features=4
    )
    kernels = " and ".join(info.kernel for info in packed.info())
    assert f"1 CondensedGemm (fc1): {kernels}; 0.0 MB packed" in layers.detail


def test_a_forced_scalar_kernel_is_named_with_a_remedy(save_condensed, monkeypatch):
    monkeypatch.setenv("FANIN_ISA", "scalar")
    layers = findings(save_condensed())["its layers"]
    assert "-scalar" in layers.detail
    assert "since FANIN_ISA=scalar: unset it" in layers.remedy


def test_a_convolution(tmp_path):
    from fanin.deploy.probe_model import PROBES

    path = tmp_path / "conv.onnx"
    path.write_bytes(PROBES[1].model)
    layers = findings(path)["its layers"]
    assert layers.ok
    assert "1 CondensedConv (layer): f32-conv-" in layers.detail


def test_a_dense_model_passes_with_a_hint_how_to_condense_it(save_dense):
    layers = findings(save_dense())["its layers"]
    assert layers.ok
    assert layers.detail == "1 Gemm: onnxruntime's own kernels\nno layer is condensed"
    assert "fanin export" in layers.remedy


def test_weights_that_are_inputs_are_a_finding(save_condensed):
    path = save_condensed()
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("values", tensor.data_type, list(tensor.dims))
    )
    del model.graph.initializer[0]
    onnx.save(model, path)
    layers = findings(path)["its layers"]
    assert not layers.ok
    assert "the weights of fc1 are not constant" in layers.detail
    assert "initializers" in layers.remedy


@pytest.mark.parametrize(
    ("make", "problem", "remedy"),
    [
        (lambda _path: None, "there is no such file", "Check the path"),
        (lambda path: path.write_bytes(b"garbage"), "this is not an ONNX file", "again"),
        (lambda path: path.mkdir(), "a folder", "Pass the .onnx file"),
    ],
)
def test_a_file_that_does_not_open(tmp_path, make, problem, remedy):
    path = tmp_path / "m.onnx"
    make(path)
    (check,) = check_model_file(path)
    assert not check.ok
    assert problem in check.detail
    assert remedy in check.remedy


def test_invalid_weights_name_their_node(save_condensed):
    path = save_condensed(indices=np.array([[0, 9], [1, 2], [0, 3]], np.uint16))
    (check,) = check_model_file(path)
    assert not check.ok
    assert "fc1" in check.detail


def test_a_process_that_dies_is_a_finding(save_condensed, monkeypatch):
    import signal

    from fanin.deploy import doctor_model

    killed = subprocess.CompletedProcess([], -signal.SIGSEGV, "", "")
    monkeypatch.setattr(doctor_model.subprocess, "run", lambda *_, **__: killed)
    (check,) = check_model_file(save_condensed())
    assert not check.ok
    assert "SIGSEGV" in check.detail


def test_the_command_shows_the_model_and_its_exit_status_counts_it(save_condensed, tmp_path):
    def run(path):
        command = [sys.executable, "-m", "fanin", "doctor", str(path)]
        return subprocess.run(command, capture_output=True, text=True)

    done = run(save_condensed())
    assert done.returncode == 0, done.stdout
    assert "its layers" in done.stdout
    assert "convolutions" in done.stdout
    done = run(tmp_path / "absent.onnx")
    assert done.returncode == 1
    assert "there is no such file" in done.stdout


@pytest.fixture
def exported(tmp_path):
    dense = np.diag(np.arange(1, 5, dtype=np.float32))
    model = condensed_layer_model(CondensedWeight.from_dense(dense), None)
    model.graph.node[0].name = "fc1"
    onnx.save(model, tmp_path / "exported.onnx")
    return tmp_path / "exported.onnx"


@pytest.mark.parametrize(("domain", "prefix"), [("ai.fanin", "a_"), ("someone", "")])
def test_ops_that_another_tool_renamed_are_a_finding_and_a_warning(exported, domain, prefix):
    model = onnx.load(exported)
    function, node = model.functions[0], model.graph.node[0]
    function.domain = node.domain = domain
    function.name = node.op_type = f"{prefix}CondensedGemm"
    model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    onnx.save(model, exported)
    layers = findings(exported)["its layers"]
    assert not layers.ok
    said = f"node 'fc1' runs dense: {prefix}CondensedGemm of domain '{domain}' is fanin's Condensed"
    assert said in layers.detail
    assert "fanin export" in layers.remedy
    with pytest.warns(RuntimeWarning, match=re.escape(said)):
        open_session(exported)


def test_a_file_whose_ops_another_tool_made_dense_is_recognized(exported, tmp_path):
    path = tmp_path / "prepared.onnx"
    quant_pre_process(exported, path)
    layers = findings(path)["its layers"]
    assert layers.ok
    assert "another tool has put dense layers in their place" in layers.detail
    assert "skip_optimization=True" in layers.remedy
    quant_pre_process(exported, path, skip_optimization=True)
    assert "1 CondensedGemm (fc1)" in findings(path)["its layers"].detail
