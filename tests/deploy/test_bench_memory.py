"""bench_memory: what sessions take, told by processes of their own."""

import json
import sys

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy import SessionError
from fanin.deploy.bench import BenchMemorySpec, bench_memory, save_result
from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.export.onnx_op import condensed_layer_model, dense_layer_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/smaps_rollup")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A layer of 16 MB dense, a tenth of it kept; its baseline is beside it."""
    weight = random_sparse_layer("random", np.random.default_rng(0), 2048, 2048, 2048, 204)
    path = tmp_path_factory.mktemp("memory") / "model.onnx"
    onnx.save(condensed_layer_model(weight, None), path)
    onnx.save(dense_layer_model(weight, None), path.with_suffix(".dense.onnx"))
    return path


@pytest.fixture(scope="module")
def result(model):
    return bench_memory(BenchMemorySpec(model, sessions=3))


def test_dense_sessions_take_a_copy_each_and_condensed_ones_share_the_packed_weights(result):
    dense, condensed = result.cases
    assert (dense.excluded, condensed.excluded) == (None, None)
    assert len(dense.anonymous) == len(condensed.anonymous) == 3
    assert dense.anonymous_per_session > 15e6  # ONNX Runtime packs the 16.8 MB for each session
    # The initializers of the file, 2.5 MB, are copied by every session; packed weights are not.
    assert condensed.anonymous_per_session < 6e6
    assert dense.file_bytes > 16.7e6 > 5 * condensed.file_bytes


def test_the_result_names_files_but_no_folders_and_can_be_saved(result, model, tmp_path):
    assert str(model.parent) not in str(result.to_dict())
    paths = save_result(result, tmp_path / "out")
    assert [path.name for path in paths] == [
        "results.json",
        "results.md",
        "results.svg",
        "results-narrow.svg",
    ]
    assert json.loads(paths[0].read_text())["kind"] == "memory"
    assert "| condensed | " in paths[1].read_text()


def test_openvino_is_measured_beside(model):
    pytest.importorskip("openvino")
    (engine,) = bench_memory(BenchMemorySpec(model, sessions=1, engines=("openvino",))).cases
    assert engine.excluded is None
    assert engine.anonymous[0] > 1e6


def test_a_runtime_that_is_not_there_is_named_and_the_others_are_measured(model, tmp_path):
    spec = BenchMemorySpec(
        model, sessions=1, engines=("condensed", "deepsparse"), deepsparse_python=tmp_path / "no"
    )
    condensed, deepsparse = bench_memory(spec).cases
    assert condensed.excluded is None
    assert "make deepsparse-env" in deepsparse.excluded


def test_a_missing_baseline_names_the_option_that_makes_it(model, tmp_path):
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(model.read_bytes())
    with pytest.raises(SessionError, match=r"alone\.dense\.onnx.*--dense-baseline"):
        bench_memory(BenchMemorySpec(alone))


@pytest.mark.parametrize("bad", [{"sessions": 0}, {"batch": 0}, {"engines": ("tvm",)}])
def test_specs_out_of_range_are_refused(model, bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        BenchMemorySpec(model, **bad)


def test_the_command_writes_the_files(model, tmp_path):
    arguments = ["bench", "memory", str(model), "-o", str(tmp_path / "out"), "--sessions", "1"]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0, told.output
    assert (tmp_path / "out/results.md").is_file()
