"""Sharded models in one process: what is refused, and what looks through the shards."""

import re
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.functional import mse_loss

from fanin.trainer import (
    AST,
    InitializationOptions,
    LayerOptions,
    RigL,
    ScheduleOptions,
    Sparsifier,
    SRigL,
    prune_,
    save_weights,
)
from fanin.trainer.output_layers import output_layers
from fanin.trainer.sharding import Sharding

SEVERAL = LayerOptions(no_ablation=[])


@pytest.fixture(scope="module", autouse=True)
def processes():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def whole_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def sharded(model):
    fully_shard(model[0])
    return fully_shard(model)


def attach(model, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    defaults = {
        "method": SRigL(sparsity=0.8),
        "total_steps": 40,
        "layers": SEVERAL,
        "schedule": ScheduleOptions(update_every=2),
        "initialization": InitializationOptions(keep_weights=False),
    }
    return optimizer, Sparsifier(model, optimizer, **defaults | options)


def train(model, optimizer, sparsifier, steps):
    for step in range(steps):
        inputs = torch.randn(8, 40, generator=torch.Generator().manual_seed(step))
        mse_loss(model(inputs), inputs[:, :3]).backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()


def test_a_sparsifier_made_before_sharding_is_refused_in_the_first_step():
    model = whole_model()
    optimizer, _ = attach(model)
    sharded(model)
    model(torch.randn(2, 40)).sum().backward()
    with pytest.raises(RuntimeError, match=r"'0.weight' is another .* load the model first"):
        optimizer.step()


def test_an_optimizer_made_before_sharding_is_refused():
    model = whole_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sharded(model)
    with pytest.raises(ValueError, match=r"'0.weight' .*make the optimizer after it"):
        attach(model, optimizer)


def test_weights_that_fully_shard_does_not_shard_are_refused():
    model, mesh = whole_model(), init_device_mesh("cpu", (1,))
    model[2].weight = nn.Parameter(distribute_tensor(model[2].weight.detach(), mesh, [Shard(0)]))
    with pytest.raises(ValueError, match=r"'2.weight' cannot be sparse: .*tensor parallelism"):
        attach(model)
    attach(model, layers=LayerOptions(no_ablation=[], dense_layers=["2"], dense_in_budget=False))


def test_weights_sharded_along_two_dimensions_of_a_mesh_are_refused():
    model = whole_model()
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    columns = distribute_tensor(model[0].weight.detach(), mesh["tensor"], [Shard(1)])
    model[0].weight = nn.Parameter(columns)
    fully_shard(model[0], mesh=mesh["data"])
    with pytest.raises(ValueError, match=r"'0.weight' cannot be sparse: .*tensor parallelism"):
        attach(model)


def test_weights_on_another_device_than_their_mesh_are_refused(monkeypatch):
    model = sharded(whole_model())
    monkeypatch.setattr(type(model[0].weight.device_mesh), "device_type", "cuda")
    with pytest.raises(ValueError, match=r"'0.weight' .*call fully_shard without CPUOffloadPol"):
        attach(model)


def test_sub_nets_of_sharded_weights_are_refused():
    model = sharded(whole_model())
    before = [weight.full_tensor().clone() for weight in model.parameters()]
    with pytest.raises(ValueError, match=r"'0.weight' is sharded .* use DistributedDataParallel"):
        attach(model, method=AST(0.8))
    for weight, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(weight.full_tensor(), old)


def test_the_sparsifier_needs_all_processes_of_the_mesh(monkeypatch):
    model = sharded(whole_model())
    monkeypatch.setattr(type(model[0].weight.device_mesh), "size", lambda _: 4)
    with pytest.raises(ValueError, match=r"over 4 processes, but the Sparsifier has 1; pass proc"):
        attach(model)


class Standardized(nn.Linear):
    def forward(self, inputs):
        weight = self.weight - self.weight.mean(1, keepdim=True)
        return nn.functional.linear(inputs, weight, self.bias)


class Doubled(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


def test_sharded_layers_that_change_their_weight_are_refused_as_others_are():
    model = whole_model()
    model[0] = Standardized(40, 16)
    with pytest.raises(ValueError, match=r"'0.weight' .*changed by its layer before use"):
        attach(sharded(model))
    model = whole_model()
    model[0] = Doubled(40, 16)
    train(model, *attach(sharded(model)), steps=3)  # trying the layer out leaves FSDP2 as it was


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.first = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, inputs):
        hidden = self.first(inputs)
        return self.last(hidden + self.attention(hidden, hidden, hidden)[0])


def test_output_layers_of_sharded_models_are_found_in_their_graph():
    model = Branches()
    for module in (model.first, model.attention, model.last, model):
        fully_shard(module)
    weights = {n: p for n, p in model.named_parameters() if p.dim() > 1}
    assert output_layers(model, weights) == {"last.weight"}
    assert model(torch.randn(3, 2, 6)).shape == (3, 2, 2)  # FSDP2 has not noticed


@pytest.mark.parametrize("method", [SRigL(sparsity=0.8, gamma_sal=0.9), RigL(sparsity=0.8)])
def test_an_update_holds_two_whole_layers_at_most(method, monkeypatch):
    model = sharded(whole_model())
    optimizer, sparsifier = attach(model, method=method)
    train(model, optimizer, sparsifier, steps=1)
    alive, most, gather = [], [], Sharding.whole

    def spy(self, part):
        whole = gather(self, part).clone()
        alive.append(weakref.ref(whole))
        most.append(len({ref().shape for ref in alive if ref() is not None}))
        return whole

    monkeypatch.setattr(Sharding, "whole", spy)
    train(model, optimizer, sparsifier, steps=1)
    assert len(most) >= 9  # weight, mask and gradient of three layers
    assert max(most) == 2


def test_steps_between_updates_gather_nothing(monkeypatch):
    model = sharded(whole_model())
    optimizer, sparsifier = attach(model, schedule=ScheduleOptions(update_every=9))
    monkeypatch.setattr(Sharding, "whole", None)
    train(model, optimizer, sparsifier, steps=8)
    assert sparsifier.step_count == 8


def test_copies_are_masked_whether_they_are_sharded_or_not():
    model = sharded(whole_model())
    _, sparsifier = attach(model)
    masks = {name: mask.full_tensor() for name, mask in sparsifier.masks.items()}
    for copy in (whole_model(), sharded(whole_model())):
        sparsifier.mask_(copy)
        for name, mask in masks.items():
            weight = copy.get_parameter(name)
            weight = weight.full_tensor() if isinstance(weight, DTensor) else weight
            assert torch.equal(weight != 0, mask)
    _, replicated = attach(whole_model())
    copy = sharded(whole_model())
    replicated.mask_(copy)
    for name, mask in replicated.masks.items():
        assert torch.equal(copy.get_parameter(name).full_tensor() != 0, mask)


def test_a_pruned_model_is_sharded_and_trained_on_with_its_masks():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
    pruned = prune_(model, 0.75)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruned.keep_masks(model, optimizer)
    before = model[0].weight.full_tensor().detach().clone()
    model(torch.randn(8, 64)).square().sum().backward()
    optimizer.step()
    after, mask = model[0].weight.full_tensor(), pruned.masks["0.weight"]
    assert torch.equal(after != 0, mask)
    assert not torch.equal(before, after)
    with pytest.raises(ValueError, match=r"prune the model before fully_shard"):
        prune_(fully_shard(nn.Sequential(nn.Linear(64, 16))), 0.5)


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python torchrun\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs/training.md", "exec"), {})
    saved = load_file("weights.safetensors")
    fan_ins = saved["0.weight.mask"].sum(1)
    assert len(fan_ins[fan_ins > 0].unique()) == 1
    assert not saved["0.weight"][saved["0.weight.mask"] == 0].any()


def test_weights_of_a_sharded_model_are_not_written_in_parts(tmp_path):
    model = sharded(whole_model())
    optimizer, sparsifier = attach(model)
    train(model, optimizer, sparsifier, steps=4)
    with pytest.raises(ValueError, match=r"'0.weight' is sharded .*full_state_dict=True.*full_ten"):
        save_weights(tmp_path / "weights.safetensors", model, sparsifier.masks)
    assert not (tmp_path / "weights.safetensors").exists()
