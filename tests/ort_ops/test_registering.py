"""Registering the library repeatedly, another copy of it, or another library."""

import shutil
import subprocess
import sys
import textwrap

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from fanin import ort_ops

from ._models import Layer, assert_close, run, spec_of

LAYER = Layer.random()
MODEL = spec_of(LAYER).build().SerializeToString()
LIBRARY = str(ort_ops.get_library_path())


@pytest.fixture
def options():
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 3
    return made


@pytest.fixture
def other_copy(tmp_path):
    return str(shutil.copy(LIBRARY, tmp_path))


def session_of(options, model=MODEL):
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def assert_right(session):
    x = LAYER.x(5)
    assert_close(run(session, X=x), LAYER, x)


def test_registering_again_changes_nothing(options):
    for _ in range(3):
        ort_ops.register(options)
        assert options.get_session_config_entry("fanin.library") == LIBRARY
    assert_right(session_of(options))
    ort_ops.register(options)
    assert_right(session_of(options))


def test_threads_may_be_set_between_two_registrations(options):
    ort_ops.register(options)
    options.add_session_config_entry("fanin.threads", "1")
    ort_ops.register(options)
    assert_right(session_of(options))


def test_another_copy_is_refused_with_both_paths_and_the_first_stays_usable(options, other_copy):
    ort_ops.register(options)
    with pytest.raises(Exception, match="register one of the two libraries") as refusal:
        options.register_custom_ops_library(other_copy)
    assert f"carry the ops of ai.fanin from {LIBRARY} already" in str(refusal.value)
    assert f"those of {other_copy} cannot be added" in str(refusal.value)
    assert_right(session_of(options))


def test_two_copies_serve_sessions_of_one_process_side_by_side(options, other_copy):
    ort_ops.register(options)
    others = onnxruntime.SessionOptions()
    others.register_custom_ops_library(other_copy)
    sessions = [session_of(options), session_of(others)]
    for session in sessions:
        assert_right(session)


def test_another_library_can_be_registered_in_either_order():
    extensions = pytest.importorskip(
        "onnxruntime_extensions", reason="pip install onnxruntime-extensions"
    ).get_library_path()
    model = spec_of(LAYER).build()
    node = helper.make_node("NegPos", ["Y"], ["low", "high"], domain="ai.onnx.contrib")
    model.graph.node.append(node)
    model.opset_import.append(helper.make_opsetid("ai.onnx.contrib", 1))
    del model.graph.output[:]
    for name in node.output:
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    x = LAYER.x(5)
    for libraries in ((LIBRARY, extensions), (extensions, LIBRARY, LIBRARY)):
        options = onnxruntime.SessionOptions()
        for library in libraries:
            options.register_custom_ops_library(str(library))
        low, high = session_of(options, model.SerializeToString()).run(None, {"X": x})
        assert np.all(low <= 0)
        assert np.all(high >= 0)
        assert_close(low + high, LAYER, x)


def test_the_library_stays_loaded_after_its_last_options_are_deleted():
    program = f"""
        import gc, onnxruntime
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library({LIBRARY!r})
        del options
        gc.collect()
        print({LIBRARY!r} in open("/proc/self/maps").read())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
