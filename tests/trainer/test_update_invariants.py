import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.trainer.initialization import initial_mask
from fanin.trainer.update import LayerRule, srigl_update

LAYERS_PER_EXAMPLE = 60
GAMMAS = [0, 0.3, 0.95, 0.99, 1, 5]


def random_layer(rng):
    """Weight, mask, budget of a layer as training would leave it, ablated neurons included."""
    neurons, fan_in = int(rng.integers(1, 40)), int(rng.integers(1, 60))
    budget = int(rng.integers(neurons, neurons * fan_in + 1))
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    mask = initial_mask((neurons, fan_in), budget, generator)
    weight = torch.randn(neurons, fan_in, generator=generator) * mask
    if rng.random() < 0.2:  # active weights that are exactly zero
        weight *= torch.rand(weight.shape, generator=generator) < 0.5
    return weight, mask, budget, generator


def check(weight, mask, result, rule):
    neurons, dense_fan_in = weight.shape
    counts, stats = result.mask.sum(1), result.stats
    assert set(counts.tolist()) <= {0, stats.fan_in}
    assert int((counts > 0).sum()) == stats.active >= 1
    assert 1 <= stats.fan_in <= dense_fan_in
    assert stats.fan_in == min(rule.budget // stats.active, dense_fan_in)
    assert stats.fan_in * stats.active <= rule.budget
    assert torch.equal(result.grown, result.mask & ~mask)
    assert bool((result.weight[~result.mask] == 0).all())
    assert bool((result.weight[result.grown] == 0).all())
    kept = result.mask & mask
    assert torch.equal(result.weight[kept], weight[kept])
    assert stats.grown == int(result.grown.sum())
    assert stats.dropped == int((mask & ~result.mask).sum())
    assert stats.ablated == int((mask.any(1) & (counts == 0)).sum())
    assert stats.revived == int((~mask.any(1) & (counts > 0)).sum())
    if rule.gamma_sal == 0:
        assert stats.active == neurons
    if not rule.reversible:
        assert stats.revived == 0


@pytest.mark.parametrize("gamma_sal", GAMMAS)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    reversible=st.booleans(),
    salient_growth=st.sampled_from(["all", "inactive"]),
)
def test_constant_fan_in_holds_after_chains_of_updates(gamma_sal, seed, reversible, salient_growth):
    rng = np.random.default_rng(seed)
    for _ in range(LAYERS_PER_EXAMPLE):
        weight, mask, budget, generator = random_layer(rng)
        for _ in range(2):
            rule = LayerRule(budget, rng.random(), gamma_sal, reversible, salient_growth)
            grad = torch.randn(weight.shape, generator=generator)
            result = srigl_update(weight, mask, grad, rule)
            check(weight, mask, result, rule)
            mask = result.mask
            weight = result.weight + 0.1 * torch.randn(mask.shape, generator=generator) * mask


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), gamma_sal=st.sampled_from(GAMMAS[1:]))
def test_budgets_below_the_number_of_neurons_cap_the_survivors(seed, gamma_sal):
    generator = torch.Generator().manual_seed(seed)
    neurons, fan_in = 20, 7
    budget = 1 + seed % (neurons - 1)
    weight, grad = torch.randn(2, neurons, fan_in, generator=generator)
    mask = torch.rand(neurons, fan_in, generator=generator) < 0.5
    result = srigl_update(weight * mask, mask, grad, LayerRule(budget, 0.3, gamma_sal))
    assert 1 <= result.stats.active <= budget
    assert result.stats.fan_in * result.stats.active <= budget
