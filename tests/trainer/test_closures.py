"""Methods with dense weights behind the sparse ones, and passes within an optimizer's step."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fanin.trainer import AST, SRSTE, LayerOptions, Sparsifier, TopKAST

METHODS = [SRSTE("2:4", decay=0.01), TopKAST(0.75, decay=0.01), AST(0.75, others=(0.5,))]
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


def net():
    torch.manual_seed(0)
    layers = [nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)]
    return nn.Sequential(*layers).double()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(24, 16, generator=generator, dtype=torch.float64)
    return inputs, inputs[:, :4].argmax(1)


class Twice(torch.optim.Optimizer):
    """Two steps of gradient descent on what its closure gives each time."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.05})

    def step(self, closure):
        for _ in range(2):
            with torch.enable_grad():
                loss = closure()
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.add_(parameter.grad, alpha=-0.05)
        return loss


class Deaf(torch.optim.SGD):
    """Takes a closure and does not call it."""

    def step(self, closure=None):  # noqa: ARG002
        return super().step()


def attach(method, optimizer_of, **schedule):
    model = net()
    optimizer = optimizer_of(model.parameters())
    layers = LayerOptions(distribution="uniform", dense_in_budget=method.name != "sr-ste")
    options = {"total_steps": 40, "update_every": 4, "layers": layers, **schedule}
    return model, optimizer, Sparsifier(model, optimizer, method=method, **options)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def closure_of(model, optimizer, step, seen=None):
    inputs, labels = batch(step)

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        if seen is not None:
            seen.append(copy.deepcopy(model.state_dict()))
        loss.backward()
        return loss

    return closure


def assert_equal(one, other):
    wanted = other.state_dict()
    for name, value in one.state_dict().items():
        assert torch.equal(value, wanted[name]), name


@every_method
@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_trains_as_a_backward_pass_before_the_step_does(method, by_name):
    model, optimizer, sparsifier = attach(method, momentum)
    plain, other, reference = attach(method, momentum)
    for step in range(24):
        closure = closure_of(model, optimizer, step)
        loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        assert loss == closure_of(plain, other, step)()
        other.step()
        sparsifier.step()
        reference.step()
        assert_equal(model, plain)
    for name, mask in sparsifier.masks.items():
        assert torch.equal(mask, reference.masks[name])
        dense = [one.state_dict()["layers"][name]["dense"] for one in (sparsifier, reference)]
        assert torch.equal(*dense)
        assert bool((dense[0][~mask] != 0).any())
    assert sparsifier.step_count == 24


def test_each_call_of_a_closure_sees_sparse_weights_and_moves_dense_ones():
    """Two calls in a step are two steps while the mask stays."""
    method = TopKAST(0.75, mask_every=1000, decay=0.01)
    model, optimizer, sparsifier = attach(method, Twice)
    plain, other, reference = attach(method, lambda p: torch.optim.SGD(p, lr=0.05))
    seen = []
    for step in range(10):
        optimizer.step(closure_of(model, optimizer, step, seen))
        sparsifier.step()
        for _ in range(2):
            closure_of(plain, other, step)()
            other.step()
            reference.step()
        assert_equal(model, plain)
    assert len(seen) == 20
    for name, mask in sparsifier.masks.items():
        assert all(bool((one[name][~mask] == 0).all()) for one in seen)


@every_method
def test_every_call_of_a_closure_sees_the_mask(method):
    model, optimizer, sparsifier = attach(method, lambda p: torch.optim.LBFGS(p, 0.1, max_iter=4))
    seen = []
    for step in range(6):
        masks = {name: mask.clone() for name, mask in sparsifier.masks.items()}
        before = len(seen)
        optimizer.step(closure_of(model, optimizer, step, seen))
        sparsifier.step()
        assert len(seen) - before > 1
        if method.name != "ast":  # whose turns have other masks
            for one in seen[before:]:
                assert all(bool((one[name][~mask] == 0).all()) for name, mask in masks.items())
        for name, mask in sparsifier.masks.items():
            assert bool((model.get_parameter(name)[~mask] == 0).all())


@every_method
def test_a_closure_that_is_not_called_is_an_error(method):
    model, optimizer, _ = attach(method, lambda p: Deaf(p, lr=0.1))
    closure = closure_of(model, optimizer, 0)
    closure()
    with pytest.raises(RuntimeError, match="did not call the closure"):
        optimizer.step(closure)


@every_method
def test_after_a_step_that_failed_the_model_is_sparse_again(method):
    """Out of memory, say, after the dense weights were put in place."""
    model, optimizer, sparsifier = attach(method, momentum)
    for step in range(3):
        closure_of(model, optimizer, step)()
        optimizer.step()
        sparsifier.step()
    kept = copy.deepcopy(sparsifier.state_dict()["layers"])
    weights = copy.deepcopy(model.state_dict())
    closure_of(model, optimizer, 3)()
    handle = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    handle.remove()
    sparsifier.step()
    for name, mask in sparsifier.masks.items():
        assert torch.equal(model.get_parameter(name), weights[name])
        assert torch.equal(sparsifier.state_dict()["layers"][name]["dense"], kept[name]["dense"])
        assert bool((model.get_parameter(name)[~mask] == 0).all())


@every_method
def test_a_backward_pass_within_a_step_without_a_closure_is_refused(method):
    model, optimizer, _ = attach(method, momentum)
    closure = closure_of(model, optimizer, 0)
    closure()
    optimizer.register_step_pre_hook(lambda *_: closure())
    with pytest.raises(RuntimeError, match="a backward pass used them; call backward"):
        optimizer.step()
