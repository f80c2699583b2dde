"""Which layers become sparse and how dense: names, patterns, shared weights, given densities."""

import math
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from fanin._base.distributions import layer_densities
from fanin.trainer import InfeasibleSparsityError, LayerOptions, RigL, Sparsifier, SRigL
from fanin.trainer.layers import keeps_zeros

from ._options import grouped


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16)
        self.grouped = nn.Conv2d(16, 16, 3, groups=4)
        self.pointwise = nn.Conv2d(16, 32, 1)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.head = nn.Linear(32, 10)


def attach(model=None, method=None, **options):
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    defaults = {"method": method or SRigL(0.5), "total_steps": 1000, "distribution": "uniform"}
    return Sparsifier(model, optimizer, **grouped(**defaults | options))


def densities(sparsifier):
    return {row.name.removesuffix(".weight"): row.asked_density for row in sparsifier.summary()}


def test_a_neurons_inputs_are_the_window_of_its_own_group():
    rows = {row.name: row for row in attach().summary()}
    assert rows["depthwise.weight"].fan_in == 4  # half of 3·3
    assert rows["grouped.weight"].fan_in == 18  # half of 4·3·3
    assert rows["pointwise.weight"].fan_in == 8
    assert rows["stem.weight"].fan_in == 13


def test_only_listed_layers_become_sparse():
    sparsifier = attach(sparse_layers=["blocks.*", "head"], dense_in_budget=False)
    names = [f"blocks.{i}.weight" for i in range(3)]
    assert list(sparsifier.masks) == [*names, "head.weight"]
    assert densities(sparsifier)["blocks.1"] == 0.5
    counted = attach(sparse_layers=["blocks.*", "head"])
    assert 0 < densities(counted)["blocks.1"] < 0.5
    assert counted.summary().density == pytest.approx(0.5, abs=0.01)


def test_patterns_leave_layers_dense():
    masks = attach(dense_layers=["blocks.[01]", "*wise"], dense_in_budget=False).masks
    assert list(masks) == ["stem.weight", "grouped.weight", "blocks.2.weight", "head.weight"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dense_layers": ["block.*"]}, r"dense_layers names 'block\.\*'"),
        ({"sparse_layers": ["heat"]}, "sparse_layers names 'heat'.*'head'"),
        ({"sparse_layers": []}, "sparse_layers is empty"),
        (
            {"sparse_layers": ["head"], "dense_layers": ["head"]},
            "sparse_layers and dense_layers both name head",
        ),
        ({"densities": {"heat": 0.5}}, "densities names 'heat'.*'head'"),
        ({"densities": {"head": 1.5}}, r"'head.weight' must be in \(0, 1\], got 1.5"),
        ({"densities": {"head": 0.5, "*d": 0.1}}, "'head.weight' gets its density twice"),
        ({"densities": {"head": 0.5}, "dense_layers": ["head"]}, "gets its density twice"),
        ({"min_fan_in": 0}, "min_fan_in must be at least 1"),
        ({"weight_std": "1/k"}, "weight_std must be one of"),
        ({"mask": "largest"}, "mask must be one of"),
        ({"mask": "magnitude"}, "add keep_weights=True"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        attach(**options)


@pytest.mark.parametrize("distribution", ["erk", "uniform"])
def test_given_densities_are_kept_and_the_others_make_up_for_them(distribution):
    sparsifier = attach(
        method=RigL(0.8), distribution=distribution, densities={"head": 0.75, "blocks.0": 0.5}
    )
    found = densities(sparsifier)
    assert (found["head"], found["blocks.0"]) == (0.75, 0.5)
    assert sparsifier.summary().density == pytest.approx(0.2, abs=0.003)


@pytest.mark.parametrize("distribution", ["erk", "uniform"])
def test_given_densities_that_rule_out_the_sparsity_say_what_is_possible(distribution):
    shapes = {"a": (10, 10), "b": (10, 30)}
    with pytest.raises(InfeasibleSparsityError, match=r"alone hold 150.*feasible.*0\.60[03]"):
        layer_densities(shapes, 0.7, distribution, fixed={"b": 0.5})
    with pytest.raises(InfeasibleSparsityError, match=r"sparsity is at least 0\.3750"):
        layer_densities(shapes, 0.2, distribution, fixed={"b": 0.5})
    found = layer_densities(shapes, 0.5, distribution, fixed={"b": 0.5})
    assert found == pytest.approx({"a": 0.5, "b": 0.5})


@pytest.mark.parametrize("distribution", ["erk", "uniform"])
def test_a_least_fan_in_is_taken_from_the_other_layers(distribution):
    sparsifier = attach(distribution=distribution, method=SRigL(0.7), min_fan_in=7)
    rows = {row.name: row for row in sparsifier.summary()}
    assert min(row.fan_in for row in rows.values()) == 7
    total = sum(math.prod(row.shape) for row in rows.values())
    assert sparsifier.summary().density <= 0.3
    assert sparsifier.summary().density >= 0.3 - sum(r.shape[0] for r in rows.values()) / total
    with pytest.raises(InfeasibleSparsityError, match=r"largest feasible sparsity here is 0\.6"):
        attach(distribution=distribution, method=SRigL(0.8), min_fan_in=9)


def test_a_layer_shared_by_name_counts_once():
    model = Net()
    model.twin = nn.Linear(32, 10)
    model.twin.weight = model.head.weight
    sparsifier = attach(model, dense_layers=["twin"])
    assert [row.name for row in sparsifier.summary()].count("head.weight") == 1
    assert "twin.weight" not in {row.name for row in sparsifier.summary()}
    assert "head.weight" not in sparsifier.masks
    with pytest.raises(ValueError, match=r"'head.weight' .* by 'head.weight', 'twin.weight'"):
        attach(model)


def test_input_projections_of_attention_are_sparse_on_request():
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sparsifier = Sparsifier(
        model,
        optimizer,
        method=SRigL(0.8),
        total_steps=40,
        update_every=5,
        layers=LayerOptions(in_proj=True),
    )
    assert next(iter(sparsifier.masks)) == "self_attn.in_proj_weight"
    assert sparsifier.masks["self_attn.in_proj_weight"].shape == (96, 32)
    for step in range(12):
        generator = torch.Generator().manual_seed(step)
        model(torch.randn(4, 6, 32, generator=generator)).square().mean().backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()
    mask, weight = sparsifier.masks["self_attn.in_proj_weight"], model.self_attn.in_proj_weight
    assert len(set(mask.sum(1)[mask.any(1)].tolist())) == 1
    assert bool((weight[~mask] == 0).all())
    assert bool((weight[mask] != 0).any())
    other = nn.MultiheadAttention(32, 4, kdim=16, vdim=24)
    names = list(attach(other, in_proj=True, method=SRigL(0.3)).masks)
    assert names == ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"]


def test_weights_can_start_as_in_the_authors_code():
    stds = {}
    for name in ("sqrt(2/k)", "2/k"):
        model = nn.Sequential(nn.Linear(1000, 400))
        sparsifier = attach(model, SRigL(0.9), weight_std=name)
        stds[name] = model[0].weight[sparsifier.masks["0.weight"]].std().item()
    assert stds == pytest.approx({"sqrt(2/k)": (2 / 100) ** 0.5, "2/k": 2 / 100}, rel=0.02)


@pytest.mark.parametrize("method", [RigL(0.9), SRigL(0.9), RigL(0.5, structure="2:4")])
def test_trained_weights_can_choose_the_first_mask(method):
    model = nn.Sequential(nn.Linear(64, 20))
    before = model[0].weight.detach().clone()
    options = {"dense_in_budget": False} if ":" in getattr(method, "structure", "") else {}
    sparsifier = attach(model, method, keep_weights=True, mask="magnitude", **options)
    mask = sparsifier.masks["0.weight"]
    expected = method.mask_structure().mask_from_score(before.abs(), int(mask.sum()))
    assert torch.equal(mask, expected)
    assert torch.equal(model[0].weight, before * mask)


@pytest.mark.parametrize("options", [{}, {"dense_in_budget": False}])
def test_options_that_leave_no_layer_sparse_are_refused_with_the_candidates(options):
    model = Net()
    model.names = nn.Embedding(50, 4)
    reason = r"no layer would be sparse \(kept dense by these options: stem\.weight, depthwise"
    with pytest.raises(ValueError, match=reason + r".*of kinds that stay dense: Embedding\)"):
        attach(model, dense_layers=["*"], **options)


def test_a_model_without_any_linear_layer_says_what_it_has():
    with pytest.raises(ValueError, match=r"nothing can be sparse; its weights belong to Embedding"):
        attach(nn.Sequential(nn.Embedding(5, 4)))


@pytest.mark.parametrize("norm", [weight_norm, parametrizations.weight_norm, spectral_norm])
def test_layers_that_compute_their_weight_matter_only_if_they_are_to_be_sparse(norm):
    model = Net()
    norm(model.blocks[1])
    norm(model.grouped)
    reason = (
        r"'grouped\.weight' cannot be sparse: it is computed by its layer .*Add it to dense_lay"
    )
    with pytest.raises(ValueError, match=reason):
        attach(model)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    sparsifier = attach(model, dense_layers=["blocks.1", "grouped"], dense_in_budget=False)
    rows = {row.name: row for row in sparsifier.summary()}
    assert rows["grouped.weight"].shape == (16, 4, 3, 3)
    assert rows["blocks.1.weight"].density == 1
    assert rows["blocks.0.weight"].density == 0.5
    assert sparsifier.summary().others == {}
    assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())
    counted = attach(Net(), dense_layers=["blocks.1", "grouped"])
    sparsifier.detach()
    again = attach(model, dense_layers=["blocks.1", "grouped"])
    assert densities(again) == densities(counted)


def test_a_head_that_computes_its_weight_is_the_output_layer():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), parametrizations.weight_norm(nn.Linear(8, 4)))
    sparsifier = attach(model, dense_layers=["2"], dense_in_budget=False)
    assert sparsifier.state_dict()["settings"]["no_ablation"] == ["2.weight"]


class Standardized(nn.Conv2d):
    def forward(self, inputs):
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        deviation = self.weight.std((1, 2, 3), keepdim=True)
        return self._conv_forward(inputs, (self.weight - mean) / (deviation + 1e-5), self.bias)


class Padded(nn.Conv2d):
    def forward(self, inputs):
        return super().forward(nn.functional.pad(inputs, (1, 1, 1, 1)))


class OtherInputs(nn.Linear):
    def forward(self, first, second):
        return super().forward(first + second)


def test_layers_that_change_their_weight_before_use_can_only_stay_dense():
    def model_of(kind):
        return nn.Sequential(kind(8, 16, 3, groups=2), nn.Conv2d(16, 8, 3))

    reason = r"'0\.weight' cannot be sparse: it is changed by its layer before use"
    with pytest.raises(ValueError, match=reason):
        attach(model_of(Standardized))
    options = {"dense_layers": ["0"], "dense_in_budget": False}
    assert list(attach(model_of(Standardized), **options).masks) == ["1.weight"]
    assert list(attach(model_of(Padded)).masks) == ["0.weight", "1.weight"]
    assert keeps_zeros(OtherInputs(4, 4))


def test_models_sharded_by_fsdp_are_refused(monkeypatch):
    class FullyShardedDataParallel(nn.Module):
        def __init__(self, module):
            super().__init__()
            self._fsdp_wrapped_module = module

    fsdp = types.SimpleNamespace(FullyShardedDataParallel=FullyShardedDataParallel)
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", fsdp)
    with pytest.raises(ValueError, match=r"\(FSDP1\).*use fully_shard \(FSDP2\) or Distr"):
        attach(FullyShardedDataParallel(Net()))
    with pytest.raises(ValueError, match=r"\(FSDP1\)"):
        attach(nn.Sequential(FullyShardedDataParallel(Net())))
