"""open_session: what it sets and returns, and that it never falls back silently."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest

from fanin import ort_ops
from fanin.deploy import SessionError, open_session
from fanin.deploy.cpus import available_cpus
from fanin.deploy.session import _set_threads

X = np.array([[1, 2, 3, 4], [-1, 0.5, 0, 2]], np.float32)
Y = np.array([[5.5, 18, -1, 29], [0.5, 1.5, -1, 7]], np.float32)


def threads_told(session):
    return session.get_session_options().get_session_config_entry("fanin.threads")


def test_a_condensed_model_runs_through_the_kernel(save_condensed):
    session = open_session(save_condensed())
    (output,) = session.run(None, {"X": X})
    np.testing.assert_allclose(output, Y, rtol=1e-6)


def test_a_model_without_fanin_ops_opens_too(save_dense):
    (output,) = open_session(save_dense()).run(None, {"X": X})
    np.testing.assert_allclose(output, Y, rtol=1e-6)


def test_path_may_be_text_and_relative(save_condensed, monkeypatch):
    path = save_condensed()
    monkeypatch.chdir(path.parent)
    assert open_session("model.onnx").run(None, {"X": X})[0].shape == (2, 4)


def test_works_in_a_fresh_process_from_another_directory(save_condensed, tmp_path):
    path = save_condensed()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = (
        "import sys, numpy as np; from fanin.deploy import open_session; "
        "print(open_session(sys.argv[1], threads=1)"
        ".run(None, {'X': np.ones((1, 4), np.float32)})[0].tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=elsewhere, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[[3.5, 7.0, -1.0, 11.0]]", done.stderr


def test_threads_reach_the_pool_and_the_kernel(save_condensed):
    session = open_session(save_condensed(), threads=1)
    assert session.get_session_options().intra_op_num_threads == 1
    assert threads_told(session) == "1"


def test_without_threads_the_kernel_assumes_the_cpus_of_the_affinity_mask(
    save_condensed, monkeypatch
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5, 9})
    session = open_session(save_condensed())
    assert session.get_session_options().intra_op_num_threads == 0
    assert threads_told(session) == "3"


def test_threads_of_the_options_are_passed_to_the_kernel(save_condensed):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = open_session(save_condensed(), options=options)
    assert session.get_session_options().intra_op_num_threads == 1
    assert threads_told(session) == "1"


def test_threads_that_agree_with_the_options_are_accepted(save_condensed):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    assert threads_told(open_session(save_condensed(), threads=1, options=options)) == "1"


def test_options_are_used_and_only_the_documented_parts_change(save_condensed):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    open_session(save_condensed(), threads=1, options=options)
    assert options.intra_op_num_threads == 1
    assert options.get_session_config_entry("fanin.threads") == "1"
    assert options.get_session_config_entry("fanin.library") == str(ort_ops.get_library_path())
    assert options.log_severity_level == 3
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.inter_op_num_threads == 0


def test_the_same_options_open_several_sessions(save_condensed):
    options = onnxruntime.SessionOptions()
    path = save_condensed()
    for _ in range(3):
        (output,) = open_session(path, threads=1, options=options).run(None, {"X": X})
        np.testing.assert_allclose(output, Y, rtol=1e-6)


def test_options_with_the_library_already_registered_are_accepted(save_condensed):
    options = onnxruntime.SessionOptions()
    ort_ops.register(options)
    session = open_session(save_condensed(), threads=1, options=options)
    np.testing.assert_allclose(session.run(None, {"X": X})[0], Y, rtol=1e-6)


def test_options_are_still_usable_after_a_model_that_does_not_open(save_condensed):
    options = onnxruntime.SessionOptions()
    with pytest.raises(SessionError):
        open_session(save_condensed("bad.onnx", bias=np.zeros(3, np.float32)), options=options)
    assert open_session(save_condensed(), options=options).run(None, {"X": X})[0].shape == (2, 4)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_invalid_numbers_of_threads_are_refused(save_condensed, threads):
    with pytest.raises(SessionError, match=r"threads is .*Pass 1 or more"):
        open_session(save_condensed(), threads=threads)


def test_more_threads_than_any_machine_has_are_refused_before_the_runtime_starts_them(
    save_condensed,
):
    with pytest.raises(SessionError, match=r"threads is 100000, more than 1024.*CPUs"):
        open_session(save_condensed(), threads=100_000)


def test_threads_that_contradict_the_options_are_refused(save_condensed):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with pytest.raises(SessionError, match=r"threads is 2, but options\.intra_op_num_threads is 1"):
        open_session(save_condensed(), threads=2, options=options)
    assert options.intra_op_num_threads == 1


def test_threads_and_a_process_wide_pool_are_refused(save_condensed):
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = False
    with pytest.raises(SessionError, match="process-wide thread pool"):
        open_session(save_condensed(), threads=1, options=options)


def test_options_of_releases_without_a_process_wide_pool_are_accepted():
    entries = {}

    def get(key):
        if key not in entries:
            raise RuntimeError(f"no {key}")
        return entries[key]

    options = SimpleNamespace(
        intra_op_num_threads=0,
        execution_mode=onnxruntime.ExecutionMode.ORT_SEQUENTIAL,
        add_session_config_entry=entries.__setitem__,
        get_session_config_entry=get,
    )
    _set_threads(onnxruntime, options, 1)
    assert options.intra_op_num_threads == 1
    assert entries == {"fanin.threads": "1"}


def test_another_thread_count_in_the_config_entry_is_refused(save_condensed):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("fanin.threads", "7")
    with pytest.raises(SessionError, match=r"fanin\.threads = 7, but the session has 1 threads"):
        open_session(save_condensed(), threads=1, options=options)


def test_more_threads_than_cpus_warn(save_condensed):
    with pytest.warns(RuntimeWarning, match="threads on .* CPUs"):
        open_session(save_condensed(), threads=available_cpus() + 1)


def test_parallel_execution_warns(save_condensed):
    options = onnxruntime.SessionOptions()
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    with pytest.warns(RuntimeWarning, match="ORT_PARALLEL"):
        open_session(save_condensed(), options=options)


def test_the_cpu_is_the_default_provider(save_condensed):
    assert open_session(save_condensed()).get_providers() == ["CPUExecutionProvider"]


def test_a_provider_that_is_not_installed_is_refused(save_condensed):
    with pytest.raises(SessionError, match=r"has no CUDAExecutionProvider.*onnxruntime-gpu"):
        open_session(
            save_condensed(),
            providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"],
        )


def test_a_provider_that_does_not_come_up_is_refused(save_condensed, monkeypatch):
    available = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    # ONNX Runtime itself only warns about an unknown provider and uses the CPU.
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(SessionError, match="CUDAExecutionProvider failed to initialize"),
    ):
        open_session(save_condensed(), providers=["CUDAExecutionProvider"])


@pytest.mark.parametrize("providers", ["CPUExecutionProvider", []])
def test_providers_that_are_no_list_are_refused(save_condensed, providers):
    with pytest.raises(SessionError, match="not a list of execution providers"):
        open_session(save_condensed(), providers=providers)
