"""onnxruntime-gpu on a machine without a GPU: sessions fall back to the CPU with a warning."""

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from fanin.export.onnx_op import condensed_layer_model

from ..ort_ops.test_op_cuda_library import LIBRARY, OTHER_BUILD, built_with_cuda, compiled, driver
from .test_open_session_matrix import package  # noqa: F401 (a fixture)
from .test_version_matrix import GPU_WHEEL, LAYER, python_of, weight_of

pytestmark = pytest.mark.matrix

# Opens a model with the providers given and prints what happened as JSON.
PROGRAM = """
import json, sys, warnings
from pathlib import Path
import numpy as np
from fanin.deploy import SessionError, open_session
from fanin.deploy.doctor import run_checks

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    try:
        session = open_session(sys.argv[1], threads=1, providers=sys.argv[2].split(","))
        y = session.run(None, {"x": np.load(sys.argv[3])})[0]
        outcome = {"providers": session.get_providers(), "y": y.tolist()}
    except SessionError as error:
        outcome = {"error": str(error)}
outcome["told"] = [str(warning.message) for warning in told]
outcome["loaded"] = "libfanin_ort_ops_cuda.so" in Path("/proc/self/maps").read_text()
outcome["failed"] = [f"{check.name}: {check.detail}" for check in run_checks() if not check.ok]
outcome["checks"] = {check.name: check.detail for check in run_checks()}
print(json.dumps(outcome))
"""

BOTH = "CUDAExecutionProvider,CPUExecutionProvider"


@pytest.fixture
def opened(package, tmp_path):  # noqa: F811
    """The outcome of opening a one-layer model with these providers and this driver."""
    x = LAYER.x(3)
    np.save(tmp_path / "x.npy", x)
    onnx.save(condensed_layer_model(weight_of(LAYER), None), tmp_path / "model.onnx")

    def run(providers: str, driver_in: Path = tmp_path / "nowhere"):
        done = subprocess.run(
            [
                *(python_of(GPU_WHEEL), "-c", PROGRAM),
                *(tmp_path / "model.onnx", providers, tmp_path / "x.npy"),
            ],
            env={"PYTHONPATH": str(package), "LD_LIBRARY_PATH": str(driver_in)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        outcome = json.loads(done.stdout.splitlines()[-1])
        if "y" in outcome:
            error = np.abs(np.array(outcome["y"]) - LAYER.expected(x)).max()
            assert error < 1e-5 * np.abs(LAYER.expected(x)).max()
        return outcome, done.stderr

    return run


def test_without_a_driver_sessions_fall_back_to_the_cpu_with_a_warning(opened):
    outcome, _ = opened(BOTH)
    assert outcome["providers"] == ["CPUExecutionProvider"]
    assert len(outcome["told"]) == 1
    assert "runs on the CPU instead of CUDA: there is no NVIDIA driver" in outcome["told"][0]
    assert outcome["failed"] == []
    assert "there is no NVIDIA driver" in outcome["checks"]["GPU"]
    assert not outcome["loaded"]


def test_cuda_alone_is_an_error_without_a_driver(opened):
    outcome, _ = opened("CUDAExecutionProvider")
    assert "CUDAExecutionProvider failed to initialize" in outcome["error"]


def test_cpu_sessions_are_unaffected(opened):
    outcome, log = opened("CPUExecutionProvider")
    assert outcome["providers"] == ["CPUExecutionProvider"]
    assert outcome["told"] == []
    assert "fanin" not in log


@built_with_cuda
def test_the_cuda_ops_register_beside_the_cpu_ops(opened, tmp_path):
    """A driver without CUDA's libraries: the ops are registered, but the provider fails to load."""
    outcome, _ = opened(BOTH, driver(tmp_path))
    assert outcome["loaded"]
    assert outcome["providers"] == ["CPUExecutionProvider"]
    assert any("CUDAExecutionProvider failed to initialize" in told for told in outcome["told"])
    outcome, _ = opened("CPUExecutionProvider", driver(tmp_path))
    assert outcome["loaded"]
    assert outcome["told"] == []


def test_a_cuda_library_of_another_build_is_reported_in_the_log(opened, package, tmp_path):  # noqa: F811
    compiled(OTHER_BUILD, package / "fanin" / "ort_ops" / LIBRARY.name)
    outcome, log = opened("CPUExecutionProvider", driver(tmp_path))
    assert outcome["providers"] == ["CPUExecutionProvider"]
    assert log.count("its ops run on the CPU") == 1
    assert "is of another build" in log
    assert any("is of another build" in failed for failed in outcome["failed"])
