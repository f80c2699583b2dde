"""A user id that is unknown to the system and has no home, as in containers."""

import os
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

# As root, the tests change the user id; reading stays allowed, since Python may be in root's home.
SETPRIV = [
    "setpriv", "--reuid=12345", "--regid=12345", "--clear-groups",
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
]  # fmt: skip
# Otherwise Python's user database is patched, through which all code looks up the home.
UNKNOWN = """
import os, pwd, sys
def unknown(*_):
    raise KeyError("no such user")
os.getuid, pwd.getpwuid, pwd.getpwnam = lambda: 12345, unknown, unknown
sys.argv[0] = "fanin"
from fanin.cli import main
main()
"""


def can_change_user() -> bool:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return False
    return subprocess.run([*SETPRIV, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A world-writable folder with a sparse model."""
    folder = tmp_path_factory.mktemp("anyone")
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((48, 32)).astype(np.float32)
    weight[rng.random(weight.shape) < 0.9] = 0
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 32])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "in.onnx")
    for path in (folder, folder.parent, folder.parent.parent):
        if path.stat().st_uid == os.geteuid():
            path.chmod(path.stat().st_mode | 0o005)
    folder.chmod(0o777)
    return folder


def fanin(folder, *arguments, home=None):
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("HOME", "USER", "LOGNAME", "USERNAME", "LNAME", "FANIN_CALIBRATION")
        and not name.startswith("XDG_")
    }
    if home is not None:
        environment["HOME"] = str(home)
    command = [sys.executable, "-c", UNKNOWN, *arguments]
    if can_change_user():
        command = [*SETPRIV, sys.executable, "-m", "fanin", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module", params=["no home", "no such folder", "a closed one"])
def home(request, tmp_path_factory):
    if request.param == "no home":
        return None
    folder = tmp_path_factory.mktemp("home")
    if request.param == "a closed one":
        folder.chmod(0o500)
        return folder
    return folder / "nowhere"


def test_models_are_exported_inspected_and_diagnosed(folder, home):
    export = ["export", "in.onnx", "-o", "out.onnx", "--policy", "condensed"]
    for command in (export, ["inspect", "out.onnx"], ["doctor", "out.onnx"]):
        done = fanin(folder, *command, home=home)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr


def test_a_calibration_needs_a_folder(folder):
    done = fanin(folder, "calibrate")
    assert done.returncode == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    assert "no home folder to keep the calibration in; name a file" in said


def test_a_layer_is_measured_and_a_run_trained(folder):
    recipe = folder / "recipe.toml"
    recipe.write_text(
        '[data]\nname = "digits"\n[model]\nname = "mlp"\nhidden = [16]\n'
        '[training]\nepochs = 1\ndevice = "cpu"\n[optimizer]\nname = "sgd"\nlr = 0.1\n'
        '[method]\nname = "dense"\n'
    )
    done = fanin(folder, "train", "recipe.toml", "--out", "run", "--no-progress")
    assert done.returncode == 0, done.stderr
    done = fanin(
        folder, "bench", "layer", "--out", "results", "--in-features", "64", "--out-features", "32",
        "--sparsity", "0.9", "--rounds", "5", "-w", "0.05", "--conditions", "none", "--no-pin",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (folder / "results" / "results.md").is_file()
