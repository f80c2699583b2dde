"""Optimizers around optimizers: the inner one is found, its steps counted, its state reset."""

import types
from collections import defaultdict

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fanin.trainer import AST, SRSTE, LayerOptions, Sparsifier, SRigL, TopKAST
from fanin.trainer.wrapped_optimizers import optimizer_chain

STEPS, EVERY = 22, 5


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimization as its authors' code has it: two steps, or a closure."""

    def __init__(self, parameters, rho=0.05):
        super().__init__(parameters, {"rho": rho})
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=0.05, momentum=0.9)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["old_p"] = parameter.data.clone()
                parameter.add_(parameter.grad, alpha=group["rho"] / float(norm))

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data = self.state[parameter]["old_p"]
        self.base_optimizer.step()

    def step(self, closure):
        self.first_step()
        self.zero_grad()
        with torch.enable_grad():
            closure()
        self.second_step()


class Lookahead(torch.optim.Optimizer):
    """Slow weights that follow every third step; without hooks, as of torch-optimizer."""

    def __init__(self, optimizer, slow):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.state, self.counter = defaultdict(dict), 0
        self.slow = slow  # slow weights that no Sparsifier can find

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        self.counter += 1
        for parameter in self.param_groups[0]["params"]:
            state = self.slow[parameter] if self.slow is not None else self.state[parameter]
            slow = state.setdefault("slow_param", parameter.detach().clone())
            if self.counter % 3 == 0:
                slow.lerp_(parameter, 0.5)
                parameter.copy_(slow)


class Passing(torch.optim.Optimizer):
    """Passes everything on, as Accelerate's does."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)

    def step(self):
        self.optimizer.step()


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).double()


def loss(model, step):
    inputs = torch.randn(16, 32, generator=torch.Generator().manual_seed(step)).double()
    return (model(inputs) - inputs[:, :8]).square().mean()


def plain_step(model, optimizer, step):
    loss(model, step).backward()
    optimizer.step()


def two_steps(model, optimizer, step):
    loss(model, step).backward()
    optimizer.first_step()
    optimizer.zero_grad()
    loss(model, step).backward()
    optimizer.second_step()


def closure_step(model, optimizer, step):
    def closure():
        loss(model, step).backward()

    closure()
    optimizer.step(closure)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def zero_redundancy(model):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)


CASES = {
    "sam in two steps": (lambda m: Sam(m.parameters()), two_steps),
    "sam with a closure": (lambda m: Sam(m.parameters()), closure_step),
    "lookahead": (lambda m: Lookahead(adam(m), None), plain_step),
    "lookahead, hidden": (lambda m: Lookahead(adam(m), defaultdict(dict)), plain_step),
    "passing on": (lambda m: Passing(adam(m)), plain_step),
    "twice": (lambda m: Passing(Lookahead(adam(m), None)), plain_step),
    "zero redundancy": (zero_redundancy, plain_step),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("process_group")
def test_masks_hold_and_the_inner_state_is_reset(name):
    make, take_step = CASES[name]
    model = net()
    optimizer = make(model)
    options = {"total_steps": 40, "update_every": EVERY}
    sparsifier = Sparsifier(model, optimizer, method=SRigL(0.8, gamma_sal=0.9), **options)
    inner = optimizer_chain(optimizer)[-1]
    updates = 0
    for step in range(STEPS):
        before = {key: mask.clone() for key, mask in sparsifier.masks.items()}
        take_step(model, optimizer, step)
        updated = sparsifier.step() is not None
        updates += updated
        optimizer_chain(optimizer)[-1].zero_grad()
        for key, mask in sparsifier.masks.items():
            weight, counts = model.get_parameter(key), mask.sum(1)
            assert len(set(counts[counts > 0].tolist())) == 1
            assert bool((weight[~mask] == 0).all())
            for value in inner.state[weight].values():
                if value.shape == mask.shape:
                    assert bool((value[~mask] == 0).all())
                    assert bool((value[mask & ~before[key]] == 0).all())
                    assert bool((value[mask & before[key]] != 0).any())
    assert (sparsifier.step_count, updates) == (STEPS, 4)


@pytest.mark.parametrize("take_step", [two_steps, closure_step])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_growth_sees_the_gradient_of_sams_second_pass_only(take_step, set_to_none):
    seen = []

    class Spy(SRigL):
        def update(self, layer, plan):
            seen.append(layer.gradient.clone())
            return super().update(layer, plan)

    model, twin = net(), net()
    optimizer = Sam(model.parameters())
    sparsifier = Sparsifier(model, optimizer, method=Spy(0.8), total_steps=40, update_every=1)
    twin.load_state_dict(model.state_dict())
    masks = list(sparsifier.masks.values())
    optimizer.zero_grad = lambda: torch.optim.Optimizer.zero_grad(optimizer, set_to_none)
    take_step(model, optimizer, 0)
    sparsifier.step()
    # By hand: the perturbation uses masked gradients, the second pass gives dense ones.
    loss(twin, 0).backward()
    for layer, mask in zip((twin[0], twin[2]), masks, strict=True):
        layer.weight.grad.mul_(mask)
    norm = torch.stack([p.grad.norm() for p in twin.parameters()]).norm()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(parameter.grad, alpha=0.05 / float(norm))
    twin.zero_grad()
    loss(twin, 0).backward()
    assert torch.allclose(seen[0], twin[0].weight.grad, rtol=1e-9, atol=1e-14)
    assert torch.allclose(seen[1], twin[2].weight.grad, rtol=1e-9, atol=1e-14)


def test_several_optimizers_inside_one_are_refused_by_name():
    model = net()

    class Both(torch.optim.Optimizer):
        def __init__(self):
            self.first = torch.optim.SGD(model[0].parameters(), lr=0.1)
            self.second = torch.optim.SGD(model[2].parameters(), lr=0.1)

    reason = r"Both holds several optimizers \(optimizer.first, optimizer.second\)"
    with pytest.raises(TypeError, match=reason):
        Sparsifier(model, Both(), method=SRigL(0.8), total_steps=400)


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(TypeError, match=r"SimpleNamespace has no step hooks .*; pass the torch"):
        Sparsifier(net(), types.SimpleNamespace(), method=SRigL(0.8), total_steps=400)


def test_an_inner_optimizer_takes_one_sparsifier():
    model = net()
    inner = adam(model)
    Sparsifier(model, Passing(inner), method=SRigL(0.8), total_steps=400)
    with pytest.raises(ValueError, match="already has a Sparsifier"):
        Sparsifier(model, inner, method=SRigL(0.8), total_steps=400)


@pytest.mark.parametrize("kind", ["sr-ste", "top-kast"])
def test_lookahead_moves_the_dense_weights_under_the_mask(kind):
    torch.manual_seed(0)
    model = nn.Linear(16, 6, bias=False).double()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    method = SRSTE("1:4", decay=0.0) if kind == "sr-ste" else TopKAST(0.75, 0.0, decay=0.0)
    optimizer = Lookahead(inner, None)
    layers = LayerOptions(distribution="uniform", dense_in_budget=kind != "sr-ste")
    sparsifier = Sparsifier(model, optimizer, method=method, total_steps=40, layers=layers)
    dense = sparsifier.state_dict()["layers"]["weight"]["dense"].clone()
    mask, slow, changed = sparsifier.masks["weight"].clone(), None, 0
    held = dense * mask
    for step in range(1, 31):
        inputs, wanted = (
            torch.randn(n, k, generator=torch.Generator().manual_seed(step)).double()
            for n, k in ((8, 16), (8, 6))
        )
        (model(inputs) - wanted).square().mean().backward()
        optimizer.step()
        sparsifier.step()
        inner.zero_grad()

        gradient = 2 / 48 * (inputs @ held.T - wanted).T @ inputs
        dense = torch.where(mask, held, dense) - 0.1 * gradient
        before, groups = mask, dense.abs().reshape(-1, 4 if kind == "sr-ste" else dense.numel())
        kept = groups.topk(1 if kind == "sr-ste" else dense.numel() // 4, 1).indices
        mask = torch.zeros_like(groups, dtype=torch.bool).scatter_(1, kept, True).view(6, 16)
        held = dense * mask
        changed += not torch.equal(before, mask)
        slow = held.clone() if slow is None else slow
        if step % 3 == 0:
            slow = slow + 0.5 * (held - slow)
            held = slow * mask
        assert torch.equal(sparsifier.masks["weight"], mask)
        assert torch.allclose(model.weight, held, rtol=1e-9, atol=1e-12)
    assert changed > 5


@pytest.mark.parametrize("method", [SRSTE("1:4"), TopKAST(0.75), AST(0.75)])
def test_methods_with_dense_weights_hold_their_masks_under_wrappers(method):
    for make, take_step in (
        (lambda m: Lookahead(adam(m), None), plain_step),
        (lambda m: Sam(m.parameters()), two_steps),
    ):
        model = net()
        optimizer = make(model)
        layers = LayerOptions(distribution="uniform", dense_in_budget=method.name != "sr-ste")
        sparsifier = Sparsifier(
            model, optimizer, method=method, total_steps=40, update_every=4, layers=layers
        )
        first = loss(model, 0).item()
        for step in range(STEPS):
            take_step(model, optimizer, step)
            sparsifier.step()
            optimizer_chain(optimizer)[-1].zero_grad()
            for key, mask in sparsifier.masks.items():
                assert bool((model.get_parameter(key)[~mask] == 0).all())
        assert sparsifier.step_count == STEPS
        assert loss(model, 0).item() < first


@pytest.mark.parametrize("method", [SRSTE("1:4"), TopKAST(0.75), AST(0.75)])
def test_dense_weights_that_another_process_trains_are_refused(method):
    """As ZeroRedundancyOptimizer leaves them; it sends the sparse weights only."""
    model = net()
    optimizer = Lookahead(adam(model), None)
    optimizer.param_groups = adam(model).param_groups
    optimizer.optimizer.param_groups[0]["params"] = list(model[0].parameters())
    layers = LayerOptions(distribution="uniform", dense_in_budget=False)
    options = {"method": method, "total_steps": 40, "update_every": 4, "layers": layers}
    with pytest.raises(ValueError, match=r"'2.weight' is trained by another process"):
        Sparsifier(model, optimizer, **options)
