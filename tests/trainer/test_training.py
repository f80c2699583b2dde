import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fanin.trainer import (
    ConfigError,
    Dense,
    RunFolderError,
    SRigL,
    TrainingError,
    evaluation,
    load_run,
    train,
)
from fanin.trainer.data import load_dataset
from fanin.trainer.evaluation import evaluate
from fanin.trainer.recipe import SparsifierConfig, config_to_toml, override, parse_config


@pytest.fixture(scope="module")
def finished(small_config, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return train(small_config, out, progress=False)


def events(folder, kind):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["event"] == kind]


def test_training_learns_and_reports(finished):
    assert finished.test_accuracy > 0.85
    assert finished.steps == 3 * 23
    assert not finished.already_finished
    assert 0 < finished.seconds < 600
    assert finished.itop_rate > finished.summary.density
    hidden = finished.summary.rows[0]
    assert (hidden.name, hidden.shape) == ("fc1.weight", (96, 64))
    assert hidden.active < 96
    assert finished.summary.rows[-1].active == 10


def test_run_folder_holds_the_documented_files_and_nothing_else(finished):
    assert sorted(p.name for p in finished.out.iterdir()) == [
        "config.toml", "metrics.jsonl", "training_state.pt", "weights.safetensors",
    ]  # fmt: skip


def test_metrics_hold_steps_updates_and_epochs(finished):
    steps, updates, epochs = (events(finished.out, k) for k in ("step", "update", "epoch"))
    assert [r["step"] for r in steps] == list(range(5, 70, 5))
    assert [r["step"] for r in updates] == list(range(5, 51, 5))
    assert [r["epoch"] for r in epochs] == [1, 2, 3]
    assert steps[0]["loss"] > steps[-1]["loss"]
    assert steps[0]["lr"] > steps[-1]["lr"] > 0
    assert updates[0]["drop_fraction"] > updates[-1]["drop_fraction"]
    last = epochs[-1]
    assert last["test_accuracy"] == finished.test_accuracy
    for row in last["layers"]:
        update = updates[-1]["layers"].get(row["name"])
        if update:
            assert (row["fan_in"], row["active"]) == (update["fan_in"], update["active"])


def test_a_loaded_run_reproduces_the_reported_accuracy(finished, small_config):
    run = load_run(finished.out)
    found = evaluate(run.model, load_dataset("digits").test)
    assert found.accuracy == finished.test_accuracy
    assert found.loss == pytest.approx(finished.test_loss, rel=1e-5)
    assert run.config == small_config
    assert not run.model.training
    assert run.example_input.shape == (2, 1, 8, 8)
    assert run.metrics[-1]["event"] == "epoch"


def test_saved_masks_are_those_of_the_summary(finished):
    run = load_run(finished.out)
    for row in finished.summary:
        if not row.sparse:
            assert row.name not in run.masks
            continue
        mask, weight = run.masks[row.name], run.model.get_parameter(row.name)
        assert mask.dtype == torch.bool
        counts = mask.sum(1)
        assert set(counts.tolist()) <= {0, row.fan_in}
        assert int((counts > 0).sum()) == row.active
        assert bool((weight[~mask] == 0).all())


def test_equal_runs_are_equal_bit_for_bit(finished, small_config, tmp_path):
    again = train(small_config, tmp_path / "again", progress=False)
    weights = [load_file(r.out / "weights.safetensors") for r in (finished, again)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert events(finished.out, "step") == events(again.out, "step")


def test_dense_training_writes_no_masks(small_config, tmp_path):
    config = dataclasses.replace(small_config, method=Dense(), sparsifier=SparsifierConfig())
    result = train(config, tmp_path / "dense", progress=False)
    assert result.test_accuracy > 0.85
    assert result.summary.density == result.itop_rate == 1.0
    assert load_run(result.out).masks == {}


def test_configurations_may_be_paths(small_config, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(config_to_toml(override(small_config, {"training.epochs": 1})))
    result = train(path, tmp_path / "run", progress=False)
    assert parse_config((result.out / "config.toml").read_text(), "run").training.epochs == 1


def test_finished_runs_say_so_when_resumed(finished, small_config, capsys):
    before = (finished.out / "metrics.jsonl").read_bytes()
    for config in (small_config, None):
        result = train(config, finished.out, resume=True)
        assert result.already_finished
        assert dataclasses.replace(result, already_finished=False) == finished
    assert "already finished" in capsys.readouterr().err
    assert (finished.out / "metrics.jsonl").read_bytes() == before


def test_progress_goes_to_stderr_only_when_wanted(small_config, tmp_path, capsys):
    config = override(small_config, {"training.epochs": 1})
    train(config, tmp_path / "loud")
    loud = capsys.readouterr()
    train(config, tmp_path / "quiet", progress=False)
    quiet = capsys.readouterr()
    assert "step 23 of 23: train loss" in loud.err
    assert loud.out == quiet.out == quiet.err == ""


def test_divergence_ends_with_a_clear_error(small_config, tmp_path):
    config = override(small_config, {"optimizer.lr": 1e9})
    with pytest.raises(TrainingError, match=r"diverged near step \d+: .*Lower optimizer.lr"):
        train(config, tmp_path / "run", progress=False)
    with pytest.raises(RunFolderError, match="unfinished"):
        load_run(tmp_path / "run")


def test_cuda_that_is_not_there_is_an_error(small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TrainingError, match="no CUDA device"):
        train(override(small_config, {"training.device": "cuda"}), tmp_path / "run")


def test_gradient_free_weights_of_the_recipe_are_named_before_training(small_config, tmp_path):
    with pytest.raises(ConfigError, match=r"dense_layers names 'heat'.*'head'"):
        train(
            override(small_config, {"sparsifier.dense_layers": ["heat"]}),
            tmp_path / "run",
            progress=False,
        )


def _few_classes(split):
    return dataclasses.replace(split, labels=split.labels % 5)


def test_evaluation_averages_over_samples_and_keeps_the_mode(monkeypatch):
    split = load_dataset("digits").test
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(64, 10)).train()
    monkeypatch.setattr(evaluation, "_BATCH", 7)
    found = evaluate(model, split)
    assert model.training
    logits = model.eval()(split.inputs)
    assert found.accuracy == int((logits.argmax(1) == split.labels).sum()) / len(split)
    loss = nn.functional.cross_entropy(logits, split.labels).item()
    assert found.loss == pytest.approx(loss, rel=1e-5)
    ranks = (logits > logits.gather(1, split.labels[:, None])).sum(1)
    assert found.top5 == int((ranks < 5).sum()) / len(split)
    assert evaluate(nn.Sequential(model, nn.Linear(10, 5)), _few_classes(split)).top5 is None


def test_infeasible_sparsity_is_refused_before_training(small_config, tmp_path):
    config = dataclasses.replace(small_config, method=SRigL(sparsity=0.999))
    with pytest.raises(ConfigError, match="largest feasible sparsity"):
        train(config, tmp_path / "run", progress=False)
    assert train(small_config, tmp_path / "run", progress=False).steps == 69
