"""bench layer, model, zoo and paper with --precision int8, on tiny layers and networks."""

import json

import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy.bench import (
    BenchLayerSpec,
    BenchModelSpec,
    BenchPaperSpec,
    bench_layer,
    bench_model,
    bench_paper,
    load_result,
    report_of,
    save_result,
)
from fanin.deploy.bench.report.markdown import to_markdown
from fanin.deploy.bench.results.store import StoreError
from fanin.deploy.bench.suites import model as model_module
from fanin.deploy.bench.suites import zoo as zoo_module
from fanin.deploy.bench.suites import zoo_models
from fanin.deploy.bench.suites.layer_engines import INT8_ENGINES, engine_option
from fanin.deploy.bench.suites.paper_report import best_of, paper_document, save_paper
from fanin.deploy.bench.suites.zoo import BenchZooSpec, bench_zoo
from fanin.deploy.bench.suites.zoo_models import ZooModel
from fanin.deploy.bench.suites.zoo_report import save_zoo, zoo_document

OF_RUNTIME = tuple(name for name in INT8_ENGINES if name.startswith(("dense", "condensed")))
SIZES = {"in_features": 64, "out_features": 24}
TINY = {**SIZES, "sparsities": (0.8,), "rounds": 3, "turn": 1e-3, "precision": "int8"}


@pytest.fixture(scope="module")
def result():
    return bench_layer(BenchLayerSpec(**TINY, batches=(1, 5), engines=OF_RUNTIME))


def test_a_layer_is_measured_in_8_bits_beside_float32(result):
    assert result.title == "Layer 64 → 24, int8, 1 thread"
    assert result.spec["precision"] == "int8"
    for case in result.cases:
        assert [one.excluded for one in case.engines] == [None] * 7
        kinds = {one.name: one.precision for one in case.engines}
        assert kinds.pop("dense") == kinds.pop("condensed") == "float32"
        assert kinds.pop("condensed-bfloat16-compute") == "bfloat16"
        assert set(kinds.values()) == {"int8"}
        assert [one.baseline for one in case.comparisons] == ["dense"] * 6
        assert case.facts["int8_kernel"]
        pairs = {
            one.family: (one.comparison.baseline, one.comparison.engine) for one in case.rivals
        }
        assert pairs == {
            "ONNX Runtime int8, static": ("dense-int8-static", "condensed-int8-static"),
            "ONNX Runtime int8, dynamic": ("dense-int8-dynamic", "condensed-int8-dynamic"),
        }


def test_its_table_has_every_engine_with_its_error(result, tmp_path):
    text = to_markdown(report_of(result))
    header = "| case | engine | run | op | run speed-up | op speed-up | rms error |"
    rows = text[text.index(header) :].split("\n")[2:10]
    names = [row.split("|")[2].strip() for row in rows]
    assert names == [*OF_RUNTIME, "null"]
    for row, name in zip(rows, names, strict=True):
        error = row.split("|")[-2].strip()
        if "int8" in name:
            assert 1e-4 < float(error) < 5e-2
        elif "bfloat16" in name:
            assert 1e-4 < float(error) < 5e-3
        elif name != "null":
            assert float(error) < 1e-6
    assert "## By type" not in text
    assert "*rms error* is the root mean square" in text
    save_result(result, tmp_path)
    assert to_markdown(report_of(load_result(tmp_path))) == text


def test_float32_reports_say_nothing_of_8_bits():
    spec = BenchLayerSpec(**{**TINY, "precision": "float32"})
    assert "rms error" not in to_markdown(report_of(bench_layer(spec)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "int4"}, "there are float32, int8"),
        (
            {"engines": ("dense", "torch-csr")},
            "there are dense, condensed, condensed-bfloat16-compute",
        ),
        (
            {"precision": "float32", "engines": ("dense", "condensed-int8-static")},
            "there are dense, condensed, structured",
        ),
    ],
)
def test_engines_belong_to_a_precision(changes, message):
    with pytest.raises(ValueError, match=message):
        BenchLayerSpec(**{**TINY, **changes})
    with pytest.raises(ValueError, match="there are"):
        BenchModelSpec("model.onnx", precision="int4")


@pytest.mark.parametrize(
    ("engine", "option"),
    [
        ("dense-int8", "dense-int8"),
        ("dense-int8-static", "dense-int8-static"),
        ("deepsparse-int8-spatial", "deepsparse-int8"),
        ("deepsparse-int8-float-conv", "deepsparse-int8-float"),
        ("torch-int8-dynamic-onednn", "torch-int8-dynamic"),
    ],
)
def test_engines_of_8_bits_belong_to_their_options(engine, option):
    assert engine_option(engine) == option


def test_the_command_measures_all_engines_by_default(tmp_path):
    options = ["--in-features", "64", "--out-features", "24", "--sparsity", "0.8", "--rounds", "2"]
    more = ["--precision", "int8", "--conditions", "none", "--deepsparse-python", "absent"]
    out = ["--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["bench", "layer", *options, *more, *out])
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "results.json").read_text())
    names = [one["name"] for one in data["cases"][0]["engines"]]
    assert {engine_option(name) for name in names} == set(INT8_ENGINES)
    wrong = CliRunner().invoke(app, ["bench", "layer", *options, "--precision", "int4", *out])
    assert wrong.exit_code == 2
    assert "none of float32, int8" in " ".join(wrong.output.replace("│", "").split())


def test_the_papers_layer_has_kinds_of_its_own(tmp_path):
    spec = BenchPaperSpec(
        **SIZES,
        threads=(1,),
        batches=(3,),
        sparsities=(0.8,),
        engines=OF_RUNTIME,
        precision="int8",
        rounds=5,
        minutes=0.001,
        conditions=(),
    )
    found = bench_paper(spec, tmp_path)
    (case,) = found.results[0].cases
    assert best_of(case, "fanin", "int8").name == "condensed-int8-static"
    text = to_markdown(paper_document(found))
    assert "| dense int8, static |" in text
    assert "not measured: openvino-int8, deepsparse-int8, torch-int8-static" in text
    save_paper(found, tmp_path)
    best = json.loads((tmp_path / "results.json").read_text())["cases"][0]["best"]
    assert best["dense int8, dynamic"]["engine"] == "dense-int8-dynamic"


torch = pytest.importorskip("torch")


def small():
    return torch.nn.Sequential(
        torch.nn.Linear(64, 96),
        torch.nn.ReLU(),
        torch.nn.Linear(96, 48),
        torch.nn.Linear(48, 8),
    )


@pytest.fixture
def zoo(monkeypatch):
    models = {name: ZooModel(f"net {name}", (64,), small) for name in ("a", "b")}
    for module in (zoo_module, zoo_models):
        monkeypatch.setattr(module, "ZOO", models)


@pytest.mark.usefixtures("zoo")
def test_networks_are_quantized_condensed_and_measured(tmp_path):
    spec = BenchZooSpec(
        models=("a",),
        engines=model_module.INT8_ENGINES,
        precision="int8",
        rounds=2,
        budget=0.01,
        conditions=(),
        deepsparse_python=tmp_path,
    )
    results = bench_zoo(spec, tmp_path / "out", tmp_path / "models")
    (case,) = results["a"].cases
    excluded = {one.name: one.excluded for one in case.engines if one.excluded}
    assert set(excluded) <= {"deepsparse-int8", "openvino-int8"}
    assert "make deepsparse-env" in excluded["deepsparse-int8"]
    for name in ("dense-int8-static", "condensed-int8-dynamic"):
        assert 1e-4 < case.engine(name).rms_error < 0.2
    assert [one.engine for one in case.breakdowns] == ["dense-int8-static", "condensed-int8-static"]
    assert results["a"].title.endswith(", 1 thread, int8")
    sizes = case.facts["file_bytes"]
    assert sizes["dense"] == case.facts["dense_bytes"]
    for name in ("dense-int8-static", "condensed-int8-static", "condensed-int8-dynamic"):
        assert 0 < sizes[name] < sizes["dense"]
    document = zoo_document(results)
    assert f"| a | {sizes['dense'] / 1e6:.2f} MB | " in to_markdown(document)
    assert "condensed-int8-static" in document.screen[0].headings
    assert "quantized by onnxruntime.quantization with random inputs" in to_markdown(document)
    save_zoo(results, tmp_path / "out")


@pytest.mark.usefixtures("zoo")
def test_a_folder_has_networks_of_one_precision(tmp_path):
    options = {"rounds": 2, "budget": 0.01, "conditions": (), "engines": ("dense", "condensed")}
    specs = [
        BenchZooSpec(models=(name,), precision=precision, **options)
        for name, precision in (("a", "int8"), ("b", "float32"))
    ]
    folders = tmp_path / "out", tmp_path / "models"
    bench_zoo(specs[0], *folders)
    with pytest.raises(StoreError, match="several precisions"):
        bench_zoo(specs[1], *folders)


def test_a_network_that_cannot_be_quantized_is_left_out_and_the_others_go_on(
    save_condensed, save_dense, monkeypatch
):
    model = save_condensed()
    save_dense()

    def fail(self):  # noqa: ARG001
        raise RuntimeError("no calibration data")

    monkeypatch.setattr(model_module.QuantizedNetwork, "_static", fail)
    engines = ("dense", "condensed", "dense-int8-static", "condensed-int8-static")
    spec = BenchModelSpec(
        model, engines=engines, precision="int8", rounds=2, turn=1e-3, breakdown=False
    )
    (case,) = bench_model(spec).cases
    assert [one.name for one in case.engines if one.excluded is None] == ["dense", "condensed"]
    assert "RuntimeError: no calibration data" in case.engine("dense-int8-static").excluded
