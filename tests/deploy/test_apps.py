"""The example applications, and what applications may do with a session: fork, move, share."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from fanin import ort_ops
from fanin.deploy import open_session

from ._serving import REPOSITORY, gain_model

EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="module")
def cpp_app(tmp_path_factory):
    """The C++ app, built as docs/serving.md says; without CMake, by the compiler alone."""
    build = tmp_path_factory.mktemp("cpp_app")
    source = EXAMPLES / "cpp_app"
    if shutil.which("cmake"):
        commands = [
            ["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release"],
            ["cmake", "--build", build],
        ]
    else:
        files = [source / "main.cc", source / "runtime.cc"]
        compiler = os.environ.get("CXX", "c++")
        commands = [[compiler, "-std=c++17", "-O2", *files, "-o", build / "fanin_app", "-ldl"]]
    for command in commands:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in done.stdout + done.stderr
    return build / "fanin_app"


@pytest.fixture(scope="module")
def runtime():
    folder = Path(importlib.util.find_spec("onnxruntime").submodule_search_locations[0]) / "capi"
    found = sorted(folder.glob("libonnxruntime.so*"))
    if not found:
        pytest.skip(f"the wheel of onnxruntime {onnxruntime.__version__} carries no libonnxruntime")
    return found[0]


def call(app, runtime, model, x, ops=None, shape=None):
    ops = ops or ort_ops.get_library_path()
    shape = shape or ",".join(map(str, x.shape))
    command = list(map(str, (app, runtime, ops, model, shape, 2)))
    return subprocess.run(command, input=x.tobytes(), capture_output=True)


def test_the_cpp_app_gives_the_numbers_of_python(cpp_app, runtime, save_condensed):
    path = save_condensed()
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    done = call(cpp_app, runtime, path, x)
    assert done.returncode == 0, done.stderr
    (expected,) = open_session(path, threads=2).run(None, {"X": x})
    assert np.array(done.stdout.split(), np.float32).tobytes() == expected.tobytes()
    assert onnxruntime.__version__.encode() in done.stderr


def test_the_cpp_app_reports_errors(cpp_app, runtime, save_condensed, tmp_path):
    path = save_condensed()
    x = np.zeros((1, 4), np.float32)
    for change, message in (
        ({"runtime": "absent.so"}, b"cannot load ONNX Runtime"),
        ({"runtime": ort_ops.get_library_path()}, b"no OrtGetApiBase"),
        ({"ops": tmp_path / "absent.so"}, b"absent.so"),
        ({"model": tmp_path / "absent.onnx"}, b"absent.onnx"),
        ({"shape": "2,4"}, b"not enough"),
    ):
        done = call(**{"app": cpp_app, "runtime": runtime, "model": path, "x": x, **change})
        assert (done.returncode, done.stdout) == (1, b"")
        assert message in done.stderr


def test_the_python_app_runs(save_condensed):
    command = [sys.executable, str(EXAMPLES / "python_app" / "app.py"), str(save_condensed())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "8 runs agree, in 3 sessions, 1 thread left" in done.stdout
    # 2 for every input: bias + 2 · the sums of the rows' weights, neuron 2 ablated.
    assert "[ 6.5 14.  -1. ]" in done.stdout
    command[-1] = "absent.onnx"
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "there is no such file" in done.stderr) == (1, True)


FORK = """
import os, sys, numpy as np
from fanin.deploy import open_session
path, x = sys.argv[1], np.ones((2, 4), np.float32)
before = open_session(path, threads=int(sys.argv[2]))
expected = before.run(None, {"X": x})[0]
child = os.fork()
if child == 0:
    session = before if sys.argv[3] == "inherited" else open_session(path, threads=2)
    os._exit(0 if np.array_equal(session.run(None, {"X": x})[0], expected) else 3)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert np.array_equal(before.run(None, {"X": x})[0], expected)
sys.exit(status)
"""


@pytest.mark.parametrize(("threads", "session"), [(2, "its own"), (1, "inherited")])
def test_after_a_fork(save_condensed, threads, session):
    """A child may open sessions, and use an inherited one that has no threads of its own."""
    command = [sys.executable, "-c", FORK, str(save_condensed()), str(threads), session]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_relative_path_works_after_the_working_directory_changed(monkeypatch, tmp_path):
    """Also with external data, and with the session kept while its files are renamed away."""
    (tmp_path / "models").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    onnx.save(
        gain_model(3, width=512),
        tmp_path / "models" / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    monkeypatch.chdir(tmp_path)
    session = open_session("models/m.onnx", threads=1)
    monkeypatch.chdir(elsewhere)
    (tmp_path / "models").rename(tmp_path / "moved")
    x = np.ones((1, 512), np.float32)
    assert (session.run(None, {"x": x})[0] == 3).all()
    assert (open_session("../moved/m.onnx", threads=1).run(None, {"x": x})[0] == 3).all()
