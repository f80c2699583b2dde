"""Quantization-aware training."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy

from fanin.trainer import ConfigError, Sparsifier, SRigL, fake_quantize_, load_run, train
from fanin.trainer.fake_quantization import rounded_inputs, rounded_weight
from fanin.trainer.metrics import read_metrics
from fanin.trainer.recipe import override

from ._options import grouped


def in_8_bits(weight, inputs):
    """Weights and inputs rounded in float64, neurons along the first axis."""
    scale = np.abs(weight).reshape(len(weight), -1).max(1) / 127
    scale = np.where(scale == 0, 1, scale).reshape(-1, *[1] * (weight.ndim - 1))
    low, high = min(inputs.min(), 0.0), max(inputs.max(), 0.0)
    step = (high - low) / 255 or 1.0
    zero = np.round(-low / step)
    steps = np.clip(np.round(inputs / step) + zero, 0, 255) - zero
    return np.clip(np.round(weight / scale), -127, 127) * scale, steps * step


@pytest.mark.parametrize("seed", range(5))
def test_layers_compute_with_weights_and_inputs_of_8_bits(seed):
    torch.manual_seed(seed)
    linear, inputs = nn.Linear(12, 7), torch.randn(5, 12) + 0.5 * seed
    with torch.no_grad():
        linear.weight[2] = 0
    weight, rounded = in_8_bits(linear.weight.detach().double().numpy(), inputs.double().numpy())
    expected = rounded @ weight.T + linear.bias.detach().double().numpy()
    quantization = fake_quantize_(nn.Sequential(linear))
    assert np.allclose(linear(inputs).detach().numpy(), expected, rtol=1e-5, atol=1e-5)
    quantization.remove()
    exact = torch.nn.functional.linear(inputs, linear.weight, linear.bias)
    assert torch.equal(linear(inputs), exact)
    conv, images = nn.Conv2d(4, 6, 3, groups=2, bias=False), torch.randn(2, 4, 5, 5)
    weight, rounded = in_8_bits(conv.weight.detach().double().numpy(), images.double().numpy())
    expected = conv2d(torch.tensor(rounded), torch.tensor(weight), groups=2)
    fake_quantize_(conv)
    assert torch.allclose(conv(images).double(), expected, rtol=1e-5, atol=1e-5)


def test_gradients_pass_straight_through_and_zeros_stay_zeros():
    torch.manual_seed(0)
    weight = torch.randn(4, 6, requires_grad=True)
    mask = torch.rand(4, 6) < 0.5
    sparse = (weight * mask).detach().requires_grad_()
    rounded = rounded_weight(sparse)
    assert bool((rounded[~mask] == 0).all())
    upstream = torch.randn(4, 6)
    rounded.backward(upstream)
    assert torch.equal(sparse.grad, upstream)
    inputs = torch.tensor([[0.0, 1.0, -3.0]], requires_grad=True)
    assert rounded_inputs(inputs)[0, 0] == 0
    rounded_inputs(inputs).sum().backward()
    assert torch.equal(inputs.grad, torch.ones(1, 3))
    assert torch.equal(rounded_inputs(torch.zeros(2, 2)), torch.zeros(2, 2))


def test_parameters_and_state_stay_those_of_the_float_model():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    before = copy.deepcopy(model.state_dict())
    fake_quantize_(model)
    model(torch.randn(2, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.randn(2, 5))
    assert model[0].weight is model[0]._parameters["weight"]
    assert model.state_dict().keys() == before.keys()
    twin = copy.deepcopy(model)
    inputs = torch.randn(2, 4)
    assert torch.equal(twin(inputs), model(inputs))
    assert twin[0].weight is not model[0].weight


def test_masks_hold_and_fan_ins_stay_equal_while_8_bits_are_trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fake_quantize_(model)
    options = grouped(distribution="uniform", update_every=5)
    sparsifier = Sparsifier(model, optimizer, method=SRigL(0.8), total_steps=60, **options)
    losses = []
    for step in range(60):
        inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(step))
        labels = inputs[:, :4].argmax(1)
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if sparsifier.step():
            counts = sparsifier.masks["0.weight"].sum(1)
            assert len(set(counts[counts > 0].tolist())) == 1
        optimizer.zero_grad()
        for name, mask in sparsifier.masks.items():
            assert bool((dict(model.named_parameters())[name][~mask] == 0).all())
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_attention_is_named_where_it_cannot_round():
    model = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    found = fake_quantize_(model)
    assert found.layers == ("0", "1.linear1", "1.linear2")
    assert found.left == ("1.self_attn.in_proj_weight", "1.self_attn.out_proj.weight")
    with pytest.raises(ValueError, match="no linear or convolution layer"):
        fake_quantize_(nn.Sequential(nn.ReLU()))


def test_a_recipe_trains_and_evaluates_in_8_bits(small_config, tmp_path):
    config = override(small_config, {"training.quantization_aware": True})
    result = train(config, tmp_path / "run", progress=False)
    assert result.test_accuracy > 0.85
    run = load_run(tmp_path / "run")
    fake_quantize_(run.model)
    from fanin.trainer.data import load_dataset
    from fanin.trainer.evaluation import evaluate

    found = evaluate(run.model, load_dataset("digits").test)
    assert found.accuracy == result.test_accuracy
    last = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert found.loss == pytest.approx(last["test_loss"], rel=1e-5)
    with pytest.raises(ConfigError, match="quantization_aware replaces weights"):
        override(config, {"training.compile": True})
