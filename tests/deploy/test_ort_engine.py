"""ONNX Runtime as an engine: bound in place, with the threads that it really has."""

import itertools
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

from fanin.deploy import SessionError
from fanin.deploy.bench.engines import ort as ort_engine
from fanin.deploy.bench.engines.onnx_models import save_null_model
from fanin.deploy.bench.engines.ort import OrtEngine, count_new_threads, os_threads
from fanin.deploy.bench.engines.protocol import aligned_copy
from fanin.onnx_file import read_model_file

X = np.array([[1, 2, 3, 4], [-1, 0.5, 0, 2]], np.float32)
Y = np.array([[5.5, 18, -1, 29], [0.5, 1.5, -1, 7]], np.float32)


@pytest.fixture
def engine(save_condensed):
    engine = OrtEngine("condensed", "CondensedGemm", save_condensed(), 1, library=True)
    yield engine
    engine.close()


def test_a_run_reads_the_present_content_of_the_inputs(engine):
    x = aligned_copy(X)
    engine.prepare({"X": x})
    engine.run()
    (output,) = engine.output()
    np.testing.assert_allclose(output, Y, rtol=1e-6)
    x[...] = 0
    engine.run()
    np.testing.assert_array_equal(engine.output()[0], [[0.5, 0, -1, 0]] * 2)


def test_it_names_its_version(engine):
    engine.prepare({"X": aligned_copy(X)})
    assert engine.version == f"onnxruntime {onnxruntime.__version__}"


def test_a_missing_input_is_named(engine):
    with pytest.raises(RuntimeError, match="needs an input 'X'"):
        engine.prepare({"x": aligned_copy(X)})


def test_the_dense_engine_needs_no_library(save_dense):
    engine = OrtEngine("dense", "Gemm", save_dense(), 1, library=False)
    engine.prepare({"X": aligned_copy(X)})
    engine.run()
    np.testing.assert_allclose(engine.output()[0], Y, rtol=1e-6)
    engine.close()


@pytest.mark.parametrize("library", [True, False])
def test_a_model_that_wants_other_peoples_files_is_not_opened(save_dense, library):
    path = save_dense()
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    onnx.save(model, path)
    engine = OrtEngine("dense", "Gemm", path, 1, library=library)
    with pytest.raises(SessionError, match=r"'W' lie outside of the model's folder: '\.\./secret'"):
        engine.prepare({"X": aligned_copy(X)})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
@pytest.mark.parametrize("library", [True, False])
@pytest.mark.filterwarnings("ignore:.*threads on.*CPUs")
def test_threads_are_those_that_the_process_gained(save_condensed, save_dense, library):
    path = save_condensed() if library else save_dense()
    for threads in (1, 2, 3):
        engine = OrtEngine("one", "form", path, threads, library=library)
        engine.prepare({"X": aligned_copy(X)})
        assert engine.threads == threads
        engine.close()
    assert os_threads() is not None


@pytest.mark.parametrize(("expected", "found"), [(1, 1), (2, 2), (3, 3), (4, 3)])
def test_thread_that_has_ended_does_not_count(monkeypatch, expected, found):
    """Of three new threads that stay for a while one or two are about to be put away."""
    listed = itertools.chain([{1, 7, 8, 9}] * 2, [{1, 7, 8}] * 2, itertools.repeat({1, 7}))
    monkeypatch.setattr(ort_engine, "os_threads", lambda: next(listed))
    assert count_new_threads({1, 2}, expected) == found


def test_threads_that_stay_are_all_counted(monkeypatch):
    monkeypatch.setattr(ort_engine, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(ort_engine, "os_threads", lambda: {1, 5, 6, 7})
    assert count_new_threads({1}, 1) == 3


@pytest.mark.parametrize(("out_features", "form"), [(3, "Slice"), (4, "Neg"), (9, "Pad")])
def test_the_null_model_has_the_shapes_of_the_layer_and_is_not_folded(tmp_path, out_features, form):
    path, optimized = tmp_path / "null.onnx", tmp_path / "optimized.onnx"
    assert save_null_model(path, 2, 4, out_features) == form
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(optimized)
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": X})
    assert y.shape == (2, out_features)
    assert np.abs(y[:, : min(out_features, 4)]).tolist() == np.abs(X[:, :out_features]).tolist()
    assert [node.op_type for node in read_model_file(optimized).nodes] == [form]
