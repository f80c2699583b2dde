import copy
import dataclasses
import io

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fanin.trainer import SRSTE, RigL, Sparsifier, SRigL

from ._options import grouped

STEPS = 60


def make(sparsity=0.7, width=24, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    defaults = {"total_steps": STEPS, "update_every": 6, "gradient_window": 4}
    sparsifier = Sparsifier(
        model, optimizer, method=SRigL(sparsity, gamma_sal=0.9), **grouped(**defaults | options)
    )
    return model, optimizer, sparsifier


def run(parts, steps):
    model, optimizer, sparsifier = parts
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(16, 20, generator=generator)
        cross_entropy(model(inputs), torch.randint(5, (16,), generator=generator)).backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()


def through_disk(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("stop", [0, 3, 5, 6, 10, 12, 44, 59])
def test_resuming_anywhere_gives_bit_equal_masks_and_weights(stop):
    whole = make()
    run(whole, range(STEPS))
    first = make()
    run(first, range(stop))
    saved = [through_disk(part.state_dict()) for part in first]
    second = make(seed=0)
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    run(second, range(stop, STEPS))
    assert whole[2].itop_rate == second[2].itop_rate
    for name, mask in whole[2].masks.items():
        assert torch.equal(mask, second[2].masks[name])
    for mine, other in zip(whole[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(mine, other)


def test_state_saved_between_optimizer_and_sparsifier_step_still_makes_the_update():
    first = make()
    run(first, range(5))
    model, optimizer, sparsifier = first
    cross_entropy(model(torch.ones(2, 20)), torch.tensor([0, 1])).backward()
    optimizer.step()
    second = make()
    for part, state in zip(second, [copy.deepcopy(p.state_dict()) for p in first], strict=True):
        part.load_state_dict(state)
    assert sparsifier.step().step == 6
    assert second[2].step().step == 6
    for name, mask in sparsifier.masks.items():
        assert torch.equal(mask, second[2].masks[name])


def test_state_is_a_copy():
    parts = make()
    state = parts[2].state_dict()
    before = copy.deepcopy(state)
    run(parts, range(30))
    for name, layer in state["layers"].items():
        assert torch.equal(layer["mask"], before["layers"][name]["mask"])
        assert torch.equal(layer["explored"], before["layers"][name]["explored"])


def test_loading_masks_the_model():
    trained, fresh = make(), make()
    run(trained, range(30))
    fresh[2].load_state_dict(trained[2].state_dict())
    for name, mask in trained[2].masks.items():
        assert bool((dict(fresh[0].named_parameters())[name][~mask] == 0).all())


def test_a_state_of_version_1_is_read():
    trained, fresh = make(), make()
    run(trained, range(30))
    state = trained[2].state_dict()
    state["format_version"] = 1
    del state["settings"]["ablated_gradients"]
    fresh[2].load_state_dict(state)
    for name, mask in trained[2].masks.items():
        assert torch.equal(mask, fresh[2].masks[name])
    state["format_version"] = 3
    with pytest.raises(ValueError, match="has format 3, expected 2"):
        fresh[2].load_state_dict(state)


@pytest.mark.parametrize("method", [RigL(0.5, structure="2:4"), SRSTE("2:4")])
def test_n_m_masks_of_version_1_keep_their_groups(method):
    def convolutions(its_method):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(4, 8, 2), nn.ReLU(), nn.Conv2d(8, 8, 2), nn.Flatten())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = grouped(update_every=3, distribution="uniform", dense_in_budget=False)
        sparsifier = Sparsifier(model, optimizer, method=its_method, total_steps=60, **options)
        return model, optimizer, sparsifier

    def run_convolutions(parts, steps):
        for step in steps:
            inputs = torch.randn(4, 4, 5, 5, generator=torch.Generator().manual_seed(step))
            parts[0](inputs).square().mean().backward()
            parts[1].step()
            parts[2].step()
            parts[1].zero_grad()

    whole = convolutions(dataclasses.replace(method, structure="2:4-flat"))
    run_convolutions(whole, range(10))
    state = copy.deepcopy(whole[2].state_dict())
    state["format_version"] = 1
    state["settings"]["structure"] = "2:4"
    again = convolutions(method)
    again[0].load_state_dict(whole[0].state_dict())
    again[2].load_state_dict(state)
    run_convolutions(whole, range(10, 20))
    run_convolutions(again, range(10, 20))
    for name, mask in whole[2].masks.items():
        assert torch.equal(mask, again[2].masks[name])
        assert mask.reshape(-1, 4).sum(1).eq(2).all()
        assert not mask.permute(0, 2, 3, 1).reshape(-1, 4).sum(1).eq(2).all()
    assert again[2].state_dict()["settings"]["structure"] == "2:4-flat"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sparsity": 0.6}, "sparsity=0.7, but this sparsifier has sparsity=0.6"),
        ({"alpha": 0.2}, "alpha=0.3"),
        ({"total_steps": 90}, "total_steps=60"),
        ({"width": 25}, r"does not fit the model at '0.weight'.*\(25, 20\)"),
        ({"dense_layers": ["2"]}, r"does not fit the model at"),
        (
            {"no_ablation": []},
            r"no_ablation=\['2.weight'\], but this sparsifier has no_ablation=\[\]",
        ),
    ],
)
def test_state_of_another_setting_is_refused_and_nothing_changes(options, reason):
    state = make()[2].state_dict()
    _, _, other = make(**options)
    before = other.state_dict()
    with pytest.raises(ValueError, match=reason):
        other.load_state_dict(state)
    for name, mask in other.masks.items():
        assert torch.equal(mask, before["layers"][name]["mask"])
