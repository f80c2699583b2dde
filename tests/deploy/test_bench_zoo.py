"""The networks of the zoo, and their table."""

import json
import shutil

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
    read_zoo,
)
from fanin.deploy.bench.suites.zoo_models import ZOO, ZooModel, sparsify
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
        "limit of condensed",
    ]
    assert [row[3] == "" for row in grid.rows] == [False, True]
    assert any("b: structured is excluded" in note for note in document.notes)
    names = {path.name for path in save_zoo(results, tmp_path / "out")}
    assert names == {"results.json", "results.md", "results.png", "index.html"}
    assert (tmp_path / "out" / "index.html").read_text().count("<section>") == 3
    # What was read from the files is what was measured.
    data = json.loads((tmp_path / "out" / "b" / "results.json").read_text())
    assert load_result(tmp_path / "out" / "b") == results["b"]
    assert json.loads(json.dumps(results["b"].to_dict())) == data
    # Results of another number of threads are not mixed with them.
    data["timing"]["threads"] = 2
    (tmp_path / "out" / "b" / "results.json").write_text(json.dumps(data))
    with pytest.raises(StoreError, match="take a folder for each"):
        read_zoo(tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"models": ("alexnet",)}, "there are vit-b-16"), ({"sparsity": 1.0}, "sparsity is 1.0")],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BenchZooSpec(**changes)


@pytest.mark.parametrize(("given", "kept"), [([], 20.0), (["--time", "2"], 2.0)])
def test_quick_shortens_and_never_prolongs(given, kept, monkeypatch, tmp_path):
    specs = []

    def measure(spec, *_, **__):
        specs.append(spec)
        raise ValueError("enough")

    monkeypatch.setattr(zoo_module, "bench_zoo", measure)
    CliRunner().invoke(app, ["bench", "zoo", "--quick", "--out", str(tmp_path), *given])
    assert [(spec.budget, spec.rounds, spec.conditions) for spec in specs] == [(kept, 5, ())]
