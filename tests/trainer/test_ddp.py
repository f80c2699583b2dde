"""Data-parallel training through torchrun with gloo on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("_ddp_worker.py")
SRIGL = {"name": "srigl", "sparsity": 0.7, "gamma_sal": 0.9}


def launch(out, tag, processes, expected_rc=0, **options):
    defaults = {
        "out": str(out),
        "tag": tag,
        "method": SRIGL,
        "dtype": "float64",
        "steps": 16,
        "checkpoints": [],
        "die_at": None,
        "resume": False,
        "same_model": True,
    }
    argument = json.dumps(defaults | options)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), str(WORKER), argument]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode == 0) == (expected_rc == 0), done.stderr[-3000:]
    if expected_rc:
        return None
    return [torch.load(f"{out}/{tag}-{rank}.pt") for rank in range(processes)]


def overlap(one, other):
    both = sum(int((one[n] & other[n]).sum()) for n in one)
    return both / sum(int(mask.sum()) for mask in one.values())


def assert_equal(one, other):
    for part in ("model", "last"):
        assert one[part].keys() == other[part].keys()
        for name, tensor in one[part].items():
            assert torch.equal(tensor, other[part][name]), name


@pytest.fixture(scope="module")
def float64_runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("ddp")
    return launch(out, "two", 2), launch(out, "one", 1)


def test_processes_stay_bit_equal(float64_runs):
    two, _ = float64_runs
    assert_equal(*two)


def test_float64_masks_equal_those_of_one_process_over_three_updates(float64_runs):
    (first, _), (single,) = float64_runs
    assert len(first["masks"]) == len(single["masks"]) == 3
    start = single["masks"][0]
    for mine, other in zip(first["masks"], single["masks"], strict=True):
        for name in other:
            assert torch.equal(mine[name], other[name])
    assert any(not torch.equal(start[n], single["masks"][2][n]) for n in start)


def test_runs_that_were_killed_and_resumed_end_bit_equal(tmp_path):
    # Step 13 lies within the gradient window of the update of step 15. Momentum growth keeps
    # gradients through all steps.
    for method in (SRIGL, {"name": "snfs", "sparsity": 0.7}):
        options = {"checkpoints": [13], "method": method, "dtype": "float32"}
        whole = launch(tmp_path, "whole", 2, **options)
        launch(tmp_path, "killed", 2, expected_rc=1, die_at=14, **options)
        resumed = launch(tmp_path, "resumed", 2, resume=True, **options)
        assert_equal(*resumed)
        assert_equal(whole[0], resumed[0])


def test_float32_masks_overlap_and_differing_seeds_become_those_of_the_first_process(tmp_path):
    two = launch(tmp_path, "two", 2, dtype="float32", same_model=False, steps=30)
    assert_equal(*two)
    one = launch(tmp_path, "one", 1, dtype="float32", same_model=False, steps=30)
    shares = [overlap(a, b) for a, b in zip(two[0]["masks"], one[0]["masks"], strict=True)]
    print(f"float32 mask overlap with one process, by update: {shares}")
    assert min(shares) > 0.9
