import json

import pytest
import torch

from fanin.trainer import RigL, load_run, train
from fanin.trainer.analysis import Analysis, analyse_paper, analyse_run, analyse_sweep
from fanin.trainer.analysis.of_run import active_neurons, fan_ins
from fanin.trainer.recipe import override
from fanin.trainer.sweep import SweepRecord


@pytest.fixture(scope="module")
def run(small_config, tmp_path_factory):
    config = override(small_config, {"training.epochs": 1, "method.sparsity": 0.8})
    return load_run(train(config, tmp_path_factory.mktemp("runs") / "run", progress=False).out)


def by_name(analyses):
    return {analysis.name: analysis for analysis in analyses}


def test_a_run_is_analysed_from_what_its_folder_holds(run, tmp_path):
    found = by_name(analyse_run(run))
    assert list(found) == ["operations", "active-neurons", "fan-in", "salience-threshold", "itop"]
    masks = run.masks
    for row in found["active-neurons"].rows:
        assert row["active"] == int(masks[row["layer"]].any(1).sum())
    for row in found["salience-threshold"].rows:
        k, protected = row["fan-in before ablation"], row["layer"] == "head.weight"
        assert row["threshold"] == (0 if protected else max(1, int(0.9 * k)))
    updates = [record for record in run.metrics if record["event"] == "update"]
    assert [row["step"] for row in found["itop"].rows] == [u["step"] for u in updates]
    dense, sparse = found["operations"].rows
    assert dense["inference per sample"] == 2 * (64 * 96 + 96 * 48 + 48 * 10)
    assert sparse["inference per sample"] == pytest.approx(
        0.2 * dense["inference per sample"], rel=0.01
    )
    assert dense["training"] == 3 * dense["inference per sample"] * 23 * 64
    for analysis in found.values():
        paths = analysis.save(tmp_path)
        assert [p.suffix for p in paths] == [".json", ".md", ".png"]
        assert json.loads(paths[0].read_text())["rows"] == [dict(r) for r in analysis.rows]
        assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_runs_of_other_methods_leave_out_what_they_have_not(small_config, tmp_path):
    from dataclasses import replace

    config = override(small_config, {"training.epochs": 1})
    config = replace(config, method=RigL(0.8))
    found = by_name(analyse_run(load_run(train(config, tmp_path / "run", progress=False).out)))
    assert list(found) == ["operations", "active-neurons", "fan-in", "itop"]


def test_fan_ins_are_quartiles_of_active_neurons():
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]).bool()
    (row,) = fan_ins({"a": mask}).rows
    assert [row[c] for c in ("least", "quarter", "median", "three quarters", "most")] == [
        1, 1.5, 2, 3, 4,
    ]  # fmt: skip
    (row,) = active_neurons({"a": mask}).rows
    assert (row["width"], row["active"], row["share"]) == (4, 3, 0.75)


def test_the_papers_analyses(tmp_path):
    found = by_name(analyse_paper(draws=200))
    assert list(found) == [
        "variance", "resnet50-operations", "resnet50-methods", "resnet50-structured",
    ]  # fmt: skip
    table = {row["sparsity %"]: row for row in found["resnet50-operations"].rows}
    assert table[80]["training 1e18"] == pytest.approx(1.3111, abs=1e-4)
    assert table[75]["N:M"] == "1:4"
    assert table[75]["training 1e18"] < table[75]["SR-STE training 1e18"]
    assert found["resnet50-structured"].rows[0]["counted 1e9"] == pytest.approx(1.989, abs=1e-3)
    for analysis in found.values():
        assert len(analysis.save(tmp_path)) == (2 if analysis.draw is None else 3)
    assert "| sr-ste | – | 76.2 | – | – | 71.5 |" in (tmp_path / "resnet50-methods.md").read_text()


def test_sweeps_are_drawn_against_what_they_vary(tmp_path):
    records = [
        SweepRecord("", "dense", {"training.seed": seed}, test_accuracy=0.9) for seed in (0, 1)
    ]
    for sparsity in (0.8, 0.9):
        for gamma in (0.3, 0.9):
            for seed in (0, 1):
                values = {"method.sparsity": sparsity, "method.gamma_sal": gamma}
                values["training.seed"] = seed
                accuracy = sparsity - gamma / 10 + seed / 100
                records.append(SweepRecord("", "srigl", values, test_accuracy=accuracy))
    found = by_name(analyse_sweep(records))
    assert list(found) == ["accuracy-sparsity", "accuracy-gamma"]
    rows = found["accuracy-gamma"].rows
    assert len(rows) == 5
    assert rows[1]["accuracy"] == pytest.approx(0.8 - 0.03 + 0.005)
    for analysis in found.values():
        analysis.save(tmp_path)
    (plain,) = analyse_sweep(records[:2])
    assert plain.name == "accuracy"
    assert plain.rows[0]["runs"] == 2


def test_markdown_tables_show_missing_values_as_dashes():
    text = Analysis(
        "a", "Title", [{"x": 1.23456, "y": None}, {"x": [1, 2.5], "z": "w"}]
    ).to_markdown()
    assert text.splitlines()[2:] == [
        "| x | y | z |", "| --- | --- | --- |", "| 1.235 | – | – |", "| 1, 2.5 | – | w |",
    ]  # fmt: skip
