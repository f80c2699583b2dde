"""The networks of the zoo, and their table."""

import json
import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy.bench import load_result
from fanin.deploy.bench.results.store import StoreError
from fanin.deploy.bench.suites import zoo as zoo_module
from fanin.deploy.bench.suites import zoo_models
from fanin.deploy.bench.suites.zoo import (
    BenchZooSpec,
    bench_zoo,
    is_not_slower,
    pooled,
    read_zoo,
    spread_of_processes,
)
from fanin.deploy.bench.suites.zoo_models import ZOO, ZooModel, export_zoo_model, sparsify
from fanin.deploy.bench.suites.zoo_report import save_zoo, zoo_document

torch = pytest.importorskip("torch")
QUICK = {"rounds": 2, "budget": 0.01, "conditions": ()}


def small():
    return torch.nn.Sequential(
        torch.nn.Linear(256, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 384),
        torch.nn.Linear(384, 8),
    )


@pytest.fixture
def zoo(monkeypatch):
    """Two small networks in the place of the large ones."""
    models = {name: ZooModel(f"net {name}", (256,), small) for name in ("a", "b")}
    for module in (zoo_module, zoo_models):
        monkeypatch.setattr(module, "ZOO", models)
    return models


def test_every_row_of_a_thinned_layer_has_as_many_weights_and_the_last_layer_loses_none(zoo):
    model = small()
    sparsify(model, zoo["a"], 0.75, 0.25)
    counts = [(layer.weight != 0).sum(dim=1).numpy() for layer in model if hasattr(layer, "weight")]
    assert [int((count == 0).sum()) for count in counts] == [128, 96, 0]
    for count, expected in zip(counts, (85, 171, 96), strict=True):  # a third of 256, of 512; 1/4
        assert set(count[count > 0]) == {expected}


@pytest.mark.parametrize(
    ("name", "shape", "dense"),
    [
        ("vit-b-16", (2304, 768), "encoder.layers.encoder_layer_0.self_attention.in_proj_weight"),
        ("mobilenet-v3-large", (16, 1, 3, 3), "features.1.block.0.0.weight"),
    ],
)
def test_what_the_authors_keep_dense_stays_dense(name, shape, dense):
    assert ZOO[name].stays_dense(dense, torch.empty(shape))
    assert not ZOO[name].stays_dense("encoder.layers.0.mlp.0.weight", torch.empty(768, 768))


@pytest.mark.usefixtures("zoo")
def test_networks_are_measured_into_folders_of_their_own_and_shown_together(tmp_path):
    spec = BenchZooSpec(models=("a",), ablated=0.25, engines=zoo_module.ENGINES[:3], **QUICK)
    results = bench_zoo(spec, tmp_path / "out", tmp_path / "models")
    assert list(results) == ["a"]
    (case,) = results["a"].cases
    assert [one.excluded for one in case.engines] == [None] * 3
    assert {one.engine for one in case.comparisons} == {"condensed", "structured"}
    # The other network comes later, from files that are there, without a structured form.
    for kind in ("", ".dense"):
        made = tmp_path / "models" / f"a-90-25{kind}.onnx"
        shutil.copy(made, made.with_name(f"b-90-0{kind}.onnx"))
    spec = BenchZooSpec(models=("b",), engines=zoo_module.ENGINES[:3], **QUICK)
    results = bench_zoo(spec, tmp_path / "out", tmp_path / "models", reuse=True)
    assert list(results) == ["a", "b"]
    document = zoo_document(results)
    (grid,) = document.screen
    assert list(grid.headings) == [
        "network",
        "dense",
        "condensed",
        "structured",
        "not slower",
        "limit of condensed",
    ]
    assert [row[3] == "" for row in grid.rows] == [False, True]
    assert any("b: structured is excluded" in note for note in document.notes)
    names = {path.name for path in save_zoo(results, tmp_path / "out")}
    assert names == {
        "results.json",
        "results.md",
        "results.svg",
        "results-narrow.svg",
        "index.html",
    }
    assert (tmp_path / "out" / "index.html").read_text().count("<section>") == 3
    # What was read from the files is what was measured.
    data = json.loads((tmp_path / "out" / "b" / "results.json").read_text())
    assert load_result(tmp_path / "out" / "b") == results["b"]
    assert json.loads(json.dumps(results["b"].to_dict())) == data
    # Results of a different number of threads are not mixed with them.
    data["timing"]["threads"] = 2
    (tmp_path / "out" / "b" / "results.json").write_text(json.dumps(data))
    with pytest.raises(StoreError, match="take a folder for each"):
        read_zoo(tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ("alexnet",)}, "there are vit-b-16"),
        ({"sparsity": 1.0}, "sparsity is 1.0"),
        ({"processes": 2}, "above 1 there are no conditions"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BenchZooSpec(**changes)


def test_interval_of_equal_ratios_is_a_point():
    spread = spread_of_processes([[1.25] * 21] * 3, [[1.0] * 21] * 3)
    assert spread.interval == (1.25, 1.25)
    assert (spread.median, spread.count) == (1.25, 63)


def test_interval_knows_that_processes_differ():
    """Rounds of one process agree; only other processes show how far off it may be."""
    rng = np.random.default_rng(0)
    rounds, ones = rng.normal(1.0, 0.001, (3, 21)), np.ones((3, 21))
    low, high = spread_of_processes(rounds + np.array([[-0.02], [0.0], [0.02]]), ones).interval
    assert low < 0.985
    assert high > 1.015
    low, high = spread_of_processes(rounds, ones).interval
    assert 0.998 < low < 1.0 < high < 1.002


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Results of two processes for a network that has no condensed layer."""
    folder = tmp_path_factory.mktemp("tiny")
    spec = BenchZooSpec(models=("mlp-tiny",), engines=zoo_module.ENGINES[:2], processes=2, **QUICK)
    return bench_zoo(spec, folder / "out", folder / "models")["mlp-tiny"]


def test_rounds_of_all_processes_are_pooled(tiny):
    (case,) = tiny.cases
    assert case.facts["condensed_nodes"] == 0
    assert case.facts["processes"] == 2
    assert [one.run.count for one in case.engines] == [4, 4]
    assert case.comparison("condensed").run_ratio.count == 4
    assert tiny.title == "16-32-32-4, 50% sparse, 1 thread"


@pytest.mark.parametrize(
    ("processes", "passed"),
    [
        (([1.5] * 21, [1.4] * 21), True),
        (([0.97] * 21, [1.01] * 21, [0.98] * 21), True),
        (([0.97] * 21, [0.98] * 21), False),  # never reaches 1
        (([0.9] * 20 + [3.0], [0.93] * 20 + [3.0]), False),  # reaches it in an outlier
    ],
)
def test_not_slower_takes_a_median_and_an_interval_that_reaches_one(tiny, processes, passed):
    def result(ratios):
        (case,) = tiny.cases
        dense, condensed = case.engines
        engines = (
            replace(dense, rounds_seconds=tuple(ratios)),
            replace(condensed, rounds_seconds=(1.0,) * len(ratios)),
        )
        return replace(tiny, cases=(replace(case, engines=engines),))

    (case,) = pooled([result(ratios) for ratios in processes]).cases
    assert is_not_slower(case) is passed


def test_an_engine_that_one_process_excludes_has_no_pooled_times(tiny):
    (case,) = tiny.cases
    dense, condensed = case.engines
    wrong = replace(case, engines=(dense, replace(condensed, excluded="wrong")), comparisons=())
    (found,) = pooled([tiny, replace(tiny, cases=(wrong,))]).cases
    assert found.engine("condensed").excluded == "wrong"
    assert is_not_slower(found) is None


@pytest.mark.parametrize("name", ["mlp-onnx", "mlp-ablated"])
def test_networks_of_other_kinds_are_exported_with_their_baseline(name, tmp_path):
    entry = ZOO[name]
    path = export_zoo_model(name, tmp_path, entry.sparsity, entry.ablated, entry.batch)
    for file in (path, path.with_name(f"{path.stem}.dense.onnx")):
        onnx.checker.check_model(file)


def test_half_of_the_weights_of_a_filter_are_kept_but_of_the_image_and_the_head():
    model = ZOO["resnet18-half"].build()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    sparsify(model, ZOO["resnet18-half"], 0.5, 0.0)
    kept = (model.layer1[0].conv1.weight != 0).flatten(1).sum(1)
    assert set(kept.tolist()) == {64 * 9 // 2}
    assert (model.conv1.weight == before["conv1.weight"]).all()
    assert (model.fc.weight == before["fc.weight"]).all()


def test_a_transposed_weight_has_as_many_weights_in_every_column():
    conv1d = type("Conv1D", (torch.nn.Module,), {})()
    conv1d.weight = torch.nn.Parameter(torch.ones(40, 24))  # [in, out]
    sparsify(torch.nn.Sequential(conv1d), ZOO["gpt2-small"], 0.75, 0.0)
    assert (conv1d.weight != 0).sum(0).tolist() == [10] * 24


@pytest.mark.parametrize(("given", "kept"), [([], 20.0), (["--time", "2"], 2.0)])
def test_quick_shortens_and_never_prolongs(given, kept, monkeypatch, tmp_path):
    specs = []

    def measure(spec, *_, **__):
        specs.append(spec)
        raise ValueError("enough")

    monkeypatch.setattr(zoo_module, "bench_zoo", measure)
    CliRunner().invoke(app, ["bench", "zoo", "--quick", "--out", str(tmp_path), *given])
    assert [(spec.budget, spec.rounds, spec.conditions) for spec in specs] == [(kept, 5, ())]
