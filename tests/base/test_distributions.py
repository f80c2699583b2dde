import math

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin._base.distributions import (
    InfeasibleSparsityError,
    erk,
    layer_densities,
    uniform,
    weight_budget,
)
from fanin.trainer.layers import prunable_weights

MLP = {"fc1": (3072, 784), "fc2": (768, 3072), "head": (10, 768)}


def shapes_of(build):
    with torch.device("meta"):
        model = build()
    return {name: tuple(weight.shape) for name, weight in prunable_weights(model).items()}


@pytest.fixture(scope="module")
def resnet50():
    shapes = shapes_of(torchvision.models.resnet50)
    assert len(shapes) == 54
    assert sum(map(math.prod, shapes.values())) == 25_502_912
    return shapes


@pytest.fixture(scope="module")
def resnet18_cifar():
    """ResNet-18 with a 3×3 first convolution: 21 tensors, in module order."""
    shapes = [(64, 3, 3, 3)]
    channels = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(width, channels, 3, 3), (width, width, 3, 3)]
            if block == 0 and channels != width:
                shapes.append((width, channels, 1, 1))
            channels = width
    shapes.append((10, 512))
    assert sum(map(math.prod, shapes)) == 11_164_352
    return {str(i): shape for i, shape in enumerate(shapes)}


def fan_ins(shapes, densities):
    return {n: weight_budget(s, densities[n]) // s[0] for n, s in shapes.items()}


def held_density(shapes, densities):
    held = sum(k * shapes[n][0] for n, k in fan_ins(shapes, densities).items())
    return held / sum(map(math.prod, shapes.values()))


@pytest.mark.parametrize(
    ("sparsity", "dense"), [(0.8, [1, 3, 4, 5, 7, 8, 10, 11]), (0.9, [1]), (0.95, []), (0.99, [])]
)
def test_erk_makes_the_published_resnet50_layers_dense(resnet50, sparsity, dense):
    densities = layer_densities(resnet50, sparsity, "erk")
    assert [i for i, d in enumerate(densities.values()) if d == 1.0] == dense


@pytest.mark.parametrize(
    ("sparsity", "held"), [(0.8, 0.19944), (0.9, 0.09976), (0.95, 0.04949), (0.99, 0.00967)]
)
def test_whole_fan_ins_of_resnet50_hold_slightly_less_than_asked(resnet50, sparsity, held):
    assert held_density(resnet50, layer_densities(resnet50, sparsity, "erk")) == pytest.approx(
        held, abs=6e-6
    )


def test_erk_gives_the_published_fan_ins_of_resnet18(resnet18_cifar):
    densities = layer_densities(resnet18_cifar, 0.99, "erk")
    found = list(fan_ins(resnet18_cifar, densities).values())
    assert found[:8] == [13, 25, 25, 25, 25, 18, 24, 18]
    assert found[-1] == 512  # the head stays dense
    assert held_density(resnet18_cifar, densities) == pytest.approx(0.00977, abs=6e-6)


@pytest.mark.parametrize(("sparsity", "whole"), [(0.8, 0.60352), (0.9, 0.67901)])
def test_uniform_gives_the_published_sparsity_of_vit(sparsity, whole):
    with torch.device("meta"):
        model = torchvision.models.vit_b_16()
    shapes = {n: tuple(w.shape) for n, w in prunable_weights(model).items()}
    in_projections = sum(p.numel() for n, p in model.named_parameters() if "in_proj_weight" in n)
    densities = layer_densities(shapes, sparsity, "uniform")
    held = held_density(shapes, densities) * sum(map(math.prod, shapes.values()))
    total = sum(map(math.prod, shapes.values())) + in_projections
    assert in_projections == 21_233_664
    assert 1 - (held + in_projections) / total == pytest.approx(whole, abs=6e-6)


def test_erk_density_is_proportional_to_the_sum_over_the_product_of_the_shape():
    shapes = {"a": (100, 50), "b": (200, 30, 3, 3)}
    densities = erk(shapes, 0.9)
    assert densities["a"] / densities["b"] == pytest.approx((150 / 5000) / (236 / 54000))


def test_layers_that_tie_become_dense_together_whatever_their_order():
    shapes = {"a": (8, 4), "big": (500, 400), "b": (8, 4)}
    densities = erk(shapes, 0.9)
    assert densities["a"] == densities["b"] == 1.0
    assert erk(dict(reversed(shapes.items())), 0.9) == densities


def test_forced_dense_layers_count_in_the_budget_unless_excluded():
    total = sum(map(math.prod, MLP.values()))
    for distribution in (uniform, erk):
        counted = distribution(MLP, 0.9, dense={"head"})
        assert counted["head"] == 1.0
        held = sum(counted[n] * math.prod(s) for n, s in MLP.items())
        assert held == pytest.approx(0.1 * total, abs=3)
    excluded = uniform(MLP, 0.9, dense={"head"}, dense_in_budget=False)
    assert excluded == pytest.approx({"fc1": 0.1, "fc2": 0.1, "head": 1.0})
    excluded = erk(MLP, 0.9, dense={"head"}, dense_in_budget=False)
    assert excluded == {"head": 1.0} | erk({n: MLP[n] for n in ("fc1", "fc2")}, 0.9)


@pytest.mark.parametrize("distribution", ["erk", "uniform"])
def test_too_large_dense_layers_name_the_largest_feasible_sparsity(distribution):
    shapes = {"a": (100, 100), "b": (100, 300)}
    with pytest.raises(InfeasibleSparsityError, match=r"alone hold 30000.*feasible.*0\.2475"):
        layer_densities(shapes, 0.5, distribution, dense={"b"})
    assert layer_densities(shapes, 0.2475, distribution, dense={"b"})["a"] == pytest.approx(0.01)


def test_less_than_one_weight_per_neuron_names_layer_and_largest_feasible_sparsity():
    shapes = {"a": (10, 20), "b": (10, 1000)}
    with pytest.raises(InfeasibleSparsityError, match=r"'a' \[10, 20\].*sparsity here is 0\.9500"):
        layer_densities(shapes, 0.96, "uniform")
    assert layer_densities(shapes, 0.95, "uniform")["a"] == pytest.approx(0.05)


def test_budget_is_not_lost_to_rounding():
    assert weight_budget((10, 10), 1 - 0.9) == 10  # 9.999999999999998 before rounding


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, math.nan])
def test_sparsity_out_of_range_is_refused(sparsity):
    with pytest.raises(ValueError, match=r"in \[0, 1\)"):
        layer_densities(MLP, sparsity, "erk")


def test_unknown_distribution_is_refused():
    with pytest.raises(ValueError, match=r"'erdos'.*'erk', 'uniform'"):
        layer_densities(MLP, 0.9, "erdos")


shape = st.tuples(st.integers(1, 64), st.integers(1, 64), st.integers(1, 5))


@settings(max_examples=200, deadline=None)
@given(st.lists(shape, min_size=1, max_size=8), st.floats(0, 0.95))
def test_erk_spends_the_budget_with_densities_between_0_and_1(shapes, sparsity):
    named = {str(i): s for i, s in enumerate(shapes)}
    densities = erk(named, sparsity)
    assert all(0 < d <= 1 for d in densities.values())
    held = sum(densities[n] * math.prod(s) for n, s in named.items())
    total = sum(map(math.prod, shapes))
    # each layer's count of zeros is rounded down
    assert (1 - sparsity) * total - 1e-6 <= held <= (1 - sparsity) * total + len(shapes)
