"""Data-parallel training through torchrun with gloo on the CPU."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("_ddp_worker.py")
SRIGL = {"name": "srigl", "sparsity": 0.7, "gamma_sal": 0.9}
# Momentum growth keeps gradients through all steps, SRigL those of three before an update; AST has
# masks and gradients of several sub-nets.
RESUMED = {
    "srigl": SRIGL,
    "snfs": {"name": "snfs", "sparsity": 0.75},
    "ast": {"name": "ast", "sparsity": 0.8},
}
PROCESSES = 2


def scenario(out, tag, **options):
    defaults = {
        "out": str(out),
        "tag": tag,
        "method": SRIGL,
        "dtype": "float64",
        "steps": 16,
        "checkpoint": None,
        "die_at": None,
        "resume": False,
        "same_model": True,
    }
    return defaults | options


def launch(scenarios):
    """Run them one after the other in the same two processes; returns whether that succeeded."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(PROCESSES), str(WORKER), json.dumps(scenarios)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Results of all scenarios: TAG-RANK.pt."""
    out = tmp_path_factory.mktemp("ddp")
    # Step 13 lies within the gradient window of the update of step 15.
    resumable = {"checkpoint": 13, "dtype": "float32"}
    wholes = [
        scenario(out, f"whole-{name}", method=method, **resumable)
        for name, method in RESUMED.items()
    ]
    plain = [
        scenario(out, "float64"),
        scenario(out, "other-seeds", dtype="float32", same_model=False, steps=30),
    ]
    killed = [scenario(out, "killed", die_at=14, method=SRIGL, **resumable)]
    succeeded, errors = launch(plain + wholes + killed)
    assert not succeeded  # the last one kills its processes
    assert (out / "whole-snfs-1.pt").is_file(), errors
    resumed = [
        scenario(out, f"resumed-{name}", method=method, resume=True, **resumable)
        for name, method in RESUMED.items()
    ]
    succeeded, errors = launch(resumed)
    assert succeeded, errors
    return out


def single(out, **options):
    return runpy.run_path(str(WORKER))["run"](scenario(out, "single", **options))


def ranks(out, tag):
    return [torch.load(out / f"{tag}-{rank}.pt") for rank in range(PROCESSES)]


def assert_equal(one, other):
    for part in ("model", "last"):
        assert one[part].keys() == other[part].keys()
        for name, tensor in one[part].items():
            assert torch.equal(tensor, other[part][name]), name


@pytest.mark.parametrize("tag", ["float64", "other-seeds", *(f"whole-{name}" for name in RESUMED)])
def test_processes_stay_bit_equal(out, tag):
    assert_equal(*ranks(out, tag))


def test_float64_masks_equal_those_of_one_process_over_three_updates(out):
    alone, together = single(out), ranks(out, "float64")[0]
    assert len(alone["masks"]) == len(together["masks"]) == 3
    for mine, other in zip(together["masks"], alone["masks"], strict=True):
        for name in other:
            assert torch.equal(mine[name], other[name])
    first, last = alone["masks"][0], alone["masks"][2]
    assert any(not torch.equal(first[name], last[name]) for name in first)


@pytest.mark.parametrize("name", RESUMED)
def test_killed_and_resumed_runs_end_bit_equal(out, name):
    whole, resumed = ranks(out, f"whole-{name}"), ranks(out, f"resumed-{name}")
    assert_equal(*resumed)
    assert_equal(whole[0], resumed[0])


def test_float32_masks_stay_close_to_those_of_one_process(out):
    alone = single(out, dtype="float32", same_model=False, steps=30)
    shares = []
    for mine, other in zip(ranks(out, "other-seeds")[0]["masks"], alone["masks"], strict=True):
        both = sum(int((mine[n] & other[n]).sum()) for n in other)
        shares.append(both / sum(int(mask.sum()) for mask in other.values()))
    print(f"float32 mask overlap with one process, by update: {shares}")
    assert min(shares) > 0.9
