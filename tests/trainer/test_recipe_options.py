"""What a recipe can ask for beside method and optimizer."""

import contextlib
import dataclasses
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, softmax

from fanin.trainer import GMP, ConfigError, Dense, load_run, train
from fanin.trainer.backends import backend_switches
from fanin.trainer.data import held_out, load_dataset
from fanin.trainer.distillation import Teacher
from fanin.trainer.evaluation import evaluate
from fanin.trainer.loggers import numbers
from fanin.trainer.metrics import read_metrics
from fanin.trainer.optimization import SGD, AdamW
from fanin.trainer.recipe import (
    DistillationConfig,
    SparsifierConfig,
    TrainingConfig,
    config_from_tables,
    config_to_tables,
    override,
)
from fanin.trainer.training_run import TrainingRun


def run(config, folder, changes=(), **options):
    return train(override(config, dict(changes)), folder, progress=False, **options)


def epochs_of(folder):
    return [r for r in read_metrics(folder / "metrics.jsonl") if r["event"] == "epoch"]


def test_held_out_samples_are_a_fixed_random_part():
    split = load_dataset("digits").train
    train_part, validation = held_out(split, 0.25, seed=3)
    assert len(validation) == round(0.25 * len(split))
    both = torch.cat([train_part.indices, validation.indices])
    assert torch.equal(both.sort().values, torch.arange(len(split)))
    again = held_out(split, 0.25, seed=3)[1]
    assert torch.equal(validation.indices, again.indices)
    assert not torch.equal(validation.indices, held_out(split, 0.25, seed=4)[1].indices)
    (inputs, labels), *_ = validation.batches([torch.tensor([1, 0])])
    assert torch.equal(labels, split.labels[validation.indices[[1, 0]]])
    assert torch.equal(inputs, split.inputs[validation.indices[[1, 0]]])
    with pytest.raises(ValueError, match="cannot be divided"):
        held_out(dataclasses.replace(split, labels=split.labels[:1]), 0.5, seed=0)


def test_the_best_epoch_by_validation_is_kept_with_its_masks(small_config, tmp_path, monkeypatch):
    accuracies = iter([0.9, 0.5, 0.9])

    def scripted(trained, split):
        found = evaluate(trained.step.eval_model, split, None, trained.config.training)
        if split is trained.validation_split:
            return dataclasses.replace(found, accuracy=next(accuracies))
        return found

    weights = []
    finish = TrainingRun._finish_epoch

    def remember(trained, *arguments):
        weights.append({n: m.clone() for n, m in trained.sparsifier.masks.items()})
        finish(trained, *arguments)

    monkeypatch.setattr(TrainingRun, "_evaluate", scripted)
    monkeypatch.setattr(TrainingRun, "_finish_epoch", remember)
    changes = {"training.validation": 0.2, "training.keep": "best"}
    result = run(small_config, tmp_path / "run", changes)
    saved = load_run(tmp_path / "run")
    assert all(torch.equal(saved.masks[n], mask) for n, mask in weights[0].items())
    assert any(not torch.equal(saved.masks[n], mask) for n, mask in weights[2].items())
    assert result.test_accuracy == epochs_of(tmp_path / "run")[0]["test_accuracy"]
    assert evaluate(saved.model, load_dataset("digits").test).accuracy == result.test_accuracy
    assert not (tmp_path / "run" / "best.safetensors").exists()


def test_choosing_the_best_needs_validation_samples():
    with pytest.raises(ValueError, match="hold out some training samples"):
        TrainingConfig(epochs=1, keep="best")


def test_runs_with_validation_resume_bit_for_bit(small_config, tmp_path, interrupt_at):
    changes = {"training.validation": 0.2, "training.keep": "best", "distillation.teacher": ""}
    run(small_config, tmp_path / "whole", changes)
    with interrupt_at(40):
        run(small_config, tmp_path / "parts", changes)
    train(None, tmp_path / "parts", resume=True, progress=False)
    whole, parts = (load_run(tmp_path / name) for name in ("whole", "parts"))
    for mine, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_run_can_start_from_another_and_prune_it_gradually(small_config, tmp_path):
    first = dataclasses.replace(small_config, method=Dense(), sparsifier=SparsifierConfig())
    before = train(first, tmp_path / "dense", progress=False)
    pruned = dataclasses.replace(small_config, method=GMP(0.8))
    result = run(
        pruned,
        tmp_path / "pruned",
        {"training.initial_weights": str(tmp_path / "dense"), "optimizer.lr": 0.02},
    )
    assert epochs_of(tmp_path / "pruned")[0]["test_accuracy"] > 0.8
    assert result.test_accuracy > before.test_accuracy - 0.05
    for mask in load_run(tmp_path / "pruned").masks.values():
        assert len(set(mask.sum(1).tolist())) == 1
    assert result.summary.density == pytest.approx(0.2, abs=0.01)
    with pytest.raises(ConfigError, match=r"initial_weights: .*differ in fc2.bias"):
        run(
            pruned,
            tmp_path / "other",
            {"training.initial_weights": str(tmp_path / "dense"), "model.hidden": [20]},
        )


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [("absent", "there is no run folder or weights file .*absent"), ("", "no weights.safetensors")],
)
def test_a_start_from_a_run_that_is_not_there_says_so(small_config, tmp_path, folder, sentence):
    start = {"training.initial_weights": str(tmp_path / folder)}
    with pytest.raises(ConfigError, match=f"initial_weights: .*{sentence}"):
        run(small_config, tmp_path / "out", start)


def test_distillation_mixes_the_losses_as_the_formula_says():
    torch.manual_seed(0)
    teacher, inputs, logits = nn.Linear(6, 4), torch.randn(5, 6), torch.randn(5, 4)
    labels = torch.tensor([0, 1, 2, 3, 0])
    label_loss = cross_entropy(logits, labels)
    options = DistillationConfig("run", weight=0.3, temperature=3.0)
    found = Teacher(teacher, options).loss(inputs, logits, label_loss)
    target, student = (softmax(x.double() / 3, dim=1) for x in (teacher(inputs), logits))
    divergence = (target * (target.log() - student.log())).sum(1).mean()
    assert found.item() == pytest.approx(
        0.7 * label_loss.item() + 0.3 * 9 * divergence.item(), rel=1e-6
    )


def test_a_run_learns_from_the_outputs_of_its_teacher(small_config, tmp_path):
    run(small_config, tmp_path / "teacher")
    options = {"distillation.teacher": str(tmp_path / "teacher"), "distillation.weight": 1.0}
    taught = run(small_config, tmp_path / "student", options | {"training.seed": 1})
    assert taught.test_accuracy > 0.85
    with pytest.raises(ConfigError, match="teacher maps inputs of shape"):
        run(
            small_config,
            tmp_path / "other",
            {
                "distillation.teacher": str(tmp_path / "teacher"),
                "data.name": "synthetic",
                "data.shape": [1, 8, 9],
            },
        )
    with pytest.raises(ConfigError, match="unused without a teacher"):
        override(small_config, {"distillation.weight": 0.9})


def test_norms_and_biases_can_be_left_without_decay():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    for config in (SGD(0.1, weight_decay=0.5), AdamW(weight_decay=0.5)):
        whole = config.build(model.parameters())
        assert [g["weight_decay"] for g in whole.param_groups] == [0.5]
        parted = dataclasses.replace(config, decay_norms=False).build(model.parameters())
        decays = {p.dim(): g["weight_decay"] for g in parted.param_groups for p in g["params"]}
        assert decays == {2: 0.5, 1: 0.0}
        assert sum(len(g["params"]) for g in parted.param_groups) == 4


def test_sparse_training_without_decay_of_norms_resumes(small_config, tmp_path):
    changes = {"optimizer.decay_norms": False, "optimizer.weight_decay": 1e-3}
    assert run(small_config, tmp_path / "run", changes).test_accuracy > 0.8


def test_channels_last_changes_the_layout_and_not_the_training(small_config, tmp_path, monkeypatch):
    tables = config_to_tables(small_config)
    tables["model"] = {"name": "cnn", "channels": [8, 8]}
    tables["data"] = {"name": "synthetic", "shape": [3, 8, 8], "samples": 128}
    tables["training"] |= {"epochs": 1, "batch_size": 32, "checkpoint_every": 0}
    tables["sparsifier"] |= {"update_every": 2, "end_fraction": 1.0}
    plain = config_from_tables(tables)
    strides = []
    step = TrainingRun._step

    def observed(trained, *arguments):
        weight = next(p for p in trained.model.parameters() if p.dim() == 4 and p.shape[2] > 1)
        strides.append(weight.is_contiguous(memory_format=torch.channels_last))
        layers = trained.sparsifier._layers.values()
        assert all(layer.bits.stride() == layer.weight.stride() for layer in layers)
        step(trained, *arguments)

    monkeypatch.setattr(TrainingRun, "_step", observed)
    results = [
        run(plain, tmp_path / str(option), {"training.channels_last": option})
        for option in (False, True)
    ]
    assert strides[0] is False
    assert strides[-1] is True
    masks = [load_run(tmp_path / str(option)).masks for option in (False, True)]
    assert all(mask.sum() == masks[1][name].sum() for name, mask in masks[0].items())
    assert results[0].test_loss == pytest.approx(results[1].test_loss, rel=0.05)
    with pytest.raises(ConfigError, match="channels_last is for images"):
        run(
            small_config,
            tmp_path / "flat",
            {"training.channels_last": True, "data.name": "synthetic", "data.shape": [12]},
        )


def enter(context):
    stack = contextlib.ExitStack()
    stack.enter_context(context)
    return stack


def test_switches_that_do_nothing_here_are_named_and_all_are_put_back():
    config = TrainingConfig(epochs=1, tf32=True, cudnn_benchmark=True)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    with pytest.warns(RuntimeWarning, match=r"on CUDA: training.tf32, training.cudnn_b"):
        switches = enter(backend_switches(config, torch.device("cpu")))
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.benchmark
    switches.close()
    assert before == (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark)


def test_epochs_are_lines_where_standard_error_is_no_terminal(small_config, tmp_path, capfd):
    train(small_config, tmp_path / "run", progress=True)
    lines = [line for line in capfd.readouterr().err.splitlines() if line]
    assert len(lines) == 3
    last = epochs_of(tmp_path / "run")[-1]
    assert lines[2].startswith("run: step 69 of 69: train loss ")
    assert f"test accuracy {last['test_accuracy']:.4g}" in lines[2]


def test_evaluation_computes_in_the_precision_of_the_training(small_config):
    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, inputs):
            outputs = self.linear(inputs.flatten(1))
            types_seen.add(outputs.dtype)
            return outputs

    types_seen = set()
    split = load_dataset("digits").test
    config = dataclasses.replace(small_config.training, precision="bfloat16")
    evaluate(Seen(), split, None, config)
    assert types_seen == {torch.bfloat16}


def test_records_become_numbers_by_name_and_layer():
    record = {
        "step": 3, "epoch": 1, "loss": 0.5, "flag": True, "skipped": ["a"],
        "layers": {"fc": {"fan_in": 2, "name": "fc"}},
    }  # fmt: skip
    assert dict(numbers(record)) == {"loss": 0.5, "layers/fan_in/fc": 2}
    listed = record | {"layers": [{"name": "fc", "fan_in": 2}]}
    assert dict(numbers(listed)) == dict(numbers(record))


def fake_wandb(log):
    class Run:
        def log(self, figures):
            log.append(figures)

        def finish(self):
            log.append("finished")

    def init(**options):
        log.append(options)
        return Run()

    return types.SimpleNamespace(init=init, __spec__=types.SimpleNamespace())


def test_weights_and_biases_receives_the_records(small_config, tmp_path, monkeypatch):
    log = []
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb(log))
    run(small_config, tmp_path / "run", {"training.wandb": True})
    options, *records, end = log
    assert end == "finished"
    assert options["name"] == "run"
    assert options["resume"] == "allow"
    assert options["config"]["method"]["name"] == "srigl"
    written = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [r["step"] for r in records] == [r["step"] for r in written]
    assert records[-1]["epoch/test_accuracy"] == written[-1]["test_accuracy"]


def test_mlflow_receives_the_records_and_its_run_is_resumed(small_config, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    run(small_config, tmp_path / "run", {"training.mlflow": True})
    (found,) = mlflow.search_runs(output_format="list")
    last = epochs_of(tmp_path / "run")[-1]
    assert found.data.metrics["epoch/test_accuracy"] == pytest.approx(last["test_accuracy"])
    assert found.data.params["method.name"] == "srigl"


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_loggers_need_their_package_before_anything_is_written(
    name, small_config, tmp_path, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=rf"pip install 'fanin\[{name}\]'"):
        run(small_config, tmp_path / "run", {f"training.{name}": True})
    assert not list((tmp_path / "run").iterdir())
