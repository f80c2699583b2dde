"""The example applications, and what applications may do with a session: fork, move, share."""

import subprocess
import sys

import numpy as np
import onnx
import pytest

from fanin.deploy import open_session

from .._waiting import PATIENCE
from ._serving import REPOSITORY, gain_model

EXAMPLES = REPOSITORY / "examples"


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
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
