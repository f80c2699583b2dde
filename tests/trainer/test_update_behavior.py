import pytest
import torch

from fanin.trainer.initialization import initial_mask
from fanin.trainer.update import LayerRule, salience_threshold, srigl_update


def layer(rows):
    """Weight and mask from rows in which None is an inactive position."""
    weight = torch.tensor([[0.0 if v is None else v for v in row] for row in rows])
    mask = torch.tensor([[v is not None for v in row] for row in rows])
    return weight, mask


def test_an_over_full_neuron_keeps_its_largest_weights():
    weight, mask = layer([[5.0, -4.0, 3.0, 2.0], [1.0, None, None, None]])
    grad = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 9.0]])
    result = srigl_update(weight, mask, grad, LayerRule(4, 0, gamma_sal=0))
    assert result.weight.tolist() == [[5.0, -4.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    assert result.mask.tolist() == [[True, True, False, False], [True, False, False, True]]


def test_a_weight_dropped_and_grown_in_one_update_keeps_its_value():
    weight, mask = layer([[3.0, 0.5, None, None]])
    grad = torch.tensor([[0.0, 9.0, 1.0, 0.0]])
    result = srigl_update(weight, mask, grad, LayerRule(2, 0.5, gamma_sal=0))
    assert result.weight.tolist() == [[3.0, 0.5, 0.0, 0.0]]
    assert result.stats.grown == result.stats.dropped == 0


def test_grown_weights_start_at_zero_where_the_gradient_is_largest():
    weight, mask = layer([[3.0, 0.5, None, None]])
    grad = torch.tensor([[0.0, 1.0, -9.0, 2.0]])
    result = srigl_update(weight, mask, grad, LayerRule(2, 0.5, gamma_sal=0))
    assert result.mask.tolist() == [[True, False, True, False]]
    assert result.weight.tolist() == [[3.0, 0.0, 0.0, 0.0]]


def test_active_weights_that_are_exactly_zero_count_as_active():
    weight, mask = layer([[0.0, 2.0, None], [0.0, 0.0, None]])
    result = srigl_update(weight, mask, torch.zeros(2, 3), LayerRule(4, 0, gamma_sal=0.9))
    assert result.stats.active == 2
    assert torch.equal(result.mask, mask)


def test_after_heavy_ablation_only_active_weights_are_kept_and_the_rest_follows_the_gradient():
    generator = torch.Generator().manual_seed(0)
    mask = initial_mask((128, 256), 3276, generator)
    weight = torch.randn(128, 256, generator=generator) * mask
    importance = torch.randn(128, 1, generator=generator).exp()
    weight, grad = weight * importance, torch.randn(128, 256, generator=generator) * importance
    result = srigl_update(weight, mask, grad, LayerRule(3276, 0.3, gamma_sal=0.95))
    assert result.stats.ablated > 64
    for row in result.mask.any(1).nonzero().flatten():
        grown, idle = result.grown[row], ~result.mask[row]
        assert grad[row][grown].abs().min() >= grad[row][idle & ~mask[row]].abs().max()


def test_survivors_are_never_fewer_than_hold_the_budget():
    weight, mask = layer([[1.0] * 4] * 4)
    grad = torch.zeros(4, 4)
    result = srigl_update(weight, mask, grad, LayerRule(9, 0.9, gamma_sal=5))
    assert result.stats.active >= 3
    assert result.stats.fan_in <= 4


def test_without_ablation_every_neuron_stays_however_small_its_weights():
    generator = torch.Generator().manual_seed(1)
    mask = initial_mask((10, 64), 64, generator)
    weight = torch.randn(10, 64, generator=generator) * mask
    weight[:5] *= 1e-6
    grad = torch.randn(10, 64, generator=generator)
    grad[:5] = 0
    ablating = srigl_update(weight, mask, grad, LayerRule(64, 0.5, gamma_sal=0.95))
    keeping = srigl_update(weight, mask, grad, LayerRule(64, 0.5, gamma_sal=0))
    assert ablating.stats.ablated == 5
    assert keeping.stats.active == 10
    assert keeping.stats.fan_in == 6


def test_an_ablated_neuron_returns_by_its_gradients_only_when_reversible():
    weight, mask = layer([[2.0, 2.0, None, None], [None] * 4, [2.0, 0.1, None, None]])
    grad = torch.tensor([[0.0] * 4, [9.0, 8.0, 0.0, 0.0], [0.0] * 4])
    back = srigl_update(weight, mask, grad, LayerRule(4, 0.5, gamma_sal=0.3))
    assert back.stats.revived == 1
    assert back.mask[1].tolist() == [True, True, False, False]
    assert back.weight[1].tolist() == [0.0] * 4
    gone = srigl_update(weight, mask, grad, LayerRule(4, 0.5, gamma_sal=0.3, reversible=False))
    assert gone.stats.revived == 0
    assert not gone.mask[1].any()


@pytest.mark.parametrize(
    ("gamma_sal", "threshold"), [(0.3, 7), (0.95, 23), (0.01, 1), (1, 1), (5, 5)]
)
def test_threshold_is_a_share_of_the_unablated_fan_in_or_a_number(gamma_sal, threshold):
    assert salience_threshold(512, LayerRule(512 * 25, 0.3, gamma_sal)) == threshold


def test_convolution_weights_keep_their_shape():
    generator = torch.Generator().manual_seed(2)
    mask = initial_mask((8, 3, 5, 5), 160, generator)
    weight = torch.randn(8, 3, 5, 5, generator=generator) * mask
    grad = torch.randn(8, 3, 5, 5, generator=generator)
    result = srigl_update(weight, mask, grad, LayerRule(160, 0.3, 0.3))
    flat = srigl_update(
        weight.flatten(1), mask.flatten(1), grad.flatten(1), LayerRule(160, 0.3, 0.3)
    )
    assert result.mask.shape == weight.shape
    assert torch.equal(result.mask.flatten(1), flat.mask)


def test_inputs_are_left_untouched():
    weight, mask = layer([[3.0, 0.5, None], [1.0, 2.0, None]])
    before = weight.clone(), mask.clone()
    srigl_update(weight, mask, torch.ones(2, 3), LayerRule(4, 0.5, 0.95))
    assert torch.equal(weight, before[0])
    assert torch.equal(mask, before[1])


def test_wrong_arguments_are_named():
    weight, mask = layer([[1.0, None], [1.0, None]])
    rule = LayerRule(2, 0.3, 0)
    with pytest.raises(ValueError, match=r"mask has shape \[1, 2\], the weight \[2, 2\]"):
        srigl_update(weight, mask[:1], weight, rule)
    with pytest.raises(ValueError, match="mask must be bool"):
        srigl_update(weight, weight, weight, rule)
    with pytest.raises(ValueError, match="grow_score contains values that are not finite"):
        srigl_update(weight, mask, weight / 0, rule)
    with pytest.raises(ValueError, match="budget of 1 weights cannot give each of 2 neurons one"):
        srigl_update(weight, mask, weight, LayerRule(1, 0.3, 0))
    with pytest.raises(ValueError, match=r"not empty, got \[0, 4\]"):
        srigl_update(torch.zeros(0, 4), torch.zeros(0, 4).bool(), torch.zeros(0, 4), rule)
