"""Models sharded by FSDP2 train as replicated ones do, in two processes with gloo on the CPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("_fsdp_worker.py")
SRIGL = {"name": "srigl", "sparsity": 0.7, "gamma_sal": 0.9}
RIGL = {"name": "rigl", "sparsity": 0.7}
SET = {"name": "set", "sparsity": 0.7, "structure": "constant-fan-in"}
SNFS = {"name": "snfs", "sparsity": 0.7}
TWO_OF_FOUR = {"sparse_layers": ["0"], "dense_in_budget": False}

# Trained by DistributedDataParallel and by FSDP2, with the same results bit for bit.
EQUAL = {
    "srigl": {"method": SRIGL},
    "srigl-adamw": {"method": SRIGL, "optimizer": "adamw"},
    "srigl-foreach": {"method": SRIGL, "optimizer": "foreach"},
    "srigl-protected": {"method": SRIGL, "layers": {"no_ablation": ["0", "2.0"]}},
    "rigl": {"method": RIGL},
    "set": {"method": SET},
    "snfs": {"method": SNFS},
    "dsr": {"method": {"name": "dsr", "sparsity": 0.7}},
    "chase": {"method": {"name": "chase", "sparsity": 0.7}},
    "mest": {"method": {"name": "mest", "sparsity": 0.7}},
    "gmp": {"method": {"name": "gmp", "sparsity": 0.7}},
    "deepr": {"method": {"name": "deepr", "sparsity": 0.7, "temperature": 1e-6}},
    "sr-ste": {"method": {"name": "sr-ste"}, "layers": TWO_OF_FOUR},
    "top-kast": {"method": {"name": "top-kast", "sparsity": 0.7}},
    "other-seeds": {"method": SRIGL, "seeds_differ": True},
    "second-pass": {"method": SRIGL, "looked_at": "none"},
    "second-pass-zeros": {"method": SRIGL, "looked_at": "zeros"},
    "scaled": {"method": SRIGL, "scaled": True, "optimizer": "adamw"},
    "not-finite": {"method": SRIGL, "overflow": 6},
}
# The same, where torch's own results differ in rounding: sums in another order, or the vector
# instructions of attention and fused optimizers.
CLOSE = {
    "kinds": {"method": SET, "kinds": True, "layers": {"in_proj": True}},
    "accumulated": {"method": SRIGL, "accumulate": 3},
    "local-state": {"method": SRIGL, "optimizer": "local"},
    "clipped": {"method": SRIGL, "clip": 0.1, "optimizer": "fused"},
}
FSDP_ALONE = {
    "unsynchronized": {"accumulate": 3, "unsynchronized": True},
    "mixed": {"dtype": "float32", "shard": {"mixed": True}},
    "kinds-srigl": {"kinds": True, "layers": {"in_proj": True}},
}
# Ways to shard that change nothing of the result.
SHARDED = {
    "replicas": {"mesh": [2, 1]},
    "one-replica": {"mesh": [1, 2]},
    "whole-in-backward": {"reshard_after_forward": False},
}
RESUMED = {"srigl": SRIGL, "snfs": SNFS}
CHECKPOINT = 11  # within the gradient window of the update of step 12
PARALLELS = ("ddp", "fsdp")


def launch(folder, scenarios):
    """Run them one after the other in the same two processes."""
    torch.save(scenarios, folder / "scenarios.pt")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(WORKER), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Results of all scenarios: TAG-RANK.pt."""
    out = tmp_path_factory.mktemp("fsdp")
    scenarios = {
        f"{tag}-{parallel}": {"parallel": parallel, **options}
        for tag, options in (EQUAL | CLOSE).items()
        for parallel in PARALLELS
    }
    for tag, shard in SHARDED.items():
        scenarios[tag] = {"parallel": "fsdp", "method": SRIGL, "shard": shard}
    for tag, options in FSDP_ALONE.items():
        scenarios[tag] = {"parallel": "fsdp", "method": SRIGL, **options}
    for name, method in RESUMED.items():
        options = {"method": method, "optimizer": "adamw", "window": 3}
        for parallel in PARALLELS:
            path = str(out / f"{name}-{parallel}-checkpoint.pt")
            whole = {"parallel": parallel, "checkpoint": CHECKPOINT, "path": path}
            scenarios[f"whole-{name}-{parallel}"] = options | whole
        for first in PARALLELS:
            path = str(out / f"{name}-{first}-checkpoint.pt")
            for second in PARALLELS:
                resumed = {"parallel": second, "resume": path}
                scenarios[f"resumed-{name}-{first}-{second}"] = options | resumed
    launch(out, scenarios)
    return out


def result(out, tag, rank=0):
    return torch.load(out / f"{tag}-{rank}.pt")


def masks_held(out, tag):
    """Whether they did in all steps, for the parts of both processes."""
    return all(result(out, tag, rank)["holds"] for rank in range(2))


def assert_same_tensors(one, other, at=""):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), at
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same_tensors(value, other[key], f"{at}.{key}")
    elif isinstance(one, list | tuple):
        for index, (value, there) in enumerate(zip(one, other, strict=True)):
            assert_same_tensors(value, there, f"{at}[{index}]")
    else:
        assert one == other, at


def assert_same_training(one, other):
    for part in ("masks", "last", "model", "optimizer", "itop", "summary"):
        assert_same_tensors(one[part], other[part], part)


def assert_close_training(one, other):
    assert_same_tensors(one["masks"], other["masks"])
    for name, weight in one["model"].items():
        torch.testing.assert_close(other["model"][name], weight, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("tag", EQUAL)
def test_sharded_training_equals_replicated_training_bit_for_bit(out, tag):
    replicated, sharded = (result(out, f"{tag}-{parallel}") for parallel in PARALLELS)
    assert_same_training(replicated, sharded)
    assert masks_held(out, f"{tag}-fsdp")
    expected = 0 if tag in ("sr-ste", "top-kast") else 3
    assert len(sharded["masks"]) == expected


@pytest.mark.parametrize("tag", [tag for tag in EQUAL if tag not in ("sr-ste", "top-kast")])
def test_updates_of_sharded_layers_move_weights(out, tag):
    masks = result(out, f"{tag}-fsdp")["masks"]
    assert any(not torch.equal(masks[0][name], masks[-1][name]) for name in masks[0])


@pytest.mark.parametrize("tag", SHARDED)
def test_the_way_of_sharding_changes_nothing(out, tag):
    assert_same_training(result(out, "srigl-ddp"), result(out, tag))


def test_processes_hold_their_parts_of_each_mask(out):
    parts = [result(out, "srigl-fsdp", rank)["local"] for rank in range(2)]
    assert [part["0.weight"] for part in parts] == [[25, 20], [24, 20]]
    assert [part["3.weight"] for part in parts] == [[1, 25], [0, 25]]
    replicas = [result(out, "replicas", rank)["local"] for rank in range(2)]
    assert [part["0.weight"] for part in replicas] == [[49, 20]] * 2
    assert_same_training(*(result(out, "srigl-fsdp", rank) for rank in range(2)))


@pytest.mark.parametrize(
    "tag", ["srigl-fsdp", "srigl-adamw-fsdp", "kinds-fsdp", *FSDP_ALONE, *SHARDED]
)
def test_neurons_have_the_same_fan_in_after_every_update(out, tag):
    trained = result(out, tag)
    assert masks_held(out, tag)
    assert len(trained["masks"]) == 3
    for masks in trained["masks"]:
        for name, mask in masks.items():
            rows = (mask.t() if name.startswith("turned") else mask).flatten(1).sum(1)
            assert len(rows[rows > 0].unique()) == 1, name
    assert any((m.flatten(1).sum(1) == 0).any() for m in trained["last"].values())  # ablation


def test_the_gradient_of_a_layer_counts_only_if_all_its_parts_are_finite(out):
    usual, overflown = (result(out, f"{tag}-fsdp") for tag in ("srigl", "not-finite"))
    assert_same_tensors(usual["masks"][0], overflown["masks"][0])
    assert not torch.equal(usual["masks"][1]["0.weight"], overflown["masks"][1]["0.weight"])


def test_gradients_that_were_only_looked_at_do_not_decide_growth(out):
    fresh, zeroed = (result(out, f"{tag}-fsdp") for tag in ("second-pass", "second-pass-zeros"))
    assert_same_training(fresh, zeroed)


@pytest.mark.parametrize("tag", CLOSE)
def test_layers_optimizers_accumulation_and_clipping_are_as_in_replicated_training(out, tag):
    replicated, sharded = (result(out, f"{tag}-{parallel}") for parallel in PARALLELS)
    assert masks_held(out, f"{tag}-fsdp")
    assert_close_training(replicated, sharded)


def test_accumulation_without_communication_is_as_with_it(out):
    assert_close_training(*(result(out, tag) for tag in ("accumulated-fsdp", "unsynchronized")))


def test_steps_that_a_scaler_skips_do_not_count(out):
    scaled = result(out, "scaled-fsdp")
    steps = {int(state["step"]) for state in scaled["optimizer"]["state"].values()}
    assert steps == {13}  # of 14


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("first", PARALLELS)
@pytest.mark.parametrize("second", PARALLELS)
def test_checkpoints_serve_replicated_and_sharded_training(out, name, first, second):
    whole = result(out, f"whole-{name}-{second}")
    resumed = result(out, f"resumed-{name}-{first}-{second}")
    assert resumed["start"] == CHECKPOINT
    for part in ("last", "model", "optimizer", "itop"):
        assert_same_tensors(whole[part], resumed[part], part)
