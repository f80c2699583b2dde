"""Weights that are loaded into the model after its Sparsifier was made."""

import copy
import warnings

import pytest
import torch
from torch import nn

from fanin.trainer import AST, SRSTE, LayerOptions, RigL, Sparsifier, TopKAST


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 32))


def trained_state(model):
    """Weights that a dense training of this model may have ended with."""
    generator = torch.Generator().manual_seed(3)
    return {n: torch.randn(t.shape, generator=generator) for n, t in model.state_dict().items()}


def one_step(model, optimizer, sparsifier):
    model(torch.randn(8, 40)).square().mean().backward()
    optimizer.step()
    sparsifier.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("load", ["whole", "layer"])
def test_weights_loaded_after_the_sparsifier_was_made_are_masked_with_a_warning(load):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sparsifier = Sparsifier(model, optimizer, method=RigL(0.8), total_steps=400)
    state = trained_state(model)
    if load == "whole":
        model.load_state_dict(state)
    else:
        model[0].load_state_dict({"weight": state["0.weight"], "bias": state["0.bias"]})
    off = {name: int((~mask).sum()) for name, mask in sparsifier.masks.items()}
    layers, off = (
        ("'0.weight' and 1 more layers", sum(off.values()))
        if load == "whole"
        else ("'0.weight'", off["0.weight"])
    )
    with pytest.warns(
        UserWarning, match=rf"{off:,} of {layers} are not on its masks.*load_state"
    ) as found:
        one_step(model, optimizer, sparsifier)
    assert [warning.filename for warning in found] == [__file__]
    for name, mask in sparsifier.masks.items():
        weight = model.get_parameter(name)
        assert bool((weight[~mask] == 0).all())
        if load == "whole":
            assert torch.equal(weight, state[name] * mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one_step(model, optimizer, sparsifier)  # once is enough


def test_loading_a_checkpoint_of_a_sparse_training_needs_no_warning():
    parts = []
    for _ in range(2):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        sparsifier = Sparsifier(
            model, optimizer, method=RigL(0.8), total_steps=400, seed=len(parts)
        )
        parts.append((model, optimizer, sparsifier))
    saved = [part.state_dict() for part in parts[0]]
    saved[2]["settings"]["seed"] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for part, state in zip(parts[1], saved, strict=True):
            part.load_state_dict(state)
        one_step(*parts[1])


DENSE_BEHIND_MASK = [SRSTE("1:4"), TopKAST(0.75, mask_every=50), AST(0.75)]


def parts_of(method):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    layers = LayerOptions(distribution="uniform", dense_in_budget=method.name != "sr-ste")
    return (
        model,
        optimizer,
        Sparsifier(model, optimizer, method=method, total_steps=400, layers=layers),
    )


def train_some(parts, seed):
    torch.manual_seed(seed)
    for _ in range(5):
        one_step(*parts)


def assert_equal_states(parts, others):
    for name, tensor in parts[0].state_dict().items():
        assert torch.equal(tensor, others[0].state_dict()[name]), name
    layers, wanted = (each[2].state_dict()["layers"] for each in (parts, others))
    for name, layer in layers.items():
        for key in layer.keys() & {"mask", "dense", "trained"}:
            assert torch.equal(layer[key], wanted[name][key]), (name, key)


@pytest.mark.parametrize("method", DENSE_BEHIND_MASK)
@pytest.mark.parametrize("masked", [True, False])
def test_weights_loaded_for_an_evaluation_leave_the_dense_ones_behind_the_mask(method, masked):
    plain, parts = parts_of(method), parts_of(method)
    for each in (plain, parts):
        train_some(each, 0)
    model, _, sparsifier = parts
    kept, average = copy.deepcopy(model.state_dict()), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in average.parameters():
            parameter += 0.5
    if masked:
        sparsifier.mask_(average)
    model.load_state_dict(average.state_dict())
    model.eval()
    model(torch.randn(8, 40))
    model.train()
    model.load_state_dict(kept)
    for each in (plain, parts):
        train_some(each, 1)
    assert_equal_states(plain, parts)


@pytest.mark.parametrize("method", DENSE_BEHIND_MASK)
def test_loading_some_weights_leaves_the_dense_ones_of_other_layers(method):
    parts = parts_of(method)
    train_some(parts, 0)
    before = parts[2].state_dict()["layers"]["0.weight"]["dense"]
    parts[0].load_state_dict({"2.weight": torch.randn(32, 64)}, strict=False)
    after = parts[2].state_dict()["layers"]
    assert torch.equal(after["0.weight"]["dense"], before)
    assert torch.equal(after["2.weight"]["dense"], parts[0][2].weight)


@pytest.mark.parametrize("method", [*DENSE_BEHIND_MASK, RigL(0.75)])
def test_model_optimizer_and_sparsifier_resume_in_either_order(method):
    plain = parts_of(method)
    train_some(plain, 0)
    saved = [copy.deepcopy(part.state_dict()) for part in plain]
    train_some(plain, 1)
    for order in ([0, 1, 2], [2, 1, 0]):
        parts = parts_of(method)
        for index in order:
            parts[index].load_state_dict(copy.deepcopy(saved[index]))
        train_some(parts, 1)
        assert_equal_states(plain, parts)


def test_weights_that_are_assigned_later_are_refused():
    parts = parts_of(RigL(0.75))
    one_step(*parts)
    parts[0].load_state_dict(copy.deepcopy(parts[0].state_dict()), assign=True)
    with pytest.raises(RuntimeError, match=r"'0\.weight' is another parameter.*assign=True"):
        one_step(*parts)


@pytest.mark.parametrize("method", DENSE_BEHIND_MASK)
def test_loaded_weights_become_the_dense_ones_behind_the_mask(method):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    layers = LayerOptions(distribution="uniform", dense_in_budget=method.name != "sr-ste")
    sparsifier = Sparsifier(model, optimizer, method=method, total_steps=400, layers=layers)
    state = trained_state(model)
    model.load_state_dict(state)
    one_step(model, optimizer, sparsifier)
    for name, mask in sparsifier.masks.items():
        dense = sparsifier.state_dict()["layers"][name]["dense"]
        assert torch.equal(dense, state[name])
        assert torch.equal(model.get_parameter(name), state[name] * mask)
        if method.name == "top-kast":  # the mask is chosen again although its step has not come
            assert float(state[name][mask].abs().min()) >= float(state[name][~mask].abs().max())
