import pytest
import torch

from fanin.trainer.initialization import initial_mask, sparse_init


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_every_neuron_gets_the_same_number_of_random_inputs():
    mask = initial_mask((64, 3, 3, 3), 64 * 7 + 30, generator())
    assert mask.shape == (64, 3, 3, 3)
    assert mask.flatten(1).sum(1).tolist() == [7] * 64
    assert len({tuple(row.tolist()) for row in mask.flatten(1)}) > 60


def test_inputs_are_drawn_evenly():
    mask = initial_mask((4000, 10), 12_000, generator(1))
    uses = mask.sum(0).float() / 4000
    assert uses.tolist() == pytest.approx([0.3] * 10, abs=4 * (0.3 * 0.7 / 4000) ** 0.5)


def test_a_seed_means_one_mask():
    masks = [initial_mask((20, 30), 100, generator(seed)) for seed in (3, 3, 4)]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


@pytest.mark.parametrize("budget", [9, 0, 10 * 20 + 10])
def test_impossible_fan_ins_are_refused(budget):
    with pytest.raises(ValueError, match="must be between 1 and 20"):
        initial_mask((10, 20), budget, generator())


def test_weights_have_variance_two_over_each_neurons_own_fan_in():
    mask = torch.zeros(3, 200_000, dtype=torch.bool)
    mask[0, :50_000] = True
    mask[1] = True
    weight = sparse_init(mask, generator(2))
    assert weight[0][mask[0]].std().item() == pytest.approx((2 / 50_000) ** 0.5, rel=0.02)
    assert weight[1].std().item() == pytest.approx((2 / 200_000) ** 0.5, rel=0.02)
    assert weight[2].tolist() == [0.0] * 200_000
    assert bool((weight[~mask] == 0).all())


def test_the_norm_of_activations_keeps_its_expectation_through_a_relu_layer():
    ratios = []
    for seed in range(400):
        mask = initial_mask((32, 32), 32 * 4, generator(seed))
        weight = sparse_init(mask, generator(10_000 + seed))
        inputs = torch.randn(32, generator=generator(20_000 + seed))
        outputs = torch.relu(weight @ inputs)
        ratios.append((outputs.norm() ** 2 / inputs.norm() ** 2).item())
    ratios = torch.tensor(ratios)
    assert abs(ratios.mean().item() - 1) < 4 * ratios.std().item() / 20
