import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fanin.trainer import Dense, Sparsifier, SRigL

from ._options import grouped

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


def small_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 16, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip


def batch(step, size=32):
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(size, 1, 6, 6, generator=generator)
    return inputs, torch.randint(10, (size,), generator=generator)


def attach(model, optimizer, **options):
    defaults = {
        "method": SRigL(sparsity=0.8, gamma_sal=0.9),
        "total_steps": 40,
        "update_every": 5,
        "distribution": "uniform",
    }
    return Sparsifier(model, optimizer, **grouped(**defaults | options))


def train_step(model, optimizer, sparsifier, step):
    inputs, labels = batch(step)
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    update = sparsifier.step()
    optimizer.zero_grad()
    return update


def check_sparse(model, optimizer, sparsifier):
    parameters = dict(model.named_parameters())
    for name, mask in sparsifier.masks.items():
        counts = mask.flatten(1).sum(1)
        assert len(set(counts[counts > 0].tolist())) == 1
        weight = parameters[name]
        assert bool((weight[~mask] == 0).all())
        for key, value in optimizer.state[weight].items():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                assert bool((value[~mask] == 0).all()), f"{key} of {name}"


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_weights_and_optimizer_state_stay_sparse_through_updates(optimizer_name):
    model = small_model()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    sparsifier = attach(model, optimizer)
    updates = 0
    for step in range(40):
        update = train_step(model, optimizer, sparsifier, step)
        check_sparse(model, optimizer, sparsifier)
        updates += update is not None
    assert updates == 5  # steps 5, 10, …, 25; T_end is 30
    assert sparsifier.step_count == 40


@pytest.mark.parametrize("optimizer_name", ["momentum", "amsgrad", "rmsprop"])
def test_grown_weights_start_at_zero_with_an_empty_optimizer_state(optimizer_name):
    model = small_model()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    sparsifier = attach(model, optimizer)
    for step in range(5):
        before = {name: mask.clone() for name, mask in sparsifier.masks.items()}
        update = train_step(model, optimizer, sparsifier, step)
    assert update is not None
    parameters = dict(model.named_parameters())
    for name, mask in sparsifier.masks.items():
        grown, weight = mask & ~before[name], parameters[name]
        assert int(grown.sum()) == update.layers[name].grown > 0
        assert bool((weight[grown] == 0).all())
        buffers = [
            v for v in optimizer.state[weight].values() if getattr(v, "shape", 0) == weight.shape
        ]
        assert buffers
        for buffer in buffers:
            assert bool((buffer[grown] == 0).all())
            assert bool((buffer[mask & ~grown] != 0).any())


def test_growth_follows_the_dense_gradient_of_the_update_step():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sparsifier = attach(model, optimizer, method=SRigL(sparsity=0.8, gamma_sal=0))
    for step in range(4):
        train_step(model, optimizer, sparsifier, step)
    old = {name: mask.clone() for name, mask in sparsifier.masks.items()}
    twin = copy.deepcopy(model)
    inputs, labels = batch(4)
    cross_entropy(twin(inputs), labels).backward()
    train_step(model, optimizer, sparsifier, 4)
    for name, parameter in twin.named_parameters():
        if name not in old:
            continue
        gradient = parameter.grad.flatten(1).abs()
        before, after = old[name].flatten(1), sparsifier.masks[name].flatten(1)
        for row in range(len(gradient)):
            grown, idle = after[row] & ~before[row], ~after[row] & ~before[row]
            if grown.any():
                assert gradient[row][grown].min() >= gradient[row][idle].max()


def gradient_at_update(window, micro_batches=1, **options):
    """Averaged dense gradients that the first update sees, and the same by hand."""
    model = small_model().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = {}

    class Spy(SRigL):
        def update(self, layer, change):
            seen[layer.weight] = layer.gradient.clone()
            return super().update(layer, change)

    method = Spy(sparsity=0.8, gamma_sal=0.9)
    sparsifier = attach(model, optimizer, gradient_window=window, method=method, **options)
    by_hand = dict.fromkeys(model.parameters(), 0)
    for step in range(5):
        twin = copy.deepcopy(model)
        for part in range(micro_batches):
            inputs, labels = batch(10 * step + part)
            for copy_ in (model, twin):
                cross_entropy(copy_(inputs.double()), labels).backward()
        if step >= 5 - window:
            for weight, dense in zip(model.parameters(), twin.parameters(), strict=True):
                by_hand[weight] = by_hand[weight] + dense.grad / window
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()
    assert len(seen) == 3
    return [(gradient, by_hand[weight]) for weight, gradient in seen.items()]


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_window_averages_the_dense_gradients_of_its_optimizer_steps(window, micro_batches):
    for seen, expected in gradient_at_update(window, micro_batches):
        assert torch.allclose(seen, expected, rtol=1e-12, atol=1e-15)


def test_steps_with_non_finite_gradients_do_not_enter_the_window():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sparsifier = attach(model, optimizer, gradient_window=2)
    for step in range(5):
        inputs, labels = batch(step)
        loss = cross_entropy(model(inputs), labels)
        (loss * (float("inf") if step == 3 else 1)).backward()
        for parameter in model.parameters():
            parameter.grad.nan_to_num_(0, 0, 0)
        optimizer.step()
        update = sparsifier.step()
        optimizer.zero_grad()
    assert update is not None
    assert update.skipped == ()
    check_sparse(model, optimizer, sparsifier)


def test_an_update_without_any_finite_gradient_is_reported_and_changes_nothing():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sparsifier = attach(model, optimizer)
    before = {name: mask.clone() for name, mask in sparsifier.masks.items()}
    for step in range(4):
        train_step(model, optimizer, sparsifier, step)
    inputs, labels = batch(4)
    (cross_entropy(model(inputs), labels) * float("nan")).backward()
    for parameter in model.parameters():
        parameter.grad.zero_()
    optimizer.step()
    with pytest.warns(RuntimeWarning, match=r"step 5: no finite gradient .* 0.weight"):
        update = sparsifier.step()
    assert set(update.skipped) == set(before)
    assert all(torch.equal(mask, before[name]) for name, mask in sparsifier.masks.items())


def test_steps_that_the_optimizer_does_not_make_are_not_counted():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sparsifier = attach(model, optimizer)
    for step in range(4):
        train_step(model, optimizer, sparsifier, step)
    for step in range(3):  # as when a gradient scaler finds an overflow
        inputs, labels = batch(step)
        cross_entropy(model(inputs), labels).backward()
        assert sparsifier.step() is None
        optimizer.zero_grad()
    assert sparsifier.step_count == 4
    assert train_step(model, optimizer, sparsifier, 4).step == 5


def test_a_missed_step_call_is_an_error():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attach(model, optimizer)
    for _ in range(5):
        optimizer.step()
    with pytest.raises(RuntimeError, match=r"step 5 was missed: call sparsifier.step\(\)"):
        optimizer.step()


@pytest.mark.parametrize("gamma_sal", [0.95, 30])
def test_the_head_keeps_all_its_classes_unless_asked(gamma_sal):
    active = {}
    for protected in (None, ()):
        model = small_model()
        model[5].weight.data[6:] = 0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        sparsifier = attach(
            model, optimizer, method=SRigL(0.8, gamma_sal), no_ablation=protected, keep_weights=True
        )
        for step in range(40):
            train_step(model, optimizer, sparsifier, step)
        active[protected] = {row.name: row.active for row in sparsifier.summary()}
    assert active[None]["5.weight"] == 10
    assert active[None]["3.weight"] < 32
    assert active[()]["5.weight"] < 10


def test_no_ablation_protects_the_named_layers_instead():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    sparsifier = attach(model, optimizer, no_ablation=["3", "5.weight"])
    for step in range(40):
        train_step(model, optimizer, sparsifier, step)
    active = [row.active for row in sparsifier.summary()]
    assert active[1:] == [32, 10]
    assert active[0] < 12


def test_summary_reports_asked_and_achieved_density():
    model = small_model()
    sparsifier = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), dense_layers=["5"])
    conv, hidden, head = sparsifier.summary()
    assert (conv.name, conv.shape, conv.fan_in, conv.active) == ("0.weight", (12, 1, 3, 3), 1, 12)
    assert conv.density == pytest.approx(1 / 9)
    assert hidden.asked_density == pytest.approx(0.2 - 0.8 * 320 / (12 * 9 + 32 * 192))
    assert hidden.density == hidden.fan_in / 192 <= hidden.asked_density
    assert (head.sparse, head.density, head.fan_in) == (False, 1.0, 32)
    held = 12 + 32 * hidden.fan_in + 320
    assert sparsifier.summary().density == pytest.approx(held / (12 * 9 + 32 * 192 + 320))
    assert "3.weight  32×192" in str(sparsifier.summary())


def test_itop_rate_counts_every_weight_that_was_ever_active():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sparsifier = attach(model, optimizer, dense_layers=["5"])
    ever = {name: mask.clone() for name, mask in sparsifier.masks.items()}
    for step in range(40):
        train_step(model, optimizer, sparsifier, step)
        for name, mask in sparsifier.masks.items():
            ever[name] |= mask
    explored = sum(int(mask.sum()) for mask in ever.values()) + 320
    assert sparsifier.itop_rate == pytest.approx(explored / (12 * 9 + 32 * 192 + 320))
    assert sparsifier.itop_rate > sparsifier.summary().density


def test_dense_training_has_no_masks_and_changes_nothing():
    model, twin = small_model(), small_model()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, twin)]
    sparsifier = Sparsifier(model, optimizers[0], method=Dense(), total_steps=10)
    for step in range(10):
        assert train_step(model, optimizers[0], sparsifier, step) is None
        cross_entropy(twin(batch(step)[0]), batch(step)[1]).backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
    assert sparsifier.masks == {}
    assert all(not row.sparse for row in sparsifier.summary())
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_keep_weights_keeps_the_trained_weights_on_the_mask():
    model = small_model()
    before = model[3].weight.detach().clone()
    sparsifier = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), keep_weights=True)
    mask = sparsifier.masks["3.weight"]
    assert torch.equal(model[3].weight, before * mask)


def test_existing_momentum_is_cleared_off_the_mask():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    optimizer.step()
    optimizer.zero_grad()
    check_sparse(model, optimizer, attach(model, optimizer))


def test_masks_follow_from_the_seed_and_not_from_the_global_generator():
    def masks(seed, global_seed):
        model = small_model(global_seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        return attach(model, optimizer, seed=seed).masks["3.weight"]

    assert torch.equal(masks(1, 0), masks(1, 5))
    assert not torch.equal(masks(1, 0), masks(2, 0))


def test_mask_applies_to_averaged_copies():
    model = small_model()
    sparsifier = attach(model, torch.optim.SGD(model.parameters(), lr=0.05))
    averaged = torch.optim.swa_utils.AveragedModel(small_model(1))
    plain = small_model(2)
    for other, inner in ((averaged, averaged.module), (plain, plain)):
        sparsifier.mask_(other)
        mask = sparsifier.masks["3.weight"]
        assert bool((inner[3].weight[~mask] == 0).all())
        assert bool((inner[3].weight[mask] != 0).all())
    with pytest.raises(ValueError, match=r"'0.weight' must have shape \[12, 1, 3, 3\]"):
        sparsifier.mask_(nn.Sequential(nn.Linear(3, 4)))


def test_compiled_models_keep_their_parameter_names():
    model = small_model()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.05, momentum=0.9)
    sparsifier = attach(compiled, optimizer, dense_layers=["5"])
    assert list(sparsifier.masks) == ["0.weight", "3.weight"]
    for step in range(12):
        train_step(compiled, optimizer, sparsifier, step)
        check_sparse(model, optimizer, sparsifier)


def test_steps_that_a_gradient_scaler_skips_are_not_counted():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparsifier = attach(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(12):
        inputs, labels = batch(step)
        if step == 3:
            inputs = inputs * float("inf")
        scaler.scale(cross_entropy(model(inputs), labels)).backward()
        scaler.step(optimizer)
        scaler.update()
        sparsifier.step()
        optimizer.zero_grad()
        check_sparse(model, optimizer, sparsifier)
    assert sparsifier.step_count == 11


def test_two_sparsifiers_on_one_optimizer_are_refused_until_the_first_detaches():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    first = attach(model, optimizer)
    with pytest.raises(ValueError, match="already has a Sparsifier"):
        attach(model, optimizer)
    first.detach()
    second = attach(model, optimizer)
    train_step(model, optimizer, second, 0)
    assert (first.step_count, second.step_count) == (0, 1)


def test_closures_and_learning_rate_schedulers_work():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparsifier = attach(model, optimizer)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(40):

            def closure(step=step):
                optimizer.zero_grad()
                loss = cross_entropy(model(batch(step)[0]), batch(step)[1])
                loss.backward()
                return loss

            assert optimizer.step(closure) > 0
            sparsifier.step()
            scheduler.step()
            check_sparse(model, optimizer, sparsifier)
    assert sparsifier.itop_rate > sparsifier.summary().density


def test_gradients_are_masked_before_clipping_sees_them():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sparsifier = attach(model, optimizer)
    cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    for name, parameter in model.named_parameters():
        if name in sparsifier.masks:
            assert bool((parameter.grad[~sparsifier.masks[name]] == 0).all())
