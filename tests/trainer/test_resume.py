"""Training that is killed, for real, and resumed."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from fanin.trainer import RunFolderError, loop, train
from fanin.trainer.recipe import config_to_toml, override
from fanin.trainer.training_run import TrainingRun

# Ends for good before the step that it is given, whatever it has written until then.
CHILD = """
import os, signal, sys
import torch
from fanin.trainer import train
from fanin.trainer.training_run import TrainingRun

torch.set_num_threads(1)
take_step = TrainingRun._step

def step(run, *arguments):
    if run.progress.step == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    take_step(run, *arguments)

TrainingRun._step = step
train(sys.argv[1], sys.argv[2], resume=sys.argv[3] == "resume", progress=False)
"""


def records(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    parsed = [json.loads(line) for line in lines]
    for record in parsed:
        record.pop("seconds", None)
    return parsed


def assert_equal_weights(*folders):
    """Weights, buffers and masks, bit for bit."""
    first, second = (load_file(folder / "weights.safetensors") for folder in folders)
    assert first.keys() == second.keys()
    assert any(name.endswith(".mask") for name in first)
    for name, tensor in first.items():
        assert tensor.numpy().tobytes() == second[name].numpy().tobytes(), name


def kill_at(recipe, out, mode, step):
    command = [sys.executable, "-c", CHILD, recipe, out, mode, str(step)]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (out / "weights.safetensors").exists()


def test_killed_and_resumed_training_ends_bit_equal_to_an_uninterrupted_one(small_config, tmp_path):
    config = override(
        small_config,
        {"training.epochs": 8, "model.hidden": [512, 256], "training.log_every": 1},
    )
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(config_to_toml(config))

    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    train(config, uninterrupted, progress=False)
    kill_at(recipe, killed, "new", step=33)  # epochs have 23 steps, checkpoints are 7 apart
    kill_at(recipe, killed, "resume", step=75)
    train(None, killed, resume=True, progress=False)

    assert_equal_weights(uninterrupted, killed)
    assert records(uninterrupted) == records(killed)
    assert not list(killed.glob(".*.tmp"))


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 7, 8, 23, 24, 30, 50, 69])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_resuming_from_any_step_gives_the_same_files(
    small_config, tmp_path, monkeypatch, stop, optimizer
):
    config = small_config
    if optimizer == "adamw":
        text = config_to_toml(config).replace('"sgd"', '"adamw"')
        text = text.replace("momentum = 0.9\nnesterov = true\n", "")
        (tmp_path / "adamw.toml").write_text(text)
        config = tmp_path / "adamw.toml"
    whole = train(config, tmp_path / "whole", progress=False)

    take_step = TrainingRun._step

    def interrupted_step(run, *arguments):
        if run.progress.step == stop:
            raise Interrupted
        take_step(run, *arguments)

    monkeypatch.setattr(TrainingRun, "_step", interrupted_step)
    if stop < whole.steps:
        with pytest.raises(Interrupted):
            train(config, tmp_path / "part", progress=False)
    else:  # after the last step, before the weights are written
        monkeypatch.setattr(loop, "write_weights", interrupt)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "part", progress=False)
    monkeypatch.undo()
    torch.rand(3)  # the state of the global generator must come from the checkpoint
    train(config, tmp_path / "part", resume=True, progress=False)
    assert_equal_weights(tmp_path / "whole", tmp_path / "part")
    assert records(tmp_path / "whole") == records(tmp_path / "part")


def interrupt(*_):
    raise Interrupted


def test_a_disk_that_fills_up_keeps_the_checkpoint_and_the_run_can_go_on(
    small_config, tmp_path, monkeypatch
):
    train(small_config, tmp_path / "uninterrupted", progress=False)
    real, calls = torch.save, []

    def full_at_third(state, file):
        calls.append(file)
        if len(calls) == 3:
            file.write(b"half")
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos")
        real(state, file)

    monkeypatch.setattr(torch, "save", full_at_third)
    run = tmp_path / "run"
    with pytest.raises(RunFolderError, match=r"cannot write to .*disk full.*--resume"):
        train(small_config, run, progress=False)
    assert len(calls) == 3
    assert not list(run.glob(".fanin-*"))
    train(None, run, resume=True, progress=False)

    assert_equal_weights(tmp_path / "uninterrupted", run)
    assert records(tmp_path / "uninterrupted") == records(run)
