"""The invariants under mixed precision, accumulation, clipping, fused optimizers, compilation."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fanin.trainer import MEST, SRSTE, RigL, Sparsifier, SRigL
from fanin.trainer.gradient_window import GradientWindow
from fanin.trainer.masking import apply_bits_, mask_bits

from ._options import grouped

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.002, momentum=0.9, centered=True),
    "fused-sgd": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, fused=True),
    "fused-adam": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "fused-adamw": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}
METHODS = {"srigl": SRigL(0.7, gamma_sal=0.9), "rigl": RigL(0.7)}


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 16, 24), nn.ReLU(), nn.Linear(24, 4),
    )  # fmt: skip


def batch(step):
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(16, 2, 4, 4, generator=generator)
    return inputs, (inputs[:, 0, 0, 0] > 0).long() + 2 * (inputs[:, 1, 0, 0] > 0).long()


def attach(model, optimizer, method=METHODS["srigl"], **options):
    defaults = {"total_steps": 40, "update_every": 4, "gradient_window": 2}
    return Sparsifier(model, optimizer, method=method, **grouped(**defaults | options))


def check(model, optimizer, sparsifier, constant):
    parameters = dict(model.named_parameters())
    for name, mask in sparsifier.masks.items():
        weight, counts = parameters[name], mask.flatten(1).sum(1)
        assert bool(torch.isfinite(weight).all())
        assert bool((weight[~mask] == 0).all())
        if constant:
            assert len(set(counts[counts > 0].tolist())) == 1
        for value in optimizer.state[weight].values():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                assert bool((value[~mask] == 0).all())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_invariants_hold_under_scaling_overflows_accumulation_clipping_and_compilation(
    optimizer_name, method
):
    model = model_of()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=6)
    sparsifier = attach(compiled, optimizer, METHODS[method], grad_scaler=scaler)
    updates, overflows = 0, (3, 9, 10)
    for step in range(32):
        for part in range(2):
            inputs, labels = batch(2 * step + part)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = cross_entropy(compiled(inputs), labels) / 2
            scaler.scale(loss).backward()
        if step in overflows:
            model[4].weight.grad[sparsifier.masks["4.weight"]] = torch.inf
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = copy.deepcopy(model.state_dict())
        scaler.step(optimizer)
        scaler.update()
        if step in overflows:
            assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        updates += sparsifier.step() is not None
        optimizer.zero_grad()
        check(model, optimizer, sparsifier, constant=method == "srigl")
    assert sparsifier.step_count == 32 - len(overflows)
    assert updates == 7


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_windows_hold_unscaled_gradients(fused, unscale):
    seen = {}

    class Spy(RigL):
        def grow_score(self, layer):
            seen[layer.weight.shape] = layer.gradient.clone()
            return super().grow_score(layer)

    def averages(scaler):
        seen.clear()
        model = model_of().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=fused)
        sparsifier = attach(
            model,
            optimizer,
            Spy(0.7),
            gradient_window=3,
            grad_scaler=scaler,
            distribution="uniform",
        )
        for step in range(4):
            loss = cross_entropy(model(batch(step)[0].double()), batch(step)[1])
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                if unscale:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update(new_scale=2.0 ** (8 - step))  # another scale within the window
            sparsifier.step()
            optimizer.zero_grad()
        return dict(seen)

    plain, scaled = averages(None), averages(torch.amp.GradScaler("cpu", init_scale=512.0))
    assert len(plain) == 3
    for shape, gradient in plain.items():
        assert torch.allclose(gradient, scaled[shape], rtol=1e-9, atol=1e-15)


def test_non_finite_gradients_of_pruned_positions_leave_no_trace():
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sparsifier = attach(model, optimizer)
    mask, weight = sparsifier.masks["4.weight"], model[4].weight

    class Poison(torch.autograd.Function):
        @staticmethod
        def forward(_, tensor):
            return tensor.clone()

        @staticmethod
        def backward(_, grad):
            poisoned = grad.clone()
            poisoned[~mask] = torch.inf
            poisoned[-1][~mask[-1]] = torch.nan
            return poisoned

    hidden = torch.relu(model[:4](batch(0)[0]) @ Poison.apply(weight).T)
    cross_entropy(model[6](hidden), batch(0)[1]).backward()
    optimizer.step()
    sparsifier.step()
    check(model, optimizer, sparsifier, constant=True)
    assert bool((weight[mask] != 0).any())


@pytest.mark.parametrize("method", METHODS)
def test_growth_sees_every_part_of_a_batch_though_step_is_called_after_each(method):
    """Lightning's callback does so, and loops with Accelerate's ``accumulate``."""
    trained = []
    for after_each in (True, False):
        model = model_of().double()
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        sparsifier = attach(model, optimizer, METHODS[method])
        for part in range(36):
            inputs, labels = batch(part)
            cross_entropy(model(inputs.double()), labels).backward()
            if last := part % 3 == 2:
                optimizer.step()
            if last or after_each:
                sparsifier.step()
            if last:
                optimizer.zero_grad()
        trained.append([*sparsifier.masks.values(), *model.state_dict().values()])
    assert sparsifier.step_count == 12
    assert all(torch.equal(one, other) for one, other in zip(*trained, strict=True))


def test_a_gradient_counts_though_its_sum_exceeds_its_type():
    gradient = torch.full((8,), 6e4, dtype=torch.float16)
    window = GradientWindow()
    window.observe(gradient, torch.ones(8, dtype=torch.bool))
    assert bool(window.pending_is_finite())
    window.observe(
        torch.tensor([torch.inf] * 8, dtype=torch.float16), torch.ones(8, dtype=torch.bool)
    )
    assert not window.pending_is_finite()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masking_zeroes_anything_and_changes_nothing_else(dtype):
    values = torch.tensor([1.5, -0.0, torch.inf, torch.nan, -2.0, torch.nan], dtype=dtype)
    mask = torch.tensor([True, True, False, False, False, True])
    tensor = values.clone()
    apply_bits_(tensor, mask_bits(mask, dtype))
    expected = torch.where(mask, values, torch.zeros((), dtype=dtype))
    assert torch.equal(tensor.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.equal(torch.signbit(tensor), torch.signbit(expected))
    strided = torch.full((3, 4), torch.nan, dtype=dtype).T
    apply_bits_(strided, mask_bits(torch.zeros(4, 3, dtype=torch.bool), dtype))
    assert bool((strided == 0).all())


def test_sr_ste_decays_unscaled_dense_weights_under_a_scaler_with_fused_optimizers():
    weights = []
    for scaled in (False, True):
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
        sparsifier = attach(
            model, optimizer, SRSTE("1:2", decay=0.1), distribution="uniform",
            dense_in_budget=False,
        )  # fmt: skip
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=scaled)
        for step in range(5):
            scaler.scale(cross_entropy(model(batch(step)[0]), batch(step)[1])).backward()
            scaler.step(optimizer)
            scaler.update()
            sparsifier.step()
            optimizer.zero_grad()
        weights.append(sparsifier.state_dict()["layers"]["4.weight"]["dense"])
    assert torch.allclose(*weights, rtol=1e-4, atol=1e-6)


def test_channels_last_models_train():
    model = model_of().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparsifier = attach(model, optimizer, MEST(0.7))
    for step in range(12):
        inputs = batch(step)[0].to(memory_format=torch.channels_last)
        cross_entropy(model(inputs), batch(step)[1]).backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()
        check(model, optimizer, sparsifier, constant=False)
