"""Every failure to open a model tells what is wrong, where, and what to do next."""

import os
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from fanin import ort_ops
from fanin.deploy import SessionError, open_session
from fanin.deploy.diagnosis import explain_load_failure


def refused(path, **arguments) -> SessionError:
    with pytest.raises(SessionError) as caught:
        open_session(path, **arguments)
    error = caught.value
    assert error.problem.rstrip(".") in str(error)
    assert error.remedy
    assert error.remedy in str(error)
    return error


class TestTheFile:
    def test_missing(self, tmp_path):
        error = refused(tmp_path / "none.onnx")
        assert error.model == tmp_path / "none.onnx"
        assert "no such file" in error.problem
        assert "fanin export" in error.remedy

    def test_a_folder(self, tmp_path):
        assert "folder" in refused(tmp_path).problem

    def test_a_run_folder_names_the_export_command(self, tmp_path):
        (tmp_path / "config.toml").write_text("")
        assert f"fanin export {tmp_path}" in refused(tmp_path).remedy

    def test_not_a_regular_file(self, tmp_path):
        os.mkfifo(tmp_path / "pipe.onnx")
        assert "not a regular file" in refused(tmp_path / "pipe.onnx").problem

    def test_not_readable(self, save_condensed, monkeypatch):
        monkeypatch.setattr(os, "access", lambda *_: False)
        assert "permission denied" in refused(save_condensed()).problem

    def test_in_a_folder_that_may_not_be_entered(self, save_condensed, monkeypatch):
        path = save_condensed()
        stat = Path.stat

        def denied(self, **more):
            if self == path:
                raise PermissionError(13, "Permission denied", str(path))
            return stat(self, **more)

        monkeypatch.setattr(Path, "stat", denied)
        assert "permission denied" in refused(path).problem

    @pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"hello world", os.urandom(512)])
    def test_not_onnx(self, tmp_path, content):
        path = tmp_path / "m.onnx"
        path.write_bytes(content)
        assert "not an ONNX file" in refused(path).problem

    def test_cut_off(self, save_condensed):
        path = save_condensed()
        path.write_bytes(path.read_bytes()[:-100])
        assert "cut off" in refused(path).problem

    def test_a_git_lfs_pointer_names_git_lfs(self, tmp_path):
        path = tmp_path / "m.onnx"
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
        assert "git lfs pull" in refused(path).remedy

    def test_a_checkpoint_names_the_export_command(self, tmp_path):
        path = tmp_path / "m.pt"
        path.write_bytes(b"PK\x03\x04" + b"\x00" * 60)
        assert "fanin export" in refused(path).remedy

    @pytest.mark.parametrize("model", [b"\x08\x09", 3, None])
    def test_only_a_path_is_taken(self, model):
        assert "by its path" in refused(model).problem

    def test_an_ir_version_that_the_runtime_does_not_know(self, save_condensed):
        path = save_condensed()
        model = onnx.load(path)
        model.ir_version = 99
        onnx.save(model, path)
        error = refused(path)
        assert "IR version is 99" in error.problem
        assert "Upgrade onnxruntime" in error.remedy

    def test_an_opset_that_the_runtime_does_not_know(self, save_condensed):
        path = save_condensed()
        model = onnx.load(path)
        model.opset_import[0].version = 999
        onnx.save(model, path)
        assert "opset" in refused(path).problem


class TestExternalData:
    @pytest.fixture
    def path(self, tmp_path):
        weight = np.ones((64, 64), np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["X", "W"], ["Y"])],
            "test",
            [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["batch", 64])],
            [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["batch", 64])],
            [numpy_helper.from_array(weight, "W")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        path = tmp_path / "big.onnx"
        onnx.save(
            model, path, save_as_external_data=True, location="big.onnx.data", size_threshold=0
        )
        return path

    def test_complete_opens(self, path):
        assert open_session(path).get_inputs()[0].shape == ["batch", 64]

    def test_missing_names_the_file_and_the_tensor(self, path):
        (path.parent / "big.onnx.data").unlink()
        error = refused(path)
        assert "big.onnx.data" in error.problem
        assert "'W'" in error.problem
        assert "Copy" in error.remedy

    def test_cut_off(self, path):
        os.truncate(path.parent / "big.onnx.data", 100)
        assert "truncated" in refused(path).problem


class TestTheOps:
    def test_a_wrong_domain_names_the_node_and_the_right_domain(self, save_condensed):
        error = refused(save_condensed(domain="ai.fanim"))
        assert error.node == "fc1"
        assert "'ai.fanim'" in error.problem
        assert "'ai.fanin'" in error.remedy

    def test_no_domain(self, save_condensed):
        assert "in domain ''" in refused(save_condensed(domain="")).problem

    def test_an_op_of_a_newer_fanin(self, save_condensed):
        error = refused(save_condensed(op_type="CondensedFuture"))
        assert "CondensedFuture" in error.problem
        assert "Upgrade fanin" in error.remedy

    def test_an_op_of_somebody_else(self, save_condensed):
        error = refused(save_condensed(domain="com.other", op_type="Magic"))
        assert error.node == "fc1"
        assert "Magic of domain 'com.other'" in error.problem
        assert "Name the library that has the domain 'com.other'" in error.remedy

    def test_a_missing_opset_import(self, save_condensed):
        # ONNX Runtime tolerates it with the library, but not without; nor do other tools.
        path = save_condensed(opset_import=False)
        with pytest.raises(Exception, match=r"registered|opset import") as caught:
            onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        error = explain_load_failure(path, caught.value)
        assert error.node == "fc1"
        assert "no opset import" in error.problem
        assert "version: 1" in error.remedy

    def test_unsound_weights_keep_the_node_and_the_reason(self, save_condensed):
        indices = np.array([[0, 1], [1, 9], [0, 3]], np.uint16)
        error = refused(save_condensed(indices=indices))
        assert error.node == "fc1"
        assert "node 'fc1'" in error.problem
        assert "indices[1, 1] is 9, in_features is 4" in error.problem
        assert "export it again" in error.remedy

    def test_an_unknown_isa_is_not_blamed_on_the_weights(self, save_condensed, monkeypatch):
        monkeypatch.setenv("FANIN_ISA", "mmx")
        error = refused(save_condensed())
        assert "mmx" in error.problem
        assert "Unset FANIN_ISA" in error.remedy

    def test_an_unknown_choice_of_cuda_kernels_is_not_blamed_on_them(self, save_condensed):
        text = "CondensedGemm node 'f': FANIN_CUDA_UNPROVEN 'x' is unknown, it must be on or off"
        raised = RuntimeError(f"Exception during initialization: {text}")
        assert "Unset FANIN_CUDA_UNPROVEN" in explain_load_failure(save_condensed(), raised).remedy


class TestTheLibrary:
    def test_missing(self, save_condensed, monkeypatch):
        def missing():
            raise FileNotFoundError("libfanin_ort_ops.so is not there")

        monkeypatch.setattr(ort_ops, "get_library_path", missing)
        error = refused(save_condensed())
        assert "libfanin_ort_ops.so is not there" in error.problem
        assert "Install fanin" in error.remedy

    def test_damaged(self, save_condensed, monkeypatch, tmp_path):
        broken = tmp_path / "libfanin_ort_ops.so"
        broken.write_bytes(b"not a library")
        monkeypatch.setattr(ort_ops, "get_library_path", lambda: broken)
        assert "cannot be registered" in refused(save_condensed()).problem

    def test_another_copy_registered_by_the_caller(self, save_condensed, tmp_path):
        library = ort_ops.get_library_path()
        copy = shutil.copy(library, tmp_path / library.name)
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(str(copy))
        error = refused(save_condensed(), options=options)
        assert f"carry the ops of ai.fanin from {copy} already" in error.problem
        assert f"those of {library} cannot be added" in error.problem
        assert "options without the other copy" in error.remedy

    @pytest.mark.parametrize(
        "text",
        [
            "Domain already set in registry",
            "Failed to add kernel for ArgSort ai.onnx.contrib CPUExecutionProvider: Conflicting "
            "with a registered kernel with op versions. the since version is: 1",
        ],
    )
    def test_two_registrations_of_one_domain(self, save_condensed, text):
        text = f"[ONNXRuntimeError] : 1 : FAIL : {text}"
        error = explain_load_failure(save_condensed(), RuntimeError(text))
        assert "claim the same domain" in error.problem
        assert "Register each of them once" in str(error)

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            (
                "Type Error: Type 'tensor(bfloat16)' of input parameter (x) of operator "
                "(CondensedGemm) in node (a) is invalid.",
                "bfloat16 there",
            ),
            (
                "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for "
                "Relu(14) node with name 'r'",
                "Relu in the type of this model",
            ),
        ],
    )
    def test_a_type_without_kernels(self, save_condensed, text, what):
        error = explain_load_failure(save_condensed(), RuntimeError(text))
        assert f"have no kernel for {what}" in error.problem
        assert "CUDAExecutionProvider" in error.remedy
        assert "--precision float16 or float32" in error.remedy


class TestTheRuntime:
    def test_missing(self, save_condensed, monkeypatch):
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        error = refused(save_condensed())
        assert "not installed" in error.problem
        assert "onnxruntime-gpu" in error.remedy

    def test_broken_names_numpy(self, save_condensed, monkeypatch, tmp_path):
        (tmp_path / "onnxruntime.py").write_text("raise ImportError")
        monkeypatch.delitem(sys.modules, "onnxruntime")
        monkeypatch.syspath_prepend(tmp_path)
        error = refused(save_condensed())
        assert "cannot be imported" in error.problem
        assert "numpy<2" in error.remedy

    @pytest.mark.parametrize("version", ["1.16.3", "0.9", "1.9.0"])
    def test_too_old_is_refused_before_the_library_is_loaded(
        self, save_condensed, monkeypatch, version
    ):
        monkeypatch.setattr(onnxruntime, "__version__", version)
        monkeypatch.setattr(ort_ops, "register", lambda _: pytest.fail("it was loaded"))
        error = refused(save_condensed())
        assert f"onnxruntime {version} is too old" in error.problem
        assert "Upgrade" in error.remedy

    def test_something_else_of_that_name(self, save_condensed, monkeypatch):
        monkeypatch.setitem(sys.modules, "onnxruntime", types.ModuleType("onnxruntime"))
        assert "is not ONNX Runtime" in refused(save_condensed()).problem


class TestPathsInTheOptions:
    def test_a_folder_for_the_optimized_model_that_does_not_exist(self, save_condensed, tmp_path):
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "none" / "m.onnx")
        assert "does not exist" in refused(save_condensed(), options=options).problem

    def test_a_profile_that_cannot_be_written(self, save_condensed, monkeypatch, tmp_path):
        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / "profile")
        monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
        assert "not writable" in refused(save_condensed(), options=options).problem
