"""open_session: what it sets and returns, and that it never falls back silently."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest

from fanin import ort_ops
from fanin.deploy import SessionError, cpus, open_session
from fanin.deploy import session as session_module
from fanin.deploy.cpus import available_cpus
from fanin.deploy.doctor_model import read_report
from fanin.deploy.session import _set_threads
from fanin.ort_ops.dispatch_cost import DispatchCalibration, DispatchCost, describe_cpus

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
    monkeypatch.setattr(cpus, "cpu_quota", lambda _: None)
    session = open_session(save_condensed())
    assert session.get_session_options().intra_op_num_threads == 0
    assert threads_told(session) == "3"


@pytest.fixture
def quota(monkeypatch):
    """Let the process seem to have 8 CPUs, and a quota on them."""

    def limit(number):
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
        for module in (cpus, session_module):
            monkeypatch.setattr(module, "cpu_quota", lambda *_: number)

    return limit


@pytest.mark.parametrize(("number", "threads"), [(2.5, 2), (0.5, 1)])
def test_a_quota_sets_the_default_threads(save_condensed, quota, number, threads):
    quota(number)
    session = open_session(save_condensed())
    assert session.get_session_options().intra_op_num_threads == threads
    assert threads_told(session) == str(threads)


@pytest.mark.parametrize("number", [8.0, 100.0, None])
def test_a_quota_of_all_cpus_changes_nothing(save_condensed, quota, number):
    quota(number)
    session = open_session(save_condensed())
    assert session.get_session_options().intra_op_num_threads == 0
    assert threads_told(session) == "8"


def test_the_same_options_open_several_sessions_under_a_quota(save_condensed, quota):
    quota(2.0)
    options = onnxruntime.SessionOptions()
    for _ in range(2):
        assert threads_told(open_session(save_condensed(), options=options)) == "2"


@pytest.mark.filterwarnings("error")
def test_threads_within_the_quota_do_not_warn(save_condensed, quota):
    quota(2.9)
    open_session(save_condensed(), threads=2)


def test_explicit_threads_above_the_quota_are_kept_with_a_warning(save_condensed, quota):
    quota(2.5)
    with pytest.warns(
        RuntimeWarning, match=r"3 threads with a CPU quota of 2\.5.*at most 2"
    ) as seen:
        session = open_session(save_condensed(), threads=3)
    assert seen[0].filename == __file__
    assert session.get_session_options().intra_op_num_threads == 3
    assert threads_told(session) == "3"


def test_threads_of_the_options_are_kept_above_the_quota(save_condensed, quota):
    quota(1.0)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    with pytest.warns(RuntimeWarning, match="2 threads with a CPU quota of 1:"):
        session = open_session(save_condensed(), options=options)
    assert threads_told(session) == "2"


def test_a_process_wide_pool_is_not_resized_by_a_quota(quota):
    quota(2.0)
    entries = {}

    def get(key):
        raise RuntimeError(f"no {key}")

    options = SimpleNamespace(
        intra_op_num_threads=0,
        use_per_session_threads=False,
        execution_mode=onnxruntime.ExecutionMode.ORT_SEQUENTIAL,
        add_session_config_entry=entries.__setitem__,
        get_session_config_entry=get,
    )
    _set_threads(onnxruntime, options, None)
    assert options.intra_op_num_threads == 0
    assert entries == {"fanin.threads": "2"}


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


def dispatch_told(session):
    try:
        return session.get_session_options().get_session_config_entry("fanin.dispatch")
    except RuntimeError:
        return None


@pytest.fixture
def calibrated(tmp_path, monkeypatch):
    """Save measured costs of a dispatch where sessions look for them; returns the file."""
    path = tmp_path / "own.threads.json"
    monkeypatch.setenv("FANIN_CALIBRATION", str(tmp_path / "own.json"))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    costs = (DispatchCost(2.5, 0.25), DispatchCost(40.0, 3.0))
    DispatchCalibration(describe_cpus(), (2,), *costs).save(path)
    return path


@pytest.mark.usefixtures("calibrated")
def test_measured_costs_of_a_dispatch_reach_the_kernel(save_condensed):
    assert dispatch_told(open_session(save_condensed(), threads=2)) == "2.5,0.25"


@pytest.mark.usefixtures("calibrated")
@pytest.mark.parametrize(("spinning", "told"), [("1", "2.5,0.25"), ("0", "40,3")])
def test_the_costs_are_those_of_threads_that_spin_or_sleep(save_condensed, spinning, told):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    assert dispatch_told(open_session(save_condensed(), threads=2, options=options)) == told


@pytest.mark.usefixtures("calibrated")
def test_costs_in_the_options_are_kept(save_condensed):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("fanin.dispatch", "1,1")
    assert dispatch_told(open_session(save_condensed(), threads=2, options=options)) == "1,1"


@pytest.mark.usefixtures("calibrated")
def test_one_thread_is_told_no_costs(save_condensed):
    assert dispatch_told(open_session(save_condensed(), threads=1)) is None


def test_without_a_calibration_of_this_machine_the_library_has_its_own_costs(
    save_condensed, calibrated
):
    calibrated.unlink()
    assert dispatch_told(open_session(save_condensed(), threads=2)) is None


def test_an_unusable_calibration_of_threads_warns(save_condensed, calibrated):
    calibrated.write_text("{}")
    with pytest.warns(RuntimeWarning, match=r"own\.threads\.json is no calibration") as seen:
        session = open_session(save_condensed(), threads=2)
    assert seen[0].filename == __file__
    assert dispatch_told(session) is None


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


def test_attention_in_float16_opens_on_a_cpu(tmp_path):
    """In a process of its own: onnxruntime 1.32 crashes on it, left to itself."""
    half = onnx.TensorProto.FLOAT16
    nodes = [
        onnx.helper.make_node("LayerNormalization", ["x", "scale"], ["n"]),
        onnx.helper.make_node("Transpose", ["n"], ["t"], perm=[1, 0, 2]),
        onnx.helper.make_node("MatMul", ["t", "w"], ["y"]),
    ]
    arrays = {"scale": np.ones(8, np.float16), "w": np.ones((8, 4), np.float16)}
    graph = onnx.helper.make_graph(
        nodes,
        "attention",
        [onnx.helper.make_tensor_value_info("x", half, ["batch", 3, 8])],
        [onnx.helper.make_tensor_value_info("y", half, [3, "batch", 4])],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 20)]
    path = tmp_path / "half.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    assert read_report(path).outputs == ["y tensor(float16)[3, batch, 4]"]
