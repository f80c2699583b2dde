import json
import math
from dataclasses import replace

import pytest
import torch

from fanin.trainer import ConfigError, load_run
from fanin.trainer.recipe import config_to_toml
from fanin.trainer.run_folder import build_model, sparse_parameter_names
from fanin.trainer.sweep import group_runs, read_records, run_sweep
from fanin.trainer.sweep_config import expand, load_sweep, sweep_names
from fanin.trainer.sweep_run import SweepRecord

SWEEP = """
recipe = "small.toml"
[set]
"training.epochs" = 1
[grid]
"training.seed" = [0, 1]
[[variants]]
label = "dense"
method = { name = "dense" }
sparsifier = {}
[[variants]]
label = "rigl"
method = { name = "rigl" }
grid = { "method.sparsity" = [0.8, 0.9] }
"""


@pytest.fixture
def sweep(small_config, tmp_path):
    (tmp_path / "small.toml").write_text(config_to_toml(small_config))
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP)
    return path


def test_runs_are_all_combinations_in_order(sweep):
    runs = load_sweep(sweep)
    assert [run.name for run in runs] == [
        "dense-seed0", "dense-seed1", "rigl-sparsity0.8-seed0", "rigl-sparsity0.8-seed1",
        "rigl-sparsity0.9-seed0", "rigl-sparsity0.9-seed1",
    ]  # fmt: skip
    assert runs[4].config.method.sparsity == 0.9
    assert runs[4].config.sparsifier.schedule.update_every == 5  # from the recipe
    assert runs[5].config.training.seed == 1
    assert {run.config.training.epochs for run in runs} == {1}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[grid]", "[girds]", "unknown key 'girds'.*'grid'"),
        ('recipe = "small.toml"', "", "'recipe' must name"),
        ('"small.toml"', '"mlp-digit-dense"', "no recipe"),
        ('"training.seed" = [0, 1]', '"training.seed" = 3', "grid.training.seed must be a list"),
        ('"training.seed"', '"training.sed"', "variant 'dense': unknown key 'training.sed'"),
        ('"training.seed"', '"trainin.seed"', "unknown key 'trainin.seed'"),
        ('"rigl" }\ngrid', '"rigl", x = 1 }\ngrid', "unknown key 'method.x'"),
        ('label = "rigl"', 'label = "a/b"', "label of letters"),
        ("[0.8, 0.9]", "[0.8, 0.8]", "two runs have the name 'rigl-sparsity0.8-seed0'"),
        ("[0.8, 0.9]", "[0.8, 1.9]", r"sparsity must be in \(0, 1\)"),
    ],
)
def test_wrong_sweeps_are_refused_before_training(sweep, tmp_path, old, new, reason):
    assert old in SWEEP
    sweep.write_text(SWEEP.replace(old, new, 1))
    with pytest.raises(ConfigError, match=reason):
        run_sweep(sweep, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sweeps_resume_and_record_every_run(sweep, tmp_path, monkeypatch):
    from fanin.trainer.training_run import TrainingRun

    out, step, steps = tmp_path / "out", TrainingRun._step, []

    def counted(run, *arguments):
        steps.append(run.folder.name)
        if len(steps) == 60:
            raise KeyboardInterrupt
        step(run, *arguments)

    monkeypatch.setattr(TrainingRun, "_step", counted)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, out)
    assert len(read_records(out)) == 2
    seen = []
    records = run_sweep(sweep, out, on_run=lambda run, *_: seen.append(run.name))
    assert len(seen) == len(records) == 6
    # The third run goes on from its last checkpoint, at step 7, and finished ones are not repeated.
    assert len(steps) == 60 + (23 - 7) + 3 * 23
    assert all(record.error is None and record.test_accuracy > 0.5 for record in records)
    assert records[2].density == pytest.approx(0.2, abs=0.01)
    assert records[0].active is None
    assert read_records(out) == records
    assert (out / "sweep.csv").read_text().count("\n") == 7
    assert load_run(out / "rigl-sparsity0.9-seed1").config.method.sparsity == 0.9
    before = len(steps)
    assert run_sweep(sweep, out) == records
    assert len(steps) == before


def test_runs_that_diverge_are_recorded_and_the_sweep_goes_on(sweep, tmp_path):
    text = SWEEP.replace('"training.seed" = [0, 1]', '"optimizer.lr" = [1e9, 0.05]')
    sweep.write_text(text)
    records = run_sweep(sweep, tmp_path / "out")
    assert ["diverged" in (record.error or "") for record in records] == [True, False] * 3
    assert records[1].test_accuracy > 0.5


def test_groups_are_means_over_seeds():
    def record(variant, sparsity, seed, accuracy, error=None):
        values = {"method.sparsity": sparsity, "training.seed": seed}
        return SweepRecord("", variant, values, test_accuracy=accuracy, seconds=4.0, error=error)

    rows = group_runs(
        [
            record("a", 0.8, 0, 0.5),
            record("a", 0.8, 1, 0.7),
            record("a", 0.9, 0, 0.4),
            record("a", 0.9, 1, None, "diverged"),
        ]
    )
    assert [row["runs"] for row in rows] == [2, 1]
    assert rows[0]["accuracy"] == pytest.approx(0.6)
    assert rows[0]["deviation"] == pytest.approx(0.02**0.5)
    # Student's t at 97.5 % for one degree of freedom, from its closed form.
    assert rows[0]["interval"] == pytest.approx(math.tan(math.pi * 0.475) * 0.1)
    assert (rows[1]["accuracy"], rows[1]["deviation"], rows[1]["failed"]) == (0.4, None, 1)
    assert rows[1]["values"] == {"method.sparsity": 0.9}


RUNS = {
    "fashion-mnist-ablation-99": 18,
    "fashion-mnist-ablation-99-long": 9,
    "fashion-mnist-cnn": 21,
    "fashion-mnist-cnn-long": 9,
    "cifar10-gamma": 70,
    "cifar10-resnet18": 65,
    "cifar10-wide-resnet": 110,
    "fashion-mnist-all-methods": 3 * (15 * 2 + 2),
    "fashion-mnist-knobs": 96,
    "imagenet-mobilenet-large": 13,
    "imagenet-mobilenet-small": 13,
    "imagenet-resnet50": 28,
    "imagenet-vit": 11,
    "fashion-mnist-methods": 63,
}


@pytest.mark.parametrize("name", sweep_names())
def test_shipped_sweeps_are_feasible(name):
    runs = load_sweep(name)
    assert len(runs) == RUNS[name]
    # Seeds and lengths of the training do not change what is feasible.
    kinds = {(run.variant, str({**run.values, "training.seed": 0})): run for run in runs}
    for run in kinds.values():
        with torch.device("meta"):
            model = build_model(run.config)
        names = sparse_parameter_names(run.config, model)
        assert bool(names) == (run.variant != "dense")


def test_unfinished_and_foreign_folders_are_no_sweeps(tmp_path):
    with pytest.raises(ValueError, match="is not the folder of a sweep"):
        read_records(tmp_path)
    (tmp_path / "sweep.json").write_text(json.dumps({"schema_version": 2, "runs": []}))
    with pytest.raises(ValueError, match="schema_version 2"):
        read_records(tmp_path)


def test_a_run_with_neither_figures_nor_an_error_is_refused(tmp_path):
    runs = [{"name": name, "variant": "dense", "values": {}} for name in ("first", "second")]
    (tmp_path / "sweep.json").write_text(json.dumps({"schema_version": 1, "runs": runs}))
    with pytest.raises(ValueError, match="run 'first' has neither a test_accuracy nor an error"):
        read_records(tmp_path)


def test_runs_have_names_that_folders_can_have(sweep):
    grid = '"training.seed" = [0]\n"sparsifier.weight_std" = ["sqrt(2/k)", "2/k"]'
    sweep.write_text(SWEEP.replace('"training.seed" = [0, 1]', grid).split("[[variants]]")[0])
    names = [run.name for run in load_sweep(sweep)]
    assert names == ["run-seed0-weight_stdsqrt_2_k_", "run-seed0-weight_std2_k"]


def test_a_sweep_is_not_for_torchrun(sweep, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ConfigError, match="torchrun trains a single run"):
        run_sweep(sweep, tmp_path / "out")


def test_a_sweep_by_ray_gives_the_records_of_one_without(sweep, tmp_path):
    pytest.importorskip("ray.tune")
    import ray

    sweep.write_text(SWEEP.replace("[0.8, 0.9]", "[0.8]").replace("[0, 1]", "[0]"))
    by_ray = run_sweep(sweep, tmp_path / "ray", ray=True)
    assert not ray.is_initialized()
    alone = run_sweep(sweep, tmp_path / "alone")
    assert [replace(r, seconds=None) for r in by_ray] == [replace(r, seconds=None) for r in alone]
    assert read_records(tmp_path / "ray") == by_ray
    again = run_sweep(sweep, tmp_path / "ray", ray=True)  # finished runs are only read
    assert again == by_ray


def test_variants_extend_their_training_as_the_paper_does():
    runs = {run.variant: run.config for run in load_sweep("imagenet-resnet50")}
    assert runs["srigl"].training.epochs == 103
    assert runs["srigl-x5"].training.epochs == 515
    assert runs["srigl-x5"].lr_schedule.milestones == (150.0, 350.0, 450.0)
    tables = {"recipe": "mlp-digits-dense", "variants": [{"label": "a", "extend": "twice"}]}
    with pytest.raises(ConfigError, match="extend must be a number such as 2, got 'twice'"):
        expand(tables)
