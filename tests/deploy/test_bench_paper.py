"""The suite of the paper's figures on a small layer: its cases, going on later, and its files."""

import json

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy.bench import BenchPaperSpec
from fanin.deploy.bench.suites.paper import SUITE, bench_paper
from fanin.deploy.bench.suites.paper_report import best_of, save_paper
from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.deploy.bench.suites.trained_layer import load_trained_layer
from fanin.export.onnx_op import condensed_layer_model

TINY = {
    "in_features": 24,
    "out_features": 10,
    "threads": (1, 2),
    "batches": (3,),
    "sparsities": (0.8,),
    "engines": ("dense", "condensed", "structured"),
    "rounds": 5,
    "minutes": 0.001,
    "conditions": (),
}


@pytest.fixture
def file(tmp_path):
    weight = random_sparse_layer("clustered", np.random.default_rng(0), 20, 12, 8, 4)
    onnx.save(condensed_layer_model(weight, None), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_every_case_is_measured_once_with_random_and_trained_masks(file, tmp_path):
    spec = BenchPaperSpec(**TINY, trained=(load_trained_layer(file),))
    partial = bench_paper(spec, tmp_path, stop_after=0)
    assert (partial.missing, [len(one.cases) for one in partial.results]) == (4, [0, 0])
    told = []
    result = bench_paper(spec, tmp_path, progress=lambda title, _: told.append(title))
    assert result.missing == 0
    assert len(told) == len(set(told)) == 4
    single, double = result.results
    assert (single.timing.threads, double.timing.threads) == (1, 2)
    assert [(case.facts["mask"], case.batch) for case in single.cases] == [
        ("random", 3),
        ("layer of net.onnx", 3),
    ]
    for case in (*single.cases, *double.cases):
        assert [one.excluded for one in case.engines] == [None] * 3
        assert case.facts["active"] in (7, 8)  # 30 % of 10 are ablated, the trained one has 8 of 12
        assert len(case.engine("dense").rounds_seconds) == 5
    # Read back unchanged; nothing is measured again.
    again = bench_paper(spec, tmp_path, progress=lambda title, _: pytest.fail(title))
    assert [one.cases for one in again.results] == [one.cases for one in result.results]


def test_a_folder_of_another_benchmark_is_refused(tmp_path):
    spec = BenchPaperSpec(**TINY)
    bench_paper(spec, tmp_path, stop_after=0)
    with pytest.raises(ValueError, match="different ablated, seed; choose another folder"):
        bench_paper(BenchPaperSpec(**TINY, ablated=0.1, seed=3), tmp_path)
    # Another bound of the time does not make another benchmark of it.
    bench_paper(BenchPaperSpec(**{**TINY, "minutes": 7}), tmp_path, stop_after=0)


def test_the_files_hold_all_threads_and_the_best_of_each_kind(tmp_path):
    result = bench_paper(BenchPaperSpec(**TINY), tmp_path)
    names = {str(path.relative_to(tmp_path)) for path in save_paper(result, tmp_path)}
    files = {"results.json", "results.md", "results.svg", "results-narrow.svg"}
    expected = files | {f"threads-{count}/{file}" for count in (1, 2) for file in files}
    assert names == expected | {"index.html"}
    data = json.loads((tmp_path / "results.json").read_text())
    assert len(data["cases"]) == 2
    best = data["cases"][0]["best"]
    assert set(best) == {"ONNX Runtime dense", "structured", "fanin"}
    case = result.results[0].cases[0]
    assert best["fanin"]["median_seconds"] == case.engine("condensed").run.median
    assert best_of(case, "DeepSparse") is None
    text = (tmp_path / "results.md").read_text()
    assert "not measured: deepsparse, openvino, torch, torch-compile" in text
    assert "| 80 % sparse, batch 3, 2 threads |" in text


def test_quick_leaves_compiled_engines_out():
    spec = BenchPaperSpec.quick()
    assert set(SUITE) - set(spec.engines) == {"torch-compile", "torch-gather"}
    assert BenchPaperSpec().engines == SUITE
    assert {"deepsparse", "openvino", "structured", "scipy-csr"} <= set(spec.engines)


def test_the_command_takes_trained_layers_by_name(file, tmp_path):
    done = CliRunner().invoke(
        app,
        [
            *("bench", "paper", "--quick", "--engines", "dense,condensed", "--threads", "1"),
            *("-b", "1", "--sparsity", "0.99", "-t", "0.001", "--stop-after", "0"),
            *("--trained", f"{file}::layer", "-o", str(tmp_path / "out")),
        ],
        env={"COLUMNS": "200"},
    )
    assert done.exit_code == 0, done.output
    assert "2 cases are missing" in done.output
    data = json.loads((tmp_path / "out" / "results.json").read_text())
    assert data["spec"]["trained"] == ["layer of net.onnx"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threads": ()}, "threads are"),
        ({"minutes": 0}, "minutes is 0"),
        ({"sparsities": (1.0,)}, r"sparsity 1\.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BenchPaperSpec(**{**TINY, **changes})
