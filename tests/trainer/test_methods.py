import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fanin import trainer
from fanin.trainer import (
    AST,
    DSR,
    GMP,
    MEST,
    METHODS,
    SET,
    SNFS,
    SRSTE,
    Chase,
    DeepR,
    Dense,
    RigL,
    Sparsifier,
    SRigL,
    Static,
    TopKAST,
)
from fanin.trainer.methods.base import DropFractions, LayerInputs
from fanin.trainer.methods.redistributing import apportion

from ._options import grouped

SPARSE = {
    "static": Static(0.75),
    "static-fan-in": Static(0.75, structure="constant-fan-in"),
    "static-1:4": Static(0.75, structure="1:4"),
    "set": SET(0.75),
    "set-fan-in": SET(0.75, structure="constant-fan-in"),
    "set-1:4": SET(0.75, structure="1:4"),
    "rigl": RigL(0.75),
    "rigl-fan-in": RigL(0.75, structure="constant-fan-in"),
    "rigl-1:4": RigL(0.75, structure="1:4"),
    "rigl-block": RigL(0.75, structure="block-4"),
    "srigl": SRigL(0.75, gamma_sal=0.9),
    "srigl-literal": SRigL(0.75, gamma_sal=0.9, salience="literal"),
    "srigl-permanent": SRigL(0.75, gamma_sal=0.9, reversible=False),
    "snfs": SNFS(0.75),
    "mest": MEST(0.75),
    "mest-hard": MEST(0.75, soft_bound=False),
    "dsr": DSR(0.75),
    "sr-ste": SRSTE("1:4"),
    "deepr": DeepR(0.75, l1=1e-3, temperature=1e-5),
    "chase": Chase(0.75),
    "gmp": GMP(0.75, structure="unstructured"),
    "gmp-fan-in": GMP(0.75),
    "ast": AST(0.75),
    "ast-fan-in": AST(0.75, others=(0.25, 0.5), structure="constant-fan-in"),
    "top-kast": TopKAST(0.75),
    "top-kast-fan-in": TopKAST(0.75, mask_every=3, structure="constant-fan-in"),
    "top-kast-block": TopKAST(0.75, mask_every=2, structure="block-4"),
}


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(),
                         nn.Linear(32, 4))  # fmt: skip


def attach(model, method, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    defaults = {"total_steps": 60, "update_every": 5, "distribution": "uniform"}
    if ":" in getattr(method, "structure", ""):
        defaults["dense_in_budget"] = False
    return optimizer, Sparsifier(model, optimizer, method=method, **grouped(**defaults | options))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(64, 24, generator=generator)
    return inputs, (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()


def train(model, optimizer, sparsifier, steps):
    updates = []
    for step in steps:
        inputs, labels = batch(step)
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        updates.append(sparsifier.step())
        optimizer.zero_grad()
    return loss.item(), [u for u in updates if u]


def test_every_method_is_exported_and_stands_above():
    assert all(getattr(trainer, method.__name__) is method for method in METHODS.values())
    assert {method.name for method in SPARSE.values()} == METHODS.keys() - {"dense"}


@pytest.mark.parametrize("name", SPARSE)
def test_every_method_trains_with_its_structure_and_budget(name):
    method, model = SPARSE[name], model_of()
    optimizer, sparsifier = attach(model, method)
    first = {n: m.clone() for n, m in sparsifier.masks.items()}
    total = sum(m.numel() for m in first.values())
    loss, updates = train(model, optimizer, sparsifier, range(60))
    assert loss < 0.9
    changed = any(not torch.equal(m, first[n]) for n, m in sparsifier.masks.items())
    assert changed == (method.updates or method.dense_to_sparse)
    assert len(updates) == (8 if method.updates else 0)  # steps 5, 10, …, 40
    held = sum(int(m.sum()) for m in sparsifier.masks.values())
    if isinstance(method.mask_structure(), type(SRigL(0.5).mask_structure())):
        assert 0.23 * total <= held <= 0.25 * total
    else:
        assert held == total // 4
    parameters = dict(model.named_parameters())
    for n, mask in sparsifier.masks.items():
        assert bool((parameters[n][~mask] == 0).all())
        counts = mask.flatten(1).sum(1)
        if ":" in getattr(method, "structure", ""):
            assert mask.reshape(-1, 4).sum(1).tolist() == [1] * (mask.numel() // 4)
        elif "fan-in" in name or "srigl" in name or "block" in name:
            assert len(set(counts[counts > 0].tolist())) == 1
        if "block" in name:
            assert all(bool((block == block[0]).all()) for block in mask.split(4))


@pytest.mark.parametrize("name", SPARSE)
def test_every_method_resumes_bit_for_bit(name):
    def make():
        model = model_of()
        return model, *attach(model, SPARSE[name], torch.optim.Adam(model.parameters(), lr=0.01))

    whole, first, second = make(), make(), make()
    train(*whole, range(25))
    train(*first, range(13))
    for part, other in zip(second, first, strict=True):
        part.load_state_dict(other.state_dict())
    train(*second, range(13, 25))
    for mine, other in zip(whole[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(mine, other)
    for n, mask in whole[2].masks.items():
        assert torch.equal(mask, second[2].masks[n])


def test_srigl_without_ablation_is_rigl_with_constant_fan_in():
    results = []
    for method in (SRigL(0.8, gamma_sal=0), RigL(0.8, structure="constant-fan-in")):
        model = model_of()
        optimizer, sparsifier = attach(model, method)
        train(model, optimizer, sparsifier, range(30))
        results.append(model)
    for mine, other in zip(*(m.parameters() for m in results), strict=True):
        assert torch.equal(mine, other)


def test_literal_salience_ablates_more_as_fewer_weights_are_dropped():
    active = {}
    for salience in ("practical", "literal"):
        model = model_of()
        optimizer, sparsifier = attach(model, SRigL(0.75, salience=salience), alpha=0.05)
        train(model, optimizer, sparsifier, range(6))
        active[salience] = sparsifier.summary().rows[1].active
    assert active["practical"] == 32
    assert active["literal"] < 16


def test_set_grows_where_rigl_does_not():
    masks = []
    for method in (SET(0.8), RigL(0.8)):
        model = model_of()
        optimizer, sparsifier = attach(model, method)
        train(model, optimizer, sparsifier, range(5))
        masks.append(sparsifier.masks["2.weight"])
    assert int(masks[0].sum()) == int(masks[1].sum())
    assert not torch.equal(*masks)


def test_mest_holds_more_between_updates_and_its_budget_at_the_end():
    model = model_of()
    optimizer, sparsifier = attach(model, MEST(0.75))
    total = sum(m.numel() for m in sparsifier.masks.values())
    held = []
    for step in range(60):
        train(model, optimizer, sparsifier, [step])
        held.append(sum(int(m.sum()) for m in sparsifier.masks.values()))
    assert held[3] == total // 4
    assert held[5] > held[15] > held[30] > held[59] == total // 4
    assert held[5] < 1.3 * total / 4


def test_mest_drops_by_weight_and_gradient():
    weight, gradient = torch.tensor([[1.0, -2.0]]), torch.tensor([[-4.0, 0.5]])
    layer = LayerInputs(weight, weight != 0, gradient, 1, True, lambda: torch.zeros(1, 2))
    assert MEST(0.5, gradient_weight=0.5).drop_score(layer).tolist() == [[3.0, 2.25]]
    with pytest.raises(ValueError, match="gradient_weight"):
        MEST(0.5, gradient_weight=-1)


@pytest.mark.parametrize("method", [SNFS(0.75), DSR(0.75)])
def test_redistribution_moves_weights_between_layers_and_keeps_their_sum(method):
    model = model_of()
    optimizer, sparsifier = attach(model, method)
    before = [int(m.sum()) for m in sparsifier.masks.values()]
    train(model, optimizer, sparsifier, range(20))
    after = [int(m.sum()) for m in sparsifier.masks.values()]
    assert sum(before) == sum(after)
    assert before != after
    assert min(after) >= 1


def inputs_of(weights, gradients):
    pairs = zip(weights.items(), gradients, strict=True)
    return {
        name: LayerInputs(w, w != 0, g, int((w != 0).sum()), True, torch.rand)
        for (name, w), g in pairs
    }


def test_dsr_drops_the_smallest_weights_of_the_whole_model():
    layers = inputs_of(
        {"a": torch.tensor([[9.0, 8.0, 7.0, 0.0]]), "b": torch.tensor([[0.1, 0.2, 5.0, 0.0]])},
        [None, None],
    )
    changes = DSR(0.5).plan(layers, DropFractions(0.34, 0.3))
    assert (changes["a"].drop_count, changes["b"].drop_count) == (0, 2)
    # Two weights to share by what is left, 3 to 1: both to a, which has one place; one to b.
    assert (changes["a"].budget, changes["b"].budget) == (4, 2)


def test_dsr_leaves_every_layer_a_weight():
    layers = inputs_of({"a": torch.ones(1, 50), "b": torch.full((1, 2), 1e-9)}, [None, None])
    assert DSR(0.5).plan(layers, DropFractions(0.3, 0.3))["b"].drop_count == 1


def test_snfs_shares_growth_by_the_mean_momentum_of_active_weights():
    weights = {"a": torch.ones(1, 40), "b": torch.ones(1, 40)}
    for weight in weights.values():
        weight[:, 20:] = 0
    gradients = [torch.full((1, 40), 3.0), torch.full((1, 40), 1.0)]
    gradients[1][:, 20:] = 100.0  # of inactive weights: not counted
    changes = SNFS(0.5).plan(inputs_of(weights, gradients), DropFractions(0.2, 0.2))
    assert {n: c.budget for n, c in changes.items()} == {"a": 16 + 6, "b": 16 + 2}


@pytest.mark.parametrize(
    ("total", "shares", "limits", "given"),
    [
        (8, {"a": 3, "b": 1}, {"a": 9, "b": 9}, {"a": 6, "b": 2}),
        (8, {"a": 3, "b": 1}, {"a": 4, "b": 9}, {"a": 4, "b": 4}),
        (3, {"a": 0, "b": 0}, {"a": 9, "b": 9}, {"a": 2, "b": 1}),
        (1, {"a": 1, "b": 1, "c": 2}, {"a": 9, "b": 9, "c": 0}, {"a": 1, "b": 0, "c": 0}),
        (0, {"a": 1}, {"a": 5}, {"a": 0}),
    ],
)
def test_apportioning_is_exact_and_respects_limits(total, shares, limits, given):
    assert apportion(total, shares, limits) == given
    with pytest.raises(ValueError, match="do not fit"):
        apportion(sum(limits.values()) + 1, shares, limits)


def test_sr_ste_trains_dense_weights_behind_the_mask():
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    _, sparsifier = attach(model, SRSTE("2:4", decay=0.05), optimizer)
    dense = sparsifier.state_dict()["layers"]["2.weight"]["dense"]
    mask, weight = sparsifier.masks["2.weight"].clone(), model[2].weight
    assert torch.equal(weight, dense * mask)
    assert torch.equal(mask.reshape(-1, 4).sum(1), torch.full((512,), 2))
    inputs, labels = batch(0)
    cross_entropy(model(inputs), labels).backward()
    gradient = weight.grad.clone()
    assert bool((gradient[~mask] != 0).any())
    optimizer.step()
    expected = dense - 0.1 * (gradient + 0.05 * dense * ~mask + 0.01 * dense)
    after = sparsifier.state_dict()["layers"]["2.weight"]["dense"]
    assert torch.allclose(after, expected, rtol=1e-5, atol=1e-7)
    kept = after.abs().reshape(-1, 4).topk(2, dim=1).indices
    largest = torch.zeros(512, 4, dtype=torch.bool).scatter_(1, kept, True).view(32, 64)
    assert torch.equal(sparsifier.masks["2.weight"], largest)
    assert torch.equal(weight, after * largest)


def test_n_m_structures_need_equal_densities_and_divisible_fan_ins():
    with pytest.raises(
        ValueError, match=r"incompatible with distribution='erk', dense_in_budget=True"
    ):
        attach(model_of(), SRSTE(), distribution="erk", dense_in_budget=True)
    with pytest.raises(
        ValueError, match=r"'0.weight' cannot be 8:16 sparse, since its fan-in of 24"
    ):
        attach(model_of(), SET(0.5, structure="8:16"))
    with pytest.raises(ValueError, match=r"'2:4' has sparsity 0.5, not 0.8"):
        SET(0.8, structure="2:4")
    with pytest.raises(ValueError, match="N:M sparsity, got structure 'unstructured'"):
        SRSTE("unstructured")


@pytest.mark.parametrize("method", [SRigL, RigL, SET, Static, SNFS, MEST, DSR])
@pytest.mark.parametrize("sparsity", [0, 1, -0.5, 1.5, float("nan")])
def test_sparsity_outside_0_and_1_is_refused(method, sparsity):
    with pytest.raises(ValueError, match="sparsity must be in"):
        method(sparsity=sparsity)


@pytest.mark.parametrize("gamma_sal", [-0.1, float("nan"), float("inf"), 1.5])
def test_meaningless_gamma_is_refused(gamma_sal):
    with pytest.raises(ValueError, match="gamma_sal"):
        SRigL(sparsity=0.9, gamma_sal=gamma_sal)


@pytest.mark.parametrize("option", ["salient_growth", "salience"])
def test_unknown_choices_are_refused(option):
    with pytest.raises(ValueError, match=f"{option} must be .*, got 'some'"):
        SRigL(sparsity=0.9, **{option: "some"})


def test_methods_are_immutable_values():
    assert SRigL(sparsity=0.9) == SRigL(sparsity=0.9, gamma_sal=0.3)
    assert Dense() == Dense()
    assert {name: METHODS[name].name for name in METHODS} == {name: name for name in METHODS}
    with pytest.raises(dataclasses.FrozenInstanceError):
        SRigL(sparsity=0.9).sparsity = 0.5


def test_gradients_of_ablated_neurons_can_be_capped_at_those_of_the_median_live_one():
    mask = torch.tensor([[1, 0], [0, 1], [0, 0], [0, 0], [1, 0]]).bool()
    gradient = torch.tensor([[1.0, -3.0], [2.0, 6.0], [40.0, -120.0], [0.5, 0.1], [0.0, 0.0]])
    layer = LayerInputs(torch.zeros(5, 2), mask, gradient, 3, True, lambda: gradient)
    assert torch.equal(SRigL(0.5).grow_score(layer), gradient.abs())
    capped = SRigL(0.5, ablated_gradients="capped").grow_score(layer)
    # The means of the live neurons are 2, 4 and 0.
    assert torch.allclose(capped[2], torch.tensor([1.0, 3.0]))
    untouched = [0, 1, 3, 4]
    assert torch.equal(capped[untouched], gradient[untouched].abs())
    none = LayerInputs(torch.zeros(5, 2), mask & False, gradient, 3, True, lambda: gradient)
    method = SRigL(0.5, ablated_gradients="capped")
    assert torch.equal(method.grow_score(none), gradient.abs())


def test_a_batch_norm_does_not_let_ablated_filters_crowd_out_the_others_when_capped():
    scores = {}
    for option in ("raw", "capped"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.SiLU())
        with torch.no_grad():
            model[0].weight[:3] = 0
        outputs = model(torch.randn(8, 4, 8, 8))
        (outputs * torch.randn_like(outputs)).mean().backward()
        weight = model[0].weight
        layer = LayerInputs(weight, weight != 0, weight.grad, 100, True, torch.Tensor)
        score = SRigL(0.5, ablated_gradients=option).grow_score(layer).flatten(1).mean(1)
        scores[option] = (score[:3].max() / score[3:].median()).item()
    assert scores["raw"] > 20
    assert scores["capped"] == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("kind", ["Static", "SET", "RigL", "MEST", "SNFS", "DSR"])
def test_unstructured_methods_keep_all_neurons_of_protected_layers(kind):
    method = getattr(trainer, kind)(0.98)
    least = {}
    for protected in (None, ()):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"distribution": "uniform", "no_ablation": protected, "update_every": 4}
        sparsifier = Sparsifier(
            model, optimizer, method=method, total_steps=100, **grouped(**options)
        )
        counts = []
        for step in range(60):
            inputs = torch.randn(16, 64, generator=torch.Generator().manual_seed(step))
            cross_entropy(model(inputs), inputs[:, :10].argmax(1) // 4).backward()
            optimizer.step()
            sparsifier.step()
            optimizer.zero_grad()
            counts.append(int(sparsifier.masks["2.weight"].any(1).sum()))
        least[protected] = min(counts)
        held = sum(int(mask.sum()) for mask in sparsifier.masks.values())
        assert held <= 0.02 * (64 * 128 + 128 * 10) * 1.3
    assert least[None] == 10
    assert least[()] < 10


def test_a_protected_layer_without_a_weight_for_each_neuron_is_refused():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reason = r"'2\.weight' must keep all of its 10 neurons, but would have 6 weights"
    options = {"method": trainer.RigL(0.995), "total_steps": 1000}
    with pytest.raises(trainer.InfeasibleSparsityError, match=reason):
        Sparsifier(model, optimizer, **options, **grouped(distribution="uniform"))
    free = grouped(distribution="uniform", no_ablation=[])
    assert Sparsifier(model, optimizer, **options, **free).masks


def test_a_method_that_starts_dense_refuses_an_initial_mask():
    model = model_of()
    with pytest.raises(ValueError, match=r"'gmp' starts with all weights.*leave out"):
        attach(model, GMP(0.75), mask="random")
    _, sparsifier = attach(model, GMP(0.75))
    assert all(bool(mask.all()) for mask in sparsifier.masks.values())
