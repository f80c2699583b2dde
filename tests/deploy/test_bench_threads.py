"""Layers and networks over threads: the table, the plans beside it, and the networks' files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy.bench import load_result, report_of, save_result
from fanin.deploy.bench.engines.kernels import pack
from fanin.deploy.bench.suites import network_scaling as module
from fanin.deploy.bench.suites import planned
from fanin.deploy.bench.suites.layer import BenchLayerSpec
from fanin.deploy.bench.suites.network_scaling import BenchNetworksSpec, bench_networks
from fanin.deploy.bench.suites.planned import PLANNED_THREADS, plan_layer
from fanin.deploy.bench.suites.scaling import BenchScalingSpec, bench_scaling
from fanin.deploy.bench.suites.scaling_report import threads_table
from fanin.deploy.bench.suites.zoo_models import ZooModel
from fanin.ort_ops.dispatch_cost import DispatchCost

SMALL = {"in_features": 256, "out_features": 512, "rounds": 2, "turn": 1e-3}


@pytest.fixture(autouse=True)
def uncalibrated(tmp_path, monkeypatch):
    """Keep the plans from the user's own measurements."""
    monkeypatch.delenv("FANIN_CALIBRATION", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def result():
    return bench_scaling(BenchScalingSpec("threads", (1, 2), (1, 40), **SMALL))


def at(case, dense, condensed):
    """Give the case these times of a run, in seconds."""
    times = {"dense": dense, "condensed": condensed}
    engines = tuple(
        replace(one, run=replace(one.run, median=times[one.name])) for one in case.engines
    )
    (compared,) = case.comparisons
    ratio = replace(compared.run_ratio, median=dense / condensed)
    return replace(case, engines=engines, comparisons=(replace(compared, run_ratio=ratio),))


def test_the_table_has_speedups_over_the_fewest_threads_and_over_dense(result):
    one, _, two, _ = result.cases
    table = threads_table([at(two, 60e-6, 15e-6), at(one, 100e-6, 20e-6)])
    assert [list(row) for row in table.rows] == [
        ["90 % sparse, batch 1", "1", "100 µs", "20.0 µs", "5.00×", "1.00×", "1.00×", "100%"],
        ["", "2", "60.0 µs", "15.0 µs", "4.00×", "1.67×", "1.33×", "67%"],
    ]


def test_an_engine_that_was_excluded_leaves_its_cells_empty(result):
    one = at(result.cases[0], 100e-6, 20e-6)
    wrong = replace(one.engine("condensed"), run=None, excluded="it is wrong")
    case = replace(one, engines=(one.engine("dense"), wrong), comparisons=())
    (row,) = threads_table([case]).rows
    assert list(row) == ["90 % sparse, batch 1", "1", "100 µs", "", "", "1.00×", "", ""]


def test_plans_are_those_of_the_binding():
    weight = BenchLayerSpec(in_features=3072, out_features=768).weight("random", 0.9)
    cost = DispatchCost(2.0, 0.1)
    alone = pack(weight, 64).plan(64, 1).microseconds
    plans = plan_layer("layer", weight, 64, cost)
    assert [one.threads for one in plans] == list(PLANNED_THREADS)
    for one in plans:
        plan = pack(weight, 64, threads=one.threads).plan(64, one.threads, (2.0, 0.1))
        assert one.used == plan.threads
        assert one.one_thread == pytest.approx(alone / 1e6)
        assert one.planned == pytest.approx((plan.longest + plan.dispatch) / 1e6)
        assert one.imbalance == pytest.approx(plan.imbalance)


def test_a_thread_reads_its_share_of_the_weights():
    weight = BenchLayerSpec(in_features=3072, out_features=768).weight("random", 0.9)
    free = DispatchCost(0.0, 0.0)
    (info,) = pack(weight, 1, threads=8).info()
    one = plan_layer("layer", weight, 1, free)[0]
    assert info.bytes / one.used - 1 < one.weight_bytes < info.bytes / 2
    # With more tiles than threads each of them reads all weights.
    many = plan_layer("layer", weight, 4096, free)[0]
    (info,) = pack(weight, 4096, threads=8).info()
    assert many.weight_bytes == pytest.approx(info.bytes, rel=0.01)


def test_the_report_says_that_plans_are_not_measured(result, tmp_path):
    save_result(result, tmp_path)
    assert report_of(load_result(tmp_path)).screen[-1] == report_of(result).screen[-1]
    text = (tmp_path / "results.md").read_text()
    assert "## Planned, not measured" in text
    assert text.index("over dense") < text.index("## Planned") < text.index("## Measurements")


def test_results_without_plans_are_still_reported(result):
    older = replace(result, facts={})
    titles = [one.title for one in report_of(older).screen]
    assert "Over threads" in titles
    assert "Planned, not measured" not in titles


@pytest.fixture
def zoo(monkeypatch):
    """A small network in the place of the large ones."""
    torch = pytest.importorskip("torch")
    from fanin.deploy.bench.suites import zoo_models

    def small():
        return torch.nn.Sequential(
            torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)
        )

    models = {"a": ZooModel("net a", (256,), small)}
    for where in (module, zoo_models):
        monkeypatch.setattr(where, "ZOO", models)
    monkeypatch.setattr(planned, "PLANNED_THREADS", (8,))
    return models


QUICK = {"threads": (1, 2), "rounds": 2, "budget": 0.01}


def test_networks_are_measured_on_each_number_of_threads(zoo, tmp_path):  # noqa: ARG001
    spec = BenchNetworksSpec(models=("a",), **QUICK)
    seen = []
    result = bench_networks(spec, tmp_path, progress=lambda title, done: seen.append((title, done)))
    assert [case.title for case in result.cases] == [
        "a 90%, batch 1, 1 thread",
        "a 90%, batch 1, 2 threads",
    ]
    for case, threads in zip(result.cases, (1, 2), strict=True):
        assert {one.name: one.threads for one in case.engines} == dict.fromkeys(
            ("dense", "condensed"), threads
        )
        assert all(one.excluded is None for one in case.engines)
    assert seen == [
        ("a: export", 0.0),
        ("a 90%, batch 1, 1 thread", 0.0),
        ("a 90%, batch 1, 2 threads", 0.5),
    ]
    assert [one["threads"] for one in result.facts["planned"]] == [8]
    paths = save_result(result, tmp_path / "out")
    assert str(tmp_path) not in paths[0].read_text()
    assert "a 90%, batch 1, condensed layers" in paths[1].read_text()


def test_files_are_measured_by_their_path_and_named_without_it(zoo, tmp_path):  # noqa: ARG001
    bench_networks(BenchNetworksSpec(models=("a",), threads=(1,), rounds=1), tmp_path)
    spec = BenchNetworksSpec(models=(str(tmp_path / "a-90-0.onnx"),), threads=(1,), rounds=1)
    result = bench_networks(spec, tmp_path)
    assert result.cases[0].title == "a-90-0.onnx, batch 1, 1 thread"
    assert result.spec["models"] == ["a-90-0.onnx"]


def test_a_network_without_a_plan_is_named_in_a_note(zoo, tmp_path, monkeypatch):  # noqa: ARG001
    def fails(*_):
        raise module.FindingError("no onnx", "Install it.")

    monkeypatch.setattr(module, "plan_network", fails)
    result = bench_networks(BenchNetworksSpec(models=("a",), threads=(1,), rounds=1), tmp_path)
    assert result.facts["planned"] == []
    assert "a 90% has no plan: no onnx" in report_of(result).notes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ("resnet-5",)}, "resnet-5 is neither a file nor one of vit-b-16"),
        ({"models": ()}, "nothing is neither"),
        ({"sparsity": 1.0}, "sparsity is 1.0"),
        ({"threads": (0,)}, "threads is 0"),
        ({"batch": 0}, "batches are"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BenchNetworksSpec(**changes)


def test_the_command_takes_networks(zoo, tmp_path, monkeypatch):  # noqa: ARG001
    monkeypatch.setattr(module, "thread_counts", lambda _: (1,))
    arguments = ["--of", "networks", "--models", "a", "--files", tmp_path, "-o", tmp_path / "out"]
    done = CliRunner().invoke(app, ["bench", "scaling", "--quick", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "out" / "networks" / "results.json").read_text())
    assert (data["kind"], data["spec"]["threads"], data["spec"]["rounds"]) == ("scaling", [1], 5)


def test_networks_go_with_their_part_alone(tmp_path: Path):
    done = CliRunner().invoke(app, ["bench", "scaling", "--models", "mlp", "-o", str(tmp_path)])
    assert done.exit_code == 2
    assert "goes with --of networks" in done.output
