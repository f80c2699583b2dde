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


def protected_by_loops(mask, drop, grow, drop_count, budget):
    """As unstructured_by_loops, but each neuron's best weight comes first."""
    rows, columns = range(len(mask)), range(len(mask[0]))

    def selected(score, candidates, bare, count):
        best = {}
        for p in candidates:
            if p[0] in bare and (p[0] not in best or score(p) > score(best[p[0]])):
                best[p[0]] = p
        first = sorted(best.values())[:count]
        others = sorted((p for p in candidates if p not in first), key=lambda p: (-score(p), p))
        return first + others[: count - len(first)]

    active = [(i, j) for i in rows for j in columns if mask[i][j]]
    kept = selected(
        lambda p: drop[p[0]][p[1]], active, {p[0] for p in active}, len(active) - drop_count
    )
    free = [(i, j) for i in rows for j in columns if (i, j) not in kept]
    bare = set(rows) - {p[0] for p in kept}
    grown = selected(lambda p: grow[p[0]][p[1]], free, bare, budget - len(kept))
    return [[(i, j) in kept + grown for j in columns] for i in rows]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_protected_neurons_keep_a_weight_as_in_the_loop_implementation(seed):
    random = generator(seed)
    neurons, inputs = (int(v) for v in torch.randint(1, 9, (2,), generator=random))
    size = neurons * inputs
    budget = int(torch.randint(neurons, size + 1, (1,), generator=random))
    first = initial_mask((neurons, inputs), budget, random, Unstructured(), every_neuron=True)
    assert bool(first.any(1).all())
    assert int(first.sum()) == budget
    anything = torch.rand(neurons, inputs, generator=random) < 0.3  # neurons may be empty before
    for mask in (first, anything):
        active = int(mask.sum())
        weight, grad = torch.randn(2, neurons, inputs, generator=random)
        weight = weight * mask
        drop_count = int(torch.randint(max(0, active - budget), active + 1, (1,), generator=random))
        arguments = {"drop_count": drop_count, "budget": budget}
        scores = weight.abs(), grad.abs()
        result = unstructured_update(weight, mask, *scores, **arguments, every_neuron=True)
        lists = (t.tolist() for t in (mask, *scores))
        assert result.mask.tolist() == protected_by_loops(*lists, drop_count, budget)
        assert int(result.mask.sum()) == budget
        bare = neurons - int((result.mask & mask).any(1).sum())
        if budget - int((result.mask & mask).sum()) >= bare or mask is first:
            assert bool(result.mask.any(1).all())


def test_unstructured_updates_that_do_not_fit_are_refused():
    weight, mask = torch.ones(2, 2), torch.tensor([[True, False], [True, False]])
    for drop_count, budget in ((3, 2), (1, 5), (0, 1), (-1, 3)):
        with pytest.raises(ValueError, match="cannot drop"):
            unstructured_update(weight, mask, weight, weight, drop_count=drop_count, budget=budget)
    with pytest.raises(ValueError, match="1 weights cannot give each of 2 neurons one"):
        unstructured_update(weight, mask, weight, weight, drop_count=1, budget=1, every_neuron=True)


def groups_by_loops(mask, m, flat):
    """Weights in each group: of input channels at one position, or of the memory order."""
    counts = []
    for neuron in mask:
        if flat:
            inputs = neuron.flatten().tolist()
        else:
            inputs = [
                bool(neuron[channel, row, column])
                for row in range(neuron.shape[1])
                for column in range(neuron.shape[2])
                for channel in range(neuron.shape[0])
            ]
        counts += [sum(inputs[i : i + m]) for i in range(0, len(inputs), m)]
    return counts


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (4, 8), (1, 2)])
def test_n_of_every_m_weights_exist_through_updates(n, m, flat):
    structure, random = NM(n, m, flat), generator(n * 10 + m)
    shape = (6, 8, 1, 3)
    mask = initial_mask(shape, 6 * 24 * n // m, random, structure)
    weight = torch.randn(shape, generator=random) * mask
    changed = False
    for _ in range(5):
        grad = torch.randn(shape, generator=random)
        change = LayerPlan(int(mask.sum()), 0.3, 0, may_ablate=True)
        result = structure.update(weight, mask, weight.abs(), grad.abs(), change)
        assert groups_by_loops(result.mask, m, flat) == [n] * (6 * 24 // m)
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
        NM(2, 4, flat=True).check("conv1.weight", (16, 3, 3, 3))
    with pytest.raises(ValueError, match=r"since its number of input channels of 6 is not"):
        NM(2, 4).check("conv2.weight", (16, 6, 2, 2))
    NM(2, 4, flat=True).check("conv2.weight", (16, 6, 2, 2))
    NM(2, 4).check("conv3.weight", (16, 4, 3, 3))
    with pytest.raises(ValueError, match=r"since its fan-in of 27 is not"):
        NM(2, 4).check("fc", (10, 27))
    NM(2, 4).check("fc", (10, 28))


@pytest.mark.parametrize("text", ["fan-in", "2-4", "4:2", "0:4", "2:2", ""])
def test_unknown_structures_are_refused(text):
    with pytest.raises(ValueError, match=r"structure must be|needs 1 ≤ N < M"):
        parse_structure(text)


def test_structures_have_names():
    assert parse_structure("unstructured") == Unstructured()
    assert parse_structure("constant-fan-in") == ConstantFanIn()
    assert parse_structure("2:4") == NM(2, 4)
    assert parse_structure("2:4-flat") == NM(2, 4, flat=True)


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
