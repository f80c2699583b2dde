"""Trained weights survive the creation of a Sparsifier; fresh ones are drawn anew."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fanin.trainer import InitializationOptions, Sparsifier, SRigL
from fanin.trainer.fresh_weights import is_fresh


def attach(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Sparsifier(model, optimizer, method=SRigL(0.8), total_steps=1000, **options)


def trained(steps=20, rate=1e-3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(steps):
        inputs = torch.randn(16, 32, generator=torch.Generator().manual_seed(step))
        cross_entropy(model(inputs), inputs[:, :10].argmax(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_trained_weights_are_kept_and_named_in_a_warning():
    model = trained()
    before = model[0].weight.detach().clone()
    with pytest.warns(
        UserWarning, match=r"weights of 0\.weight, 2\.weight are not.*keep_weights="
    ) as w:
        sparsifier = attach(model)
    assert w[0].filename == __file__
    mask = sparsifier.masks["0.weight"]
    assert torch.equal(model[0].weight, before * mask)
    largest = before.abs().topk(int(mask[0].sum()), dim=1).values.min(1).values
    assert bool((before.abs()[~mask] <= largest[:, None].expand_as(before)[~mask]).all())


def test_one_trained_layer_keeps_the_others_that_look_new():
    model = trained()
    model[2] = nn.Linear(64, 10)  # as training that barely moves it leaves it
    head = model[2].weight.detach().clone()
    with pytest.warns(UserWarning, match=r"weights of 0\.weight are not.*All layers keep"):
        mask = attach(model).masks["2.weight"]
    assert torch.equal(model[2].weight, head * mask)


def test_a_batch_norm_that_has_seen_batches_keeps_the_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    before = model[0].weight.detach().clone()
    model(torch.randn(8, 32))
    with pytest.warns(UserWarning, match=r"batch norms 1 have seen batches\. All layers keep"):
        mask = attach(model).masks["0.weight"]
    assert torch.equal(model[0].weight, before * mask)


@pytest.mark.parametrize("keep", [True, False])
def test_the_choice_that_is_made_needs_no_warning(keep):
    model = trained()
    before = model[0].weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mask = attach(model, initialization=InitializationOptions(keep_weights=keep)).masks[
            "0.weight"
        ]
    assert bool((model[0].weight[mask] == before[mask]).all()) == keep


def test_fresh_weights_are_drawn_anew_without_a_warning():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    before = model[0].weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mask = attach(model).masks["0.weight"]
    assert not bool((model[0].weight[mask] == before[mask]).any())
    fan_in = int(mask[0].sum())
    assert model[0].weight[mask].std().item() == pytest.approx(math.sqrt(2 / fan_in), rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(300, 200),
        lambda: nn.Linear(3, 2),
        lambda: nn.Conv1d(12, 30, 5),
        lambda: nn.Conv2d(16, 32, 3, groups=4),
        lambda: nn.Conv3d(4, 8, 3),
    ],
)
def test_layers_as_torch_makes_them_are_fresh(make, dtype):
    for seed in range(20):
        torch.manual_seed(seed)
        assert is_fresh("layer.weight", make().to(dtype).weight)


def test_projections_of_attention_as_torch_makes_them_are_fresh():
    torch.manual_seed(0)
    attention, other = nn.MultiheadAttention(32, 4), nn.MultiheadAttention(32, 4, kdim=16, vdim=24)
    assert is_fresh("a.in_proj_weight", attention.in_proj_weight)
    assert is_fresh("a.out_proj.weight", attention.out_proj.weight)
    assert all(is_fresh(f"a.{x}_proj_weight", getattr(other, f"{x}_proj_weight")) for x in "qkv")


@pytest.mark.parametrize(
    "change",
    [
        lambda w: nn.init.normal_(w, std=0.02),
        lambda w: nn.init.trunc_normal_(w, std=0.02),
        lambda w: nn.init.kaiming_normal_(w),
        nn.init.zeros_,
        nn.init.orthogonal_,
        lambda w: w.mul_(0.9),
        lambda w: w.add_(torch.randn_like(w), alpha=2e-3),
    ],
)
def test_other_weights_are_not_fresh(change):
    torch.manual_seed(0)
    layer = nn.Linear(128, 96)
    with torch.no_grad():
        change(layer.weight)
    assert not is_fresh("weight", layer.weight)
