"""What users do that the documentation does not ask for."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fanin.trainer import SET, ConfigError, RigL, Sparsifier, SRigL
from fanin.trainer.recipe import extend


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))


def attach(model, method=None, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    defaults = {"total_steps": 40, "update_every": 4}
    method = method or SRigL(0.7)
    return optimizer, Sparsifier(model, optimizer, method=method, **defaults | options)


def backward(model, step=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(step)
    cross_entropy(
        model(torch.randn(8, 20, generator=generator).to(dtype)), torch.arange(8) % 4
    ).backward()


def train(model, optimizer, sparsifier, steps):
    for step in steps:
        backward(model, step)
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()


def test_a_model_converted_after_its_sparsifier_was_made_is_refused_by_name():
    model = model_of()
    attach(model)
    with pytest.raises(RuntimeError, match=r"'2\.weight' is now torch\.float64 .*before its Spars"):
        backward(model.double(), dtype=torch.float64)


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 0.0, -2.0, 0.5])
def test_factors_that_give_no_whole_number_of_epochs_are_refused(small_config, factor):
    with pytest.raises(ConfigError, match="no whole number of epochs"):
        extend(small_config, factor)


def test_models_in_training_can_be_copied_and_saved_whole():
    model = model_of()
    optimizer, sparsifier = attach(model)
    train(model, optimizer, sparsifier, range(6))
    twin, file = copy.deepcopy(model), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (twin, loaded):
        backward(other)  # the copy is no longer masked, nor does it disturb the original
        assert bool((other[0].weight.grad[~sparsifier.masks["0.weight"]] != 0).any())
    train(model, optimizer, sparsifier, range(6, 12))
    assert bool((model[0].weight[~sparsifier.masks["0.weight"]] == 0).all())


def test_weights_frozen_in_the_middle_keep_their_topology_and_say_so():
    model = model_of()
    optimizer, sparsifier = attach(model)
    train(model, optimizer, sparsifier, range(5))
    model[0].weight.requires_grad_(False)
    before = sparsifier.masks["0.weight"].clone()
    expected = r"no finite gradient in the window for 0\.weight"
    with pytest.warns(RuntimeWarning, match=expected) as warned:
        train(model, optimizer, sparsifier, range(5, 10))
    assert warned[0].filename == __file__
    assert torch.equal(sparsifier.masks["0.weight"], before)


def test_weights_that_became_nan_end_training_with_an_error_that_says_so():
    model = model_of()
    optimizer, sparsifier = attach(model, SET(0.7))
    train(model, optimizer, sparsifier, range(3))
    with torch.no_grad():
        model[0].weight[sparsifier.masks["0.weight"]] = torch.nan
    with pytest.raises(ValueError, match=r"step 4: '0\.weight' cannot be updated: .*not finite"):
        train(model, optimizer, sparsifier, range(3, 5))


def test_zeroing_gradients_before_the_update_changes_nothing():
    masks = []
    for early in (False, True):
        model = model_of()
        optimizer, sparsifier = attach(model, RigL(0.7))
        for step in range(10):
            backward(model, step)
            optimizer.step()
            if early:
                optimizer.zero_grad()
            sparsifier.step()
            optimizer.zero_grad()
        masks.append(sparsifier.masks)
    assert all(torch.equal(masks[0][name], masks[1][name]) for name in masks[0])


def test_a_damaged_state_is_refused_and_changes_nothing():
    model = model_of()
    optimizer, sparsifier = attach(model)
    train(model, optimizer, sparsifier, range(6))
    state, before = sparsifier.state_dict(), sparsifier.state_dict()
    damaged = {
        "a key less": {k: v for k, v in state.items() if k != "layers"},
        "no masks": state | {"layers": {name: {} for name in state["layers"]}},
        "floats for masks": state
        | {"layers": {n: v | {"mask": v["mask"].float()} for n, v in state["layers"].items()}},
        "nothing": {},
        "a list": [],
    }
    for other in damaged.values():
        with pytest.raises(ValueError, match="sparsifier state"):
            sparsifier.load_state_dict(other)
    for name, layer in sparsifier.state_dict()["layers"].items():
        assert torch.equal(layer["mask"], before["layers"][name]["mask"])
