import json
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure

from fanin.trainer import RigL, load_run, train
from fanin.trainer.analysis import Analysis, analyze_paper, analyze_run, analyze_sweep
from fanin.trainer.analysis.run import active_neurons, fan_ins
from fanin.trainer.recipe import config_to_toml, override
from fanin.trainer.sweep_run import SweepRecord


@pytest.fixture(scope="module")
def run(small_config, tmp_path_factory):
    config = override(small_config, {"training.epochs": 1, "method.sparsity": 0.8})
    return load_run(train(config, tmp_path_factory.mktemp("runs") / "run", progress=False).out)


def by_name(analyses):
    return {analysis.name: analysis for analysis in analyses}


def test_a_run_is_analyzed_from_what_its_folder_holds(run, tmp_path):
    found = by_name(analyze_run(run))
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
        assert [p.name.removeprefix(analysis.name) for p in paths] == [
            ".json",
            ".md",
            ".svg",
            "-narrow.svg",
        ]
        assert json.loads(paths[0].read_text())["rows"] == [dict(r) for r in analysis.rows]
        assert paths[2].read_text().startswith("<svg ")
        assert f'srcset="{paths[3].name}"' in paths[1].read_text()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_runs_of_other_methods_leave_out_what_they_have_not(small_config, tmp_path):
    from dataclasses import replace

    config = override(small_config, {"training.epochs": 1})
    config = replace(config, method=RigL(0.8))
    found = by_name(analyze_run(load_run(train(config, tmp_path / "run", progress=False).out)))
    assert list(found) == ["operations", "active-neurons", "fan-in", "itop"]


def test_fan_ins_are_quartiles_of_active_neurons():
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]).bool()
    (row,) = fan_ins({"a": mask}).rows
    assert [row[c] for c in ("min", "25 %", "median", "75 %", "max")] == [
        1, 1.5, 2, 3, 4,
    ]  # fmt: skip
    (row,) = active_neurons({"a": mask}).rows
    assert (row["width"], row["active"], row["share"]) == (4, 3, 0.75)


def test_the_papers_analyses(tmp_path):
    found = by_name(analyze_paper(draws=200))
    assert list(found) == [
        "variance", "resnet50-operations", "resnet50-methods", "resnet50-structured",
    ]  # fmt: skip
    table = {row["sparsity %"]: row for row in found["resnet50-operations"].rows}
    assert table[80]["training 1e18"] == pytest.approx(1.3111, abs=1e-4)
    assert table[75]["N:M"] == "1:4"
    assert table[75]["training 1e18"] < table[75]["SR-STE training 1e18"]
    assert found["resnet50-structured"].rows[0]["counted 1e9"] == pytest.approx(1.989, abs=1e-3)
    for analysis in found.values():
        assert len(analysis.save(tmp_path)) == (2 if analysis.draw is None else 4)
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
        for seed in (0, 1):
            values = {"method.sparsity": sparsity, "training.seed": seed}
            records.append(SweepRecord("", "no ablation", values, test_accuracy=sparsity / 2))
    values = {"sparsifier.alpha": 0.2, "training.seed": 0}
    records.append(SweepRecord("", "other grid", values, test_accuracy=0.1))
    found = by_name(analyze_sweep(records))
    assert list(found) == ["accuracy-sparsity", "accuracy-gamma", "accuracy-alpha", "methods"]
    rows = found["accuracy-gamma"].rows
    # Dense, γ at each sparsity, and the variant without γ at each sparsity.
    assert [row["variant"] for row in rows] == [
        "dense", "srigl", "srigl", "no ablation", "srigl", "srigl", "no ablation",
    ]  # fmt: skip
    assert rows[1]["accuracy"] == pytest.approx(0.8 - 0.03 + 0.005)
    lines = lines_of(found["accuracy-gamma"])
    assert lines["no ablation sparsity=0.8"] == pytest.approx([0.4, 0.4])
    assert lines["no ablation sparsity=0.9"] == pytest.approx([0.45, 0.45])
    assert lines["dense"] == pytest.approx([0.9, 0.9])
    assert lines["srigl sparsity=0.9"] == pytest.approx([0.875, 0.815])
    assert set(lines_of(found["accuracy-alpha"])) == {"dense", "other grid"}
    for analysis in found.values():
        analysis.save(tmp_path)
    (plain,) = analyze_sweep(records[:2])
    assert plain.name == "accuracy"
    assert plain.rows[0]["runs"] == 2


def lines_of(analysis):
    """The curves of a figure by their labels: values on the vertical axis."""
    axes = Figure().add_subplot()
    analysis.draw(axes)
    found = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    found |= {c.get_label(): list(c.lines[0].get_ydata()) for c in axes.containers if c.get_label()}
    return {label: values for label, values in found.items() if not label.startswith("_")}


def test_the_figure_of_fan_ins_shows_single_neurons_of_many_inputs_and_says_what_is_equal():
    mask = torch.zeros(40, 100, dtype=torch.bool)
    mask[:, :5] = True
    equal = mask.clone()
    mask[7] = True
    axes = Figure().add_subplot()
    fan_ins({"a": mask, "b": equal}).draw(axes)
    ranges = axes.collections[0].get_segments()
    assert [list(segment[:, 0]) for segment in ranges] == [[5, 100], [5, 5]]
    assert [text.get_text() for text in axes.texts] == ["5–100, median 5", "5"]


def test_markdown_tables_show_missing_values_as_dashes():
    text = Analysis(
        "a", "Title", [{"x": 1.23456, "y": None}, {"x": [1, 2.5], "z": "w"}]
    ).to_markdown()
    assert text.splitlines()[2:] == [
        "| x | y | z |", "| --- | --- | --- |", "| 1.235 | – | – |", "| 1, 2.5 | – | w |",
    ]  # fmt: skip


def sweep_of(*cells):
    """Records of (variant, values, seed, accuracy)."""
    return [
        SweepRecord(f"{i}", variant, values | {"training.seed": seed}, test_accuracy=accuracy)
        for i, (variant, values, seed, accuracy) in enumerate(cells)
    ]


def test_methods_by_sparsity_say_how_many_seeds_they_had():
    nine = {"method.sparsity": 0.9}
    found = by_name(
        analyze_sweep(
            sweep_of(
                ("dense", {}, 0, 0.92),
                ("rigl", nine, 0, 0.90),
                ("rigl", nine, 1, 0.91),
                ("rigl", {"method.sparsity": 0.99}, 0, 0.8),
                ("static", nine, 0, 0.7),
            )
        )
    )
    assert found["methods"].rows == [
        {"method": "dense", "0": "92.00 (1)", "0.9": None, "0.99": None},
        {"method": "rigl", "0": None, "0.9": "90.50 ± 6.35 (2)", "0.99": "80.00 (1)"},
        {"method": "static", "0": None, "0.9": "70.00 (1)", "0.99": None},
    ]


def test_variants_without_a_target_stand_where_their_networks_are():
    nine = {"method.sparsity": 0.9}
    records = sweep_of(
        ("dense", {}, 0, 0.92), ("sr-ste", {}, 0, 0.9),
        ("rigl", nine, 0, 0.8), ("rigl", {"method.sparsity": 0.99}, 0, 0.7),
    )  # fmt: skip
    densities = (1.0, 0.0625, 0.1, 0.01)
    records = [replace(r, density=d) for r, d in zip(records, densities, strict=True)]
    assert by_name(analyze_sweep(records))["methods"].rows == [
        {"method": "dense", "0": "92.00 (1)", "0.9": None, "0.938": None, "0.99": None},
        {"method": "sr-ste", "0": None, "0.9": None, "0.938": "90.00 (1)", "0.99": None},
        {"method": "rigl", "0": None, "0.9": "80.00 (1)", "0.938": None, "0.99": "70.00 (1)"},
    ]


def test_differences_are_between_runs_of_one_seed():
    nine = {"method.sparsity": 0.9}
    records = sweep_of(
        ("dense", {}, 0, 0.92), ("dense", {}, 1, 0.93), ("rigl", nine, 0, 0.90),
        ("rigl", nine, 1, 0.92), ("set", nine, 0, 0.89), ("set", nine, 2, 0.95),
    )  # fmt: skip
    (rigl, its) = by_name(analyze_sweep(records, against="dense"))["differences"].rows
    assert (rigl["variant"], rigl["sparsity"], rigl["pairs"]) == ("rigl", 0.9, 2)
    assert rigl["points"] == pytest.approx(-1.5)
    assert rigl["standard error"] == pytest.approx(0.5)
    assert (its["variant"], its["pairs"], its["standard error"]) == ("set", 1, None)
    (row,) = by_name(analyze_sweep(records, against="rigl"))["differences"].rows
    assert (row["variant"], row["pairs"]) == ("set", 1)
    with pytest.raises(ValueError, match=r"no variant 'rgl'\. Did you mean 'rigl'"):
        analyze_sweep(records, against="rgl")


def test_what_is_varied_by_name_is_drawn_and_variants_that_fix_it_are_left_out(tmp_path):
    records = sweep_of(
        ("a", {"sparsifier.distribution": "erk"}, 0, 0.9),
        ("a", {"sparsifier.distribution": "uniform"}, 0, 0.8),
        ("b", {"sparsifier.update_every": 10}, 0, 0.7),
        ("b", {"sparsifier.update_every": 1000}, 0, 0.6),
    )
    found = by_name(analyze_sweep(records))
    assert list(found) == ["accuracy-distribution", "accuracy-update-every"]
    assert [row["variant"] for row in found["accuracy-update-every"].rows] == ["b", "b"]
    for analysis in found.values():
        assert analysis.save(tmp_path)[2].read_text().startswith("<svg ")


def test_layers_of_a_sweep_are_means_over_the_runs_that_are_there(small_config, tmp_path):
    from fanin.trainer.sweep import run_sweep

    (tmp_path / "small.toml").write_text(config_to_toml(small_config))
    (tmp_path / "sweep.toml").write_text(
        'recipe = "small.toml"\n[set]\n"training.epochs" = 1\n[grid]\n"training.seed" = [0, 1]\n'
    )
    records = run_sweep(tmp_path / "sweep.toml", tmp_path / "out")
    rows = by_name(analyze_sweep(records, tmp_path / "out"))["layers"].rows
    runs = [load_run(tmp_path / "out" / record.name) for record in records]
    assert [row["layer"] for row in rows] == list(runs[0].masks)
    for row in rows:
        counts = [run.masks[row["layer"]].sum(1) for run in runs]
        assert row["runs"] == 2
        assert row["active"] == sum(int((c > 0).sum()) for c in counts) / 2
        assert row["fan-in"] == sum(int(c.max()) for c in counts) / 2
