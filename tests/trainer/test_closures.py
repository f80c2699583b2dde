"""Methods with dense weights behind the sparse ones, and passes within an optimizer's step."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fanin.trainer import AST, SRSTE, LayerOptions, RigL, Sparsifier, TopKAST

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


class Named(torch.optim.SGD):
    """Calls its closure something else, and gives it an argument."""

    def step(self, factor, forward_and_backward):
        with torch.enable_grad():
            loss = factor * forward_and_backward(backward=True)
        super().step()
        return loss


class Looking(torch.optim.SGD):
    """Calls its closure again to see the loss only, without gradients."""

    def step(self, closure):
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            loss = closure()
        super().step()
        return loss


class Restoring(torch.optim.SGD):
    """Updates the weights that it had before its closure, as sharpness-aware optimizers do."""

    @torch.no_grad()
    def step(self, closure):
        parameters = self.param_groups[0]["params"]
        before = [parameter.clone() for parameter in parameters]
        with torch.enable_grad():
            loss = closure()
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
        super().step()
        return loss


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


def steps_beside_plain_ones(method, optimizer_of, step_of):
    """Train with a step of closures and, beside it, with plain gradient descent: they are equal."""
    model, optimizer, sparsifier = attach(method, optimizer_of)
    plain, other, reference = attach(method, lambda p: torch.optim.SGD(p, lr=0.05))
    for step in range(8):
        step_of(optimizer, closure_of(model, optimizer, step))
        closure_of(plain, other, step)()
        other.step()
        sparsifier.step()
        reference.step()
        assert_equal(model, plain)
        for name, layer in sparsifier.state_dict()["layers"].items():
            assert torch.equal(layer["dense"], reference.state_dict()["layers"][name]["dense"])


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


@every_method
@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_may_have_any_place_name_and_arguments(method, by_name):
    def step(optimizer, closure):
        def with_argument(*, backward):
            assert backward
            return closure()

        if by_name:
            optimizer.step(1.0, forward_and_backward=with_argument)
        else:
            optimizer.step(1.0, with_argument)

    steps_beside_plain_ones(method, lambda p: Named(p, lr=0.05), step)


@every_method
def test_a_call_without_a_backward_pass_adds_nothing_to_the_gradients(method):
    def step(optimizer, closure):
        optimizer.step(lambda: closure() if torch.is_grad_enabled() else None)

    steps_beside_plain_ones(method, lambda p: Looking(p, lr=0.05), step)


@every_method
def test_an_optimizer_that_reads_weights_before_its_closure_reads_dense_ones(method):
    steps_beside_plain_ones(method, lambda p: Restoring(p, lr=0.05), Restoring.step)


def test_every_call_sees_the_mask_though_the_optimizer_remembers_another():
    """LBFGS goes in directions that it learned before the update."""
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4)
    options = {"total_steps": 40, "update_every": 2}
    sparsifier = Sparsifier(model, optimizer, method=RigL(0.75), **options)
    for step in range(10):
        masks, seen = {name: mask.clone() for name, mask in sparsifier.masks.items()}, []
        optimizer.step(closure_of(model, optimizer, step, seen))
        sparsifier.step()
        for one in seen:
            assert all(bool((one[name][~mask] == 0).all()) for name, mask in masks.items())


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


@pytest.mark.parametrize("method", [*METHODS, RigL(0.75)], ids=lambda method: method.name)
def test_the_step_after_a_closure_that_failed_is_as_if_it_had_not_been(method):
    """Whoever skips a batch that does not fit calls no ``sparsifier.step()`` for it."""
    model, optimizer, sparsifier = attach(method, momentum)
    plain, other, reference = attach(method, momentum)
    for step in range(8):
        if step == 3:
            with pytest.raises(ZeroDivisionError):
                optimizer.step(lambda: 1 / 0)
        optimizer.step(closure_of(model, optimizer, step))
        closure_of(plain, other, step)()
        other.step()
        sparsifier.step()
        reference.step()
        assert_equal(model, plain)
    assert sparsifier.step_count == 8


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
