"""fanin train in several processes: torchrun with gloo on the CPU."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.multiprocessing.spawn import spawn

from fanin.trainer import ConfigError, load_run, train
from fanin.trainer.processes import Processes
from fanin.trainer.recipe import config_to_toml, override
from fanin.trainer.training_run import batches_of_epoch

from .._waiting import wait_until

PROCESSES = 2
HALTING = Path(__file__).with_name("_halting_train.py")


def start(*arguments, halt=None):
    """Train; with ``halt``, all processes stand still before that step until they are killed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(PROCESSES)]
    command += ["-m", "fanin"] if halt is None else [HALTING]
    return subprocess.Popen(
        [*map(str, command), "train", "--no-progress", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "FANIN_TEST_HALT": str(halt)},
    )


def kill_all(process):
    """Kill torchrun and its workers, each of which has a session of its own."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == PROCESSES
    for pid in [process.pid, *map(int, children)]:
        os.kill(pid, signal.SIGKILL)
    process.communicate()


def finish(process):
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-3000:]
    return out


def records(folder):
    parsed = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in parsed:
        record.pop("seconds", None)
    return parsed


@pytest.fixture(scope="module")
def recipe(small_config, tmp_path_factory):
    """Norms, dropout, accumulation and an average, whose states differ between processes."""
    config = override(
        small_config,
        {
            "training.accumulate": 2,
            "training.ema_decay": 0.9,
            "training.log_every": 1,
            "training.checkpoint_every": 5,
            "training.epochs": 1,
        },
    )
    text = config_to_toml(config).replace('"mlp"', '"wide-resnet"')
    text = text.replace("hidden = [\n    96,\n    48,\n]", "depth = 10\nwiden = 1\ndropout = 0.2")
    text = text.replace("sparsity = 0.8", "sparsity = 0.5")
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    out = tmp_path_factory.mktemp("torchrun") / "whole"
    return out, finish(start(recipe, "--out", out))


def test_one_process_speaks_for_all(whole):
    assert whole[1].count("test accuracy") == 1
    assert sorted(path.name for path in whole[0].iterdir()) == [
        "config.toml", "metrics.jsonl", "training_state.pt", "weights.safetensors",
    ]  # fmt: skip


def test_figures_are_of_all_samples_and_masks_hold(whole):
    for record in records(whole[0]):
        if record["event"] == "step":
            seen = record["accuracy"] * (64 if record["step"] % 23 else 29)
            assert seen == pytest.approx(round(seen), abs=1e-9)
    run = load_run(whole[0])
    for name, mask in run.masks.items():
        assert bool((run.model.get_parameter(name)[~mask] == 0).all())


def test_a_batch_shared_by_processes_trains_as_it_does_in_one(small_config, tmp_path):
    """Up to rounding: without norms and dropout, which see their process's samples only."""
    config = override(small_config, {"training.epochs": 1, "training.log_every": 1})
    (tmp_path / "recipe.toml").write_text(config_to_toml(config))
    finish(start(tmp_path / "recipe.toml", "--out", tmp_path / "together"))
    train(config, tmp_path / "alone", progress=False)
    together, alone = records(tmp_path / "together"), records(tmp_path / "alone")
    assert [(r["event"], r["step"]) for r in together] == [(r["event"], r["step"]) for r in alone]
    losses = [[r["loss"] for r in found if r["event"] == "step"] for found in (together, alone)]
    assert losses[0][:5] == pytest.approx(losses[1][:5], rel=1e-5)  # until the first update
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    masks = [load_run(tmp_path / name).masks for name in ("together", "alone")]
    both = sum(int((masks[0][name] & masks[1][name]).sum()) for name in masks[0])
    share = both / sum(int(mask.sum()) for mask in masks[1].values())
    print(f"mask overlap with one process after four updates: {share:.4f}")
    assert share > 0.95


def test_killed_and_resumed_processes_end_bit_equal(whole, recipe, tmp_path):
    killed = tmp_path / "killed"
    process = start(recipe, "--out", killed, halt=8)
    metrics = killed / "metrics.jsonl"

    def halted():
        assert process.poll() is None, process.communicate()[1]
        return metrics.is_file() and metrics.read_bytes().count(b'"step", ') == 8

    wait_until(halted, "it has come to the step where it halts", seconds=600)
    kill_all(process)
    assert not (killed / "weights.safetensors").exists()
    finish(start("--resume", "--out", killed))
    assert records(killed) == records(whole[0])
    one, other = (load_file(path / "weights.safetensors") for path in (whole[0], killed))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_batches_smaller_than_the_number_of_processes_are_refused(small_config):
    assert batches_of_epoch(small_config, 1437, 29) == 23
    with pytest.raises(ConfigError, match=r"29 samples cannot be split over 30 .*drop_last = true"):
        batches_of_epoch(small_config, 1437, 30)
    dropping = override(small_config, {"training.drop_last": True})
    assert batches_of_epoch(dropping, 1437, 64) == 22
    with pytest.raises(ConfigError, match="64 samples cannot be split over 65 processes"):
        batches_of_epoch(dropping, 1437, 65)


def _differ(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    processes, tensor = Processes.of(None), torch.arange(6.0).view(2, 3)
    assert processes.all_hold_equal([tensor, tensor > 2])
    assert not processes.all_hold_equal([tensor + rank * 1e-7])
    assert not processes.all_hold_equal([tensor, tensor > 2 + rank])
    assert processes.broadcast_object({"rank": rank}) == {"rank": 0}
    assert processes.sum_values((1.0 + rank, 5), torch.device("cpu")) == [3.0, 10.0]
    dist.destroy_process_group()


def test_processes_find_out_that_they_differ(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # the processes import this module
    spawn(_differ, (tmp_path / "store",), nprocs=2)
