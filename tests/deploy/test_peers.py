"""Engines in processes of their own: the protocol with a fake worker, CSR with the real one."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from fanin.deploy.bench import BenchLayerSpec, bench_layer
from fanin.deploy.bench.engines.peers import child_process, peer_engines
from fanin.deploy.bench.engines.peers.child_process import RemoteError
from fanin.deploy.bench.engines.peers.dense_forms import save_dense_form
from fanin.deploy.bench.engines.peers.remote import Child, RemoteEngine
from fanin.deploy.bench.engines.protocol import SelfTimedEngine
from fanin.deploy.bench.measure.loop import measure
from fanin.deploy.bench.measure.problem import Problem, Sample
from fanin.deploy.bench.measure.timing import Timing
from fanin.deploy.bench.suites.layer_engines import engine_option
from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.deploy.cpus import available_cpus

FAKE = str(Path(__file__).with_name("fake_worker.py"))
DEEPSPARSE = Path(__file__).parents[2] / ".cache/deepsparse-venv/bin/python"
QUICK = Timing(rounds=3, turn=1e-3, lead_in=1e-4, max_warmup=0.05)


def doubling(columns=False, **layer):
    """x [2, 3] -> 2 x."""
    shape = [3, 2] if columns else [2, 3]
    layer = {"shape": shape, **layer}
    child = Child("fake", layer, {}, "get it", columns, command=(sys.executable, FAKE))
    return RemoteEngine("remote", "2 * x", child, 1, (2, 3))


@pytest.fixture
def problem():
    samples = []
    for seed in (1, 2):
        x = np.random.default_rng(seed).standard_normal((2, 3), np.float32)
        samples.append(Sample({"x": x}, [2 * x.astype(np.float64)]))
    return Problem(*samples, tolerance=1e-6)


@pytest.mark.parametrize("columns", [False, True])
def test_the_child_times_itself_and_gets_fresh_inputs_in_its_layout(problem, columns):
    engine = doubling(columns)
    assert isinstance(engine, SelfTimedEngine)
    (measured,), _ = measure([engine], problem, QUICK)
    assert measured.excluded is None
    assert measured.rounds_seconds == pytest.approx([6e-6] * 3)  # scripted, not the pipe's time
    assert measured.first_run_seconds == pytest.approx(5e-6)
    assert measured.call_seconds == 2e-6
    assert measured.error_after == 0  # with inputs that the timed runs never saw


def test_the_child_is_told_the_threads_and_to_report_nothing(problem):
    (measured,), _ = measure([doubling()], problem, QUICK)
    assert measured.version == "1 1"


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ({"missing": True}, "No module named 'sparse'; get it"),
        ({"error": True}, "RuntimeError: unsupported form"),
        ({"dies": True}, "its process ended with status 3: illegal instruction, sorry"),
        ({"threads": 2}, "runs with 2 threads, not 1"),
        ({"shrinks": True}, r"output 0 has shape \(1, 1\), not \(2, 3\)"),
    ],
)
def test_a_child_that_fails_is_excluded_with_the_reason(problem, layer, reason):
    (measured,), _ = measure([doubling(**layer)], problem, QUICK)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(measured.excluded)


def test_closing_ends_the_process_and_removes_its_files(problem):
    engine = doubling()
    engine.prepare(problem.inputs)
    child = engine._process
    engine.close()
    assert child.process.returncode == 0
    assert not child.folder.exists()


def test_a_command_that_is_no_worker_is_an_error(problem):
    child = Child("x", {}, {}, "", command=(sys.executable, "-c", "import sys; sys.exit('wrong')"))
    engine = RemoteEngine("remote", "", child, 1, (2, 3))
    with pytest.raises(RemoteError, match="status 1: wrong"):
        engine.prepare(problem.inputs)
    engine.close()


@pytest.fixture(scope="module")
def weight():
    """24 → 10 with 7 active neurons of 5 weights."""
    return random_sparse_layer("random", np.random.default_rng(0), 24, 10, 7, 5)


@pytest.mark.parametrize(("batch", "names"), [(1, [""]), (3, ["", "-t"])])
@pytest.mark.parametrize("kind", ["scipy-csr", "torch-csr"])
def test_csr_engines_compute_the_layer(kind, batch, names, weight, tmp_path):
    if kind == "torch-csr":
        pytest.importorskip("torch")
    engines = peer_engines(kind, weight, batch, 1, tmp_path, DEEPSPARSE)
    assert [engine.name for engine in engines] == [kind + name for name in names]
    for measured in measure(engines, layer_problem(weight, batch), QUICK)[0]:
        assert measured.excluded is None
        assert measured.version.startswith(kind.removesuffix("-csr") + " ")
        assert 0 < measured.call_seconds < 1  # no nanoseconds


def layer_problem(weight, batch):
    samples = []
    for seed in (1, 2):
        x = np.random.default_rng(seed).standard_normal((batch, 24), np.float32)
        y = x.astype(np.float64) @ weight.to_dense().T + weight.bias
        samples.append(Sample({"x": x}, [y]))
    return Problem(*samples, tolerance=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "torch",
        pytest.param("torch-compile", marks=pytest.mark.slow),
        pytest.param("torch-gather", marks=pytest.mark.slow),
    ],
)
def test_torch_engines_compute_the_layer_with_its_ablated_neurons(name, weight, tmp_path):
    pytest.importorskip("torch")
    (engine,) = peer_engines(name, weight, 3, 1, tmp_path, DEEPSPARSE)
    (measured,), _ = measure([engine], layer_problem(weight, 3), QUICK)
    assert (measured.name, measured.excluded, measured.threads) == (name, None, 1)


@pytest.mark.parametrize("batch", [1, 3])
def test_openvino_computes_the_layer_in_float32_with_the_threads(batch, weight, tmp_path):
    pytest.importorskip("openvino")
    threads = min(2, available_cpus())  # it takes no more threads than there are CPUs
    (engine,) = peer_engines("openvino", weight, batch, threads, tmp_path, DEEPSPARSE)
    timing = Timing(threads=threads, rounds=2, turn=1e-3, lead_in=0, max_warmup=0.05)
    (measured,), _ = measure([engine], layer_problem(weight, batch), timing)
    assert (measured.excluded, measured.threads) == (None, threads)
    assert measured.version.startswith("openvino 20")


def test_an_openvino_that_would_compute_in_another_precision_is_left_out(weight, tmp_path):
    pytest.importorskip("openvino")
    (engine,) = peer_engines("openvino", weight, 1, 1, tmp_path, DEEPSPARSE)
    layer = {**engine._child.layer, "precision": "f16"}  # which few CPUs have
    child = dataclasses.replace(engine._child, layer=layer)
    engine = RemoteEngine("openvino", "", child, 1, (1, 10))
    (measured,), _ = measure([engine], layer_problem(weight, 1), QUICK)
    # A CPU with instructions for float16 keeps to it, and its outputs are wrong.
    reasons = ("computes in", "f16", "output 0 is wrong by")
    assert any(reason in measured.excluded for reason in reasons)


def test_the_structured_form_is_measured_where_neurons_are_ablated_and_else_said_to_be_dense():
    spec = BenchLayerSpec(24, 10, (0.8,), ablated=0.3, rounds=2, turn=1e-3)
    spec = dataclasses.replace(spec, engines=("dense", "structured"))
    (ablated,) = bench_layer(spec).cases
    assert ablated.engine("structured").excluded is None
    (full,) = bench_layer(dataclasses.replace(spec, ablated=0.0)).cases
    assert "it is the dense layer" in full.engine("structured").excluded


@pytest.mark.parametrize(
    ("engine", "option"),
    [
        ("torch", "torch"),
        ("torch-csr-t", "torch-csr"),
        ("torch-compile", "torch-compile"),
        ("deepsparse-spatial", "deepsparse"),
        ("openvino-default", "openvino-default"),
        ("condensed-float16", "condensed-float16"),
        ("other", None),
    ],
)
def test_an_engine_belongs_to_the_option_with_the_longest_name(engine, option):
    assert engine_option(engine) == option


def test_torch_gets_the_threads_and_scipy_is_left_out_of_more_than_one(weight, tmp_path):
    pytest.importorskip("torch")
    x = np.ones((1, 24), np.float32)
    sample = Sample({"x": x}, [x.astype(np.float64) @ weight.to_dense().T + weight.bias])
    problem = Problem(sample, sample, tolerance=1e-6)
    engines = [
        *peer_engines("torch-csr", weight, 1, 2, tmp_path, DEEPSPARSE),
        *peer_engines("scipy-csr", weight, 1, 2, tmp_path, DEEPSPARSE),
    ]
    timing = Timing(threads=2, rounds=2, turn=1e-3, lead_in=0, max_warmup=0.05)
    (torch, scipy), _ = measure(engines, problem, timing)
    assert (torch.threads, torch.excluded) == (2, None)
    assert "runs with 1 threads, not 2" in scipy.excluded


def test_without_deepsparse_one_engine_is_excluded_and_names_the_target(tmp_path):
    spec = BenchLayerSpec(
        24,
        10,
        (0.8,),
        rounds=2,
        turn=1e-3,
        engines=("dense", "condensed", "deepsparse"),
        deepsparse_python=tmp_path / "python",
    )
    (case,) = bench_layer(spec).cases
    assert [engine.name for engine in case.engines] == ["dense", "condensed", "deepsparse"]
    assert "run make deepsparse-env" in case.engine("deepsparse").excluded
    assert case.engine("condensed").excluded is None
    assert case.rivals == ()


@pytest.mark.parametrize("form", ["gemm", "matmul", "conv", "spatial"])
def test_all_deepsparse_forms_say_the_same(form, weight, tmp_path):
    import onnxruntime

    path = tmp_path / "model.onnx"
    layer = save_dense_form(path, form, weight.to_dense(), weight.bias, 3)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((3, 24), np.float32)
    given = (x.T if form == "spatial" else x).reshape(layer["shape"])
    (y,) = session.run(None, {"x": given})
    y = y.reshape(10, 3).T if form == "spatial" else y.reshape(3, 10)
    np.testing.assert_allclose(y, x @ weight.to_dense().T + weight.bias, rtol=1e-5, atol=1e-6)


def test_the_deepsparse_forms_at_batch_1_are_three(weight, tmp_path):
    python = Path(sys.executable)
    names = [one.name for one in peer_engines("deepsparse", weight, 1, 1, tmp_path, python)]
    assert names == ["deepsparse-gemm", "deepsparse-matmul", "deepsparse-conv"]
    assert len(peer_engines("deepsparse", weight, 2, 1, tmp_path, python)) == 4


@pytest.mark.slow
@pytest.mark.skipif(not DEEPSPARSE.is_file(), reason="make deepsparse-env has not been run")
def test_deepsparse_computes_the_layer_in_all_forms():
    spec = BenchLayerSpec(
        256,
        64,
        (0.9,),
        batches=(1, 16),
        rounds=2,
        turn=1e-3,
        engines=("dense", "condensed", "deepsparse"),
        deepsparse_python=DEEPSPARSE,
    )
    single, many = bench_layer(spec).cases
    for case, forms in ((single, 3), (many, 4)):
        assert [one.excluded for one in case.engines] == [None] * (2 + forms)
        (rival,) = case.rivals
        assert (rival.family, len(rival.forms)) == ("DeepSparse", forms)
        assert "Community License" in case.engine(rival.comparison.baseline).version


def test_a_child_that_hangs_is_ended_and_the_reason_says_so(problem, monkeypatch):
    monkeypatch.setattr(child_process, "_LIMIT", 0.2)
    child = Child("x", {}, {}, "", command=(sys.executable, "-c", "import time; time.sleep(60)"))
    engine = RemoteEngine("remote", "", child, 1, (2, 3))
    (measured,), _ = measure([engine], problem, QUICK)
    assert measured.excluded == "RemoteError: it took longer than 0.2 s to prepare"
