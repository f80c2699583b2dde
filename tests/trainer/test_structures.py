"""Structures: first masks and updates, against plain loops and by their invariants."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.trainer.initialization import initial_mask
from fanin.trainer.structures import NM, ConstantFanIn, LayerPlan, Unstructured, parse_structure
from fanin.trainer.unstructured import unstructured_update


def generator(seed):
    return torch.Generator().manual_seed(seed)


def unstructured_by_loops(weight, mask, drop, grow, drop_count, budget):
    positions = [(i, j) for i in range(len(weight)) for j in range(len(weight[0]))]
    active = [p for p in positions if mask[p[0]][p[1]]]
    kept = sorted(active, key=lambda p: (-drop[p[0]][p[1]], p))[: len(active) - drop_count]
    free = [p for p in positions if p not in kept]
    grown = sorted(free, key=lambda p: (-grow[p[0]][p[1]], p))[: budget - len(kept)]
    return [[(i, j) in kept + grown for j in range(len(weight[0]))] for i in range(len(weight))]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), tied=st.booleans())
def test_unstructured_update_equals_the_loop_implementation(seed, tied):
    random = generator(seed)
    neurons, inputs = (int(v) for v in torch.randint(1, 9, (2,), generator=random))
    size = neurons * inputs
    active = int(torch.randint(1, size + 1, (1,), generator=random))
    mask = initial_mask((neurons, inputs), active, random, Unstructured())
    assert int(mask.sum()) == active
    weight, grad = torch.randn(2, neurons, inputs, generator=random)
    if tied:
        weight, grad = weight.round(), grad.round()
    weight = weight * mask
    drop_count = int(torch.randint(0, active + 1, (1,), generator=random))
    budget = int(torch.randint(active - drop_count, size + 1, (1,), generator=random))
    result = unstructured_update(
        weight, mask, weight.abs(), grad.abs(), drop_count=drop_count, budget=budget
    )
    lists = (t.tolist() for t in (weight, mask, weight.abs(), grad.abs()))
    expected = unstructured_by_loops(*lists, drop_count, budget)
    assert result.mask.tolist() == expected
    assert int(result.mask.sum()) == budget
    assert torch.equal(result.weight, weight * (result.mask & mask))
    assert result.stats.grown == int((result.mask & ~mask).sum())
    assert result.stats.dropped == int((mask & ~result.mask).sum())
    assert result.stats.fan_in == int(result.mask.sum(1).max())


def test_unstructured_updates_that_do_not_fit_are_refused():
    weight, mask = torch.ones(2, 2), torch.tensor([[True, False], [True, False]])
    for drop_count, budget in ((3, 2), (1, 5), (0, 1), (-1, 3)):
        with pytest.raises(ValueError, match="cannot drop"):
            unstructured_update(weight, mask, weight, weight, drop_count=drop_count, budget=budget)


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (4, 8), (1, 2)])
def test_n_of_every_m_weights_exist_through_updates(n, m):
    structure, random = NM(n, m), generator(n * 10 + m)
    shape = (6, 8, 1, 3)
    mask = initial_mask(shape, 6 * 24 * n // m, random, structure)
    weight = torch.randn(shape, generator=random) * mask
    changed = False
    for _ in range(5):
        grad = torch.randn(shape, generator=random)
        change = LayerPlan(int(mask.sum()), 0.3, 0, may_ablate=True)
        result = structure.update(weight, mask, weight.abs(), grad.abs(), change)
        assert result.mask.reshape(-1, m).sum(1).tolist() == [n] * (6 * 24 // m)
        assert result.mask.shape == shape
        changed = changed or not torch.equal(result.mask, mask)
        mask, weight = result.mask, result.weight + 0.1 * grad * result.mask
    assert changed


def test_n_m_growth_takes_the_largest_gradient_of_the_group():
    weight = torch.tensor([[4.0, 0.1, 0.0, 0.0, 3.0, 2.0, 0.0, 0.0]])
    grad = torch.tensor([[0.0, 0.0, 1.0, 5.0, 9.0, 9.0, 9.0, 9.0]])
    result = NM(2, 4).update(
        weight, weight != 0, weight.abs(), grad, LayerPlan(4, 0.25, 1, may_ablate=False)
    )
    assert result.mask.tolist() == [[True, False, False, True, True, True, False, False]]


def test_fan_ins_that_m_does_not_divide_are_refused_by_name():
    with pytest.raises(
        ValueError, match=r"'conv1.weight' cannot be 2:4 sparse, since its fan-in of 27"
    ):
        NM(2, 4).check("conv1.weight", (16, 3, 3, 3))
    NM(2, 4).check("fc", (10, 28))


@pytest.mark.parametrize("text", ["fan-in", "2-4", "4:2", "0:4", "2:2", ""])
def test_unknown_structures_are_refused(text):
    with pytest.raises(ValueError, match=r"structure must be|needs 1 ≤ N < M"):
        parse_structure(text)


def test_structures_have_names():
    assert parse_structure("unstructured") == Unstructured()
    assert parse_structure("constant-fan-in") == ConstantFanIn()
    assert parse_structure("2:4") == NM(2, 4)


def test_masks_of_scores_hold_the_largest():
    score = torch.tensor([[1.0, 5.0, 3.0, 2.0], [9.0, 8.0, 7.0, 6.0]])
    assert Unstructured().mask_from_score(score, 4).sum(1).tolist() == [0, 4]
    assert ConstantFanIn().mask_from_score(score, 5).tolist() == [
        [False, True, True, False],
        [True, True, False, False],
    ]
    assert NM(1, 2).mask_from_score(score, 4).tolist() == [
        [False, True, True, False],
        [True, False, True, False],
    ]
