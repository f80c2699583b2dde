"""CUDA sessions on machines without full support: a warned CPU fallback, if allowed."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

from fanin import ort_ops
from fanin.deploy import SessionError, cuda, doctor_gpu, open_session
from fanin.deploy.doctor import check_model_file, run_checks
from fanin.ort_ops import CudaStatus

BOTH = ["CUDAExecutionProvider", "CPUExecutionProvider"]
X = np.array([[1, 2, 3, 4]], np.float32)

USABLE = CudaStatus("libfanin_ort_ops_cuda.so", "", (13, 0), (13, 0), ("Card (9.0)",), "", "")
NO_DEVICE = replace(
    USABLE, toolkit=None, driver=None, devices=(), device_problem="no driver", remedy="Install it."
)
NOT_BUILT = replace(USABLE, library=None, library_problem="built without CUDA", remedy="Build it.")
BROKEN = replace(USABLE, library_problem="of another build", remedy="Install again.")


@pytest.fixture
def machine(monkeypatch):
    """Simulate a machine with this CUDA status and an onnxruntime with the CUDA provider."""

    def make(status, *, provider=True):
        monkeypatch.setattr(ort_ops, "cuda_status", lambda: status)
        if provider:
            monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: BOTH)

    return make


def findings():
    return {check.name: check for check in run_checks()}


def test_without_a_gpu_an_allowed_cpu_is_used_with_a_warning(machine, save_condensed):
    machine(NO_DEVICE)
    with pytest.warns(RuntimeWarning, match=r"CPU instead of CUDA: no driver\. Install") as told:
        session = open_session(save_condensed(), providers=BOTH)
    assert session.get_providers() == ["CPUExecutionProvider"]
    np.testing.assert_allclose(session.run(None, {"X": X})[0], [[5.5, 18, -1, 29]], rtol=1e-6)
    assert [warning.filename for warning in told] == [__file__]


def test_provider_options_do_not_hide_the_name(machine, save_condensed):
    machine(NO_DEVICE)
    providers = [("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
    with pytest.warns(RuntimeWarning, match="CPU instead of CUDA"):
        open_session(save_condensed(), providers=providers)


def test_a_provider_whose_libraries_are_missing_falls_back_with_a_warning(machine, save_condensed):
    machine(USABLE)  # this onnxruntime only pretends to have the provider
    with (
        pytest.warns(RuntimeWarning, match="CUDA: CUDAExecutionProvider failed to initialize"),
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),  # of onnxruntime itself
    ):
        session = open_session(save_condensed(), providers=BOTH)
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_cuda_alone_is_never_replaced(machine, save_condensed):
    machine(NO_DEVICE)
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(SessionError, match="failed to initialize"),
    ):
        open_session(save_condensed(), providers=["CUDAExecutionProvider"])


def test_an_onnxruntime_without_the_provider_stays_an_error(save_condensed):
    with pytest.raises(SessionError, match=r"has no CUDAExecutionProvider.*onnxruntime-gpu"):
        open_session(save_condensed(), providers=BOTH)


class CudaSession:
    def get_providers(self):
        return BOTH


@pytest.mark.parametrize("status", [NOT_BUILT, BROKEN])
def test_a_cuda_session_without_our_kernels_warns(machine, save_condensed, status):
    machine(status)
    with pytest.warns(RuntimeWarning, match=f"ops run on the CPU.*{status.reason}") as told:
        cuda.warn_without_kernels(CudaSession(), save_condensed())
    assert status.remedy in str(told[0].message)


@pytest.mark.filterwarnings("error")
def test_sessions_that_lose_nothing_do_not_warn(machine, save_condensed, save_dense):
    machine(NOT_BUILT)
    cuda.warn_without_kernels(CudaSession(), save_dense())
    open_session(save_condensed())
    machine(USABLE)
    cuda.warn_without_kernels(CudaSession(), save_condensed())


def test_the_doctor_passes_a_machine_without_gpu(machine):
    machine(replace(NO_DEVICE, library=None, library_problem="built without CUDA"), provider=False)
    found = findings()
    assert all(found[name].ok for name in ("CUDA kernels", "GPU", "CUDA provider"))
    assert not any(found[name].remedy for name in ("CUDA kernels", "GPU", "CUDA provider"))
    assert "none: no driver" in found["GPU"].detail


def test_the_doctor_tells_what_a_cuda_installation_without_gpu_lacks(machine):
    machine(NO_DEVICE)
    found = findings()
    assert found["GPU"].ok
    assert found["GPU"].remedy == "Install it."
    assert "run fanin's ops on the CPU: no driver" in found["CUDA provider"].detail


def test_the_doctor_tells_that_a_gpu_needs_another_wheel(machine):
    machine(USABLE, provider=False)
    check = findings()["CUDA provider"]
    assert check.ok
    assert "pip install onnxruntime-gpu" in check.remedy
    kernels = findings()["CUDA kernels"].detail
    assert "f32-gemm-stream-cuda" in kernels
    proven, _, others = kernels.partition("not yet run on a device")
    assert "bf16-conv-direct-cuda" in proven
    assert "expand" not in proven
    assert "delta" not in proven
    names = others.rpartition("only: ")[2].split(", ")
    assert {"bf16-gemm-expand-cuda", "f32-gemm-delta-cuda", "bf16-gemm-delta-cuda"} <= set(names)
    assert not any("stream" in name or "panel" in name for name in names)


@pytest.mark.parametrize("status", [NOT_BUILT, BROKEN])
def test_the_doctor_fails_if_only_the_kernels_are_missing(machine, status):
    machine(status)
    check = findings()["CUDA kernels"]
    assert not check.ok
    assert (check.detail, check.remedy) == (status.library_problem, status.remedy)


def test_the_doctor_runs_the_op_on_a_complete_installation(machine, monkeypatch):
    machine(USABLE)
    asked = []
    monkeypatch.setattr(doctor_gpu, "run_probes", lambda providers: asked.append(providers) or "ok")
    found = findings()
    assert found["CUDA provider"].ok
    assert asked == [["CUDAExecutionProvider"]]
    assert "Card (9.0); driver for CUDA 13.0" in found["GPU"].detail
    assert "built with CUDA 13.0" in found["CUDA kernels"].detail


@pytest.fixture
def chosen_for(tmp_path, save_condensed):
    """Write a model whose layers were chosen for a device."""

    def write(device, **more):
        model = onnx.load(save_condensed())
        said = {"device": device, **more}
        onnx.helper.set_model_props(model, {f"fanin.{key}": text for key, text in said.items()})
        path = tmp_path / f"{device}.onnx"
        onnx.save(model, path)
        return path

    return write


def test_a_model_chosen_for_a_gpu_says_so_on_a_cpu(chosen_for, recwarn):
    told = r"chosen for a GPU and run on a CPU.* Export it again with --device cpu\."
    with pytest.warns(RuntimeWarning, match=told) as warned:
        open_session(chosen_for("cuda"))
    assert [warning.filename for warning in warned] == [__file__]
    recwarn.clear()
    open_session(chosen_for("cpu"))
    open_session(chosen_for("something new"))
    assert not recwarn.list


def test_a_model_chosen_for_a_cpu_says_so_on_a_gpu():
    assert cuda.device_mismatch({"fanin.device": "cuda"}, on_cuda=True) is None
    assert cuda.device_mismatch({}, on_cuda=True) is None
    problem, remedy = cuda.device_mismatch({"fanin.device": "cpu"}, on_cuda=True)
    assert problem.startswith("the model's layers were chosen for a CPU and run on a GPU")
    assert remedy == "Export it again with --device cuda."


def test_the_doctor_compares_the_device_of_a_model_with_the_machine(machine, chosen_for):
    def device(path):
        checks = {check.name: check for check in check_model_file(path)}
        return checks.get("its device")

    machine(NO_DEVICE)
    found = device(chosen_for("cuda"))
    assert found.ok
    assert found.remedy == "Export it again with --device cpu."
    assert device(chosen_for("cpu")).detail == "layers were chosen for cpu"
    machine(USABLE)
    assert device(chosen_for("cpu")).remedy == "Export it again with --device cuda."
    assert device(chosen_for("cuda")).detail == "layers were chosen for cuda"
    made = chosen_for("cuda", gpu="NVIDIA H200", batch="8", precision="float16")
    assert device(made).detail == "layers were chosen for cuda (NVIDIA H200), batch 8, float16"


def test_the_doctor_compares_a_batch_with_the_one_of_the_model(machine, chosen_for):
    def batch(path, size):
        checks = {check.name: check for check in check_model_file(path, batch=size)}
        return checks.get("its batch")

    machine(USABLE)
    made = chosen_for("cuda", batch="8")
    for near in (3, 8, 31):
        found = batch(made, near)
        assert (found.detail, found.remedy) == ("layers were chosen for batch 8", "")
    for far in (2, 32):
        found = batch(made, far)
        assert found.ok
        assert found.detail.startswith("the model's layers were chosen for batch 8; at batch ")
        assert found.remedy == f"Export it again with --batch {far}."
    assert batch(made, None) is None
    assert batch(chosen_for("cuda"), 4) is None
    assert cuda.batch_mismatch({"fanin.batch": "many"}, 4) is None
