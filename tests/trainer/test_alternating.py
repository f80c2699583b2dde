"""AST: sub-nets that train in turn, against a second implementation, and what users see of them."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fanin.trainer import (
    AST,
    InitializationOptions,
    LayerOptions,
    RigL,
    ScheduleOptions,
    Sparsifier,
    load_run,
)
from fanin.trainer import train as train_recipe
from fanin.trainer.analysis import analyze_run
from fanin.trainer.methods import DropFractions
from fanin.trainer.schedule import UpdateSchedule

from .test_methods_by_loops import as_inputs, highest, positions, random_model, replaced, size_of


def ast_by_loops(layer, fractions):
    """The positions of a sub-net's layer after an update; ``layer`` as ``random_model`` has it."""
    places, size = positions(layer), size_of(layer, "w")
    budget = layer["budget"]
    budget += int((len(places) - budget) * (1 - fractions.progress) ** 3)
    first = set()
    if not layer["may_ablate"]:
        for neuron in range(len(layer["w"])):
            first |= set(highest([p for p in places if p[0] == neuron], size, 1))
    pruned = set(first)
    pruned |= set(highest([p for p in places if p not in first], size, budget - len(first)))
    mask = [[(i, j) in pruned for j in range(len(row))] for i, row in enumerate(layer["w"])]
    drop_count = int(fractions.current * budget)
    return replaced({**layer, "mask": mask}, size, size_of(layer, "g"), drop_count, budget)


def test_updates_of_sub_nets_equal_the_loop_implementation():
    rng, changed = np.random.default_rng(6), 0
    for _ in range(150):  # of one to three layers each
        layers = random_model(rng)
        for layer in layers.values():  # the weights behind the mask are not zero
            shape = len(layer["w"]), len(layer["w"][0])
            layer["w"] = rng.choice([-2.0, -0.5, 0.0, 0.25, 0.5, 1.0], size=shape).tolist()
        fractions = DropFractions(*rng.random(2) * 0.6, progress=float(rng.random()))
        inputs, method = as_inputs(layers), AST(0.9)
        plans = method.plan(inputs, fractions)
        for name, layer in inputs.items():
            result = method.update(layer, plans[name])
            found = {(int(i), int(j)) for i, j in result.mask.nonzero()}
            assert found == ast_by_loops(layers[name], fractions)
            changed += not torch.equal(result.mask, layer.mask)
    assert changed > 100


def test_training_in_turn_equals_a_second_implementation():
    corrections = updates = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        neurons, inputs = int(rng.integers(2, 6)), int(rng.integers(4, 9))
        others = ((0.4,), (0.3, 0.5))[seed % 2]
        turns, every, window = len(others) + 1, int(rng.integers(3, 6)), int(rng.integers(1, 3))
        corrects, protected = bool(rng.integers(0, 4)), bool(rng.integers(0, 2))
        layer = nn.Linear(inputs, neurons, bias=False).double()
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(rng.normal(size=(neurons, inputs))))
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.05, momentum=0.8, weight_decay=0.01)
        sparsifier = Sparsifier(
            layer,
            optimizer,
            method=AST(0.7, others=others, gradient_correction=corrects),
            total_steps=20,
            schedule=ScheduleOptions(every, gradient_window=window),
            layers=LayerOptions(no_ablation=["weight"] if protected else []),
            initialization=InitializationOptions(keep_weights=True),
        )
        dense = layer.weight.detach().numpy().copy()
        state = sparsifier.state_dict()
        layers = [*state["alternation"]["subnets"], state["layers"]]
        budgets = [one["weight"]["budget"] for one in layers]
        for budget, sparsity in zip(budgets, (*others, 0.7), strict=True):
            assert abs(budget - dense.size * (1 - sparsity)) < 1
        masks = [np.ones_like(dense, dtype=bool) for _ in budgets]
        seen = [[] for _ in budgets]
        velocity, previous = np.zeros_like(dense), None
        schedule = UpdateSchedule(update_every=every, total_steps=20)
        for step in range(1, 17):
            turn = (step - 1) % turns
            given, wanted = rng.normal(size=(3, inputs)), rng.normal(size=(3, neurons))
            loss = (layer(torch.tensor(given)) - torch.tensor(wanted)).square().sum() / 2
            loss.backward()
            optimizer.step()
            sparsifier.step()
            optimizer.zero_grad()

            outputs = given @ (dense * masks[turn]).T
            gradient = (outputs - wanted).T @ given
            update = -(-step // every) * every
            if update - step < min(turns * window, every) and schedule.is_update_step(update):
                seen[turn].append(gradient)
            gradient = gradient * masks[turn]
            used = gradient
            if corrects and previous is not None and (gradient * previous).sum() < 0:
                used = gradient - (gradient * previous).sum() / (previous**2).sum() * previous
                corrections += 1
            previous = gradient
            first = used + 0.01 * dense
            velocity = first if step == 1 else 0.8 * velocity + first
            dense = dense - 0.05 * velocity
            if schedule.is_update_step(step):
                updates += 1
                following = schedule.next_update(step)
                progress = step / schedule.end_step if following else 1.0
                fractions = DropFractions(schedule.drop_fraction(step), 0.0, progress)
                for mask, budget, gradients in zip(masks, budgets, seen, strict=True):
                    state = {
                        "w": dense.tolist(),
                        "g": np.mean(gradients, 0).tolist(),
                        "mask": mask.tolist(),
                        "budget": budget,
                        "may_ablate": not protected,
                    }
                    mask[:] = False
                    mask[tuple(np.array(sorted(ast_by_loops(state, fractions))).T)] = True
                    gradients.clear()
            for sparsity, mask in zip((*others, 0.7), masks, strict=True):
                with sparsifier.subnet(sparsity) as found:
                    assert found["weight"].numpy().tolist() == mask.tolist()
                    weight = layer.weight.detach().numpy()
                    assert np.allclose(weight, dense * mask, rtol=1e-9, atol=1e-12)
            assert bool((layer.weight[~sparsifier.masks["weight"]] == 0).all())
        assert [int(mask.sum()) for mask in masks] == budgets
    assert corrections > 500
    assert updates > 600


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(24, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(),
        nn.Linear(32, 4),
    )  # fmt: skip


def attach(model, method=None, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    options = {"total_steps": 80, "update_every": 4} | options
    return optimizer, Sparsifier(model, optimizer, method=method or AST(0.8), **options)


def batch(step):
    inputs = torch.randn(64, 24, generator=torch.Generator().manual_seed(step))
    return inputs, (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()


def train(model, optimizer, sparsifier, steps, call=None):
    for step in steps:
        inputs, labels = batch(step)
        cross_entropy((call or model)(inputs), labels).backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()


@torch.no_grad()
def accuracy(model):
    model.eval()
    inputs, labels = batch(1000)
    found = float((model(inputs).argmax(1) == labels).float().mean())
    model.train()
    return found


def test_sub_nets_learn_and_the_sparsest_is_what_the_model_is():
    model = net()
    optimizer, sparsifier = attach(model)
    train(model, optimizer, sparsifier, range(80))
    shown = copy.deepcopy(model.state_dict())
    assert sparsifier.summary().density == pytest.approx(0.2, abs=0.01)
    assert accuracy(model) > 0.85
    with sparsifier.subnet(0.5) as masks:
        held, total = (sum(f(m) for m in masks.values()) for f in (torch.sum, torch.numel))
        assert int(held) / total == pytest.approx(0.5, abs=0.01)
        assert all(bool((model.get_parameter(n)[~m] == 0).all()) for n, m in masks.items())
        statistics = model[1].running_mean.clone()
        assert accuracy(model) > 0.85
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, shown[name]), name
    assert not torch.equal(statistics, model[1].running_mean)
    assert int(model[1].num_batches_tracked) == 40  # every second step
    with pytest.raises(ValueError, match=r"no sub-net of sparsity 0\.6, only \[0\.5, 0\.8\]"):
        sparsifier.subnet(0.6).__enter__()


def test_an_evaluation_between_the_passes_of_a_step_sees_the_sparsest_sub_net():
    models = []
    for evaluates in (False, True):
        model = net()
        optimizer, sparsifier = attach(model)
        train(model, optimizer, sparsifier, range(30))
        for part in batch(31)[0].split(32):
            model(part).square().mean().backward()
            if evaluates:
                accuracy(model)
                assert bool((model[0].weight[~sparsifier.masks["0.weight"]] == 0).all())
        optimizer.step()
        models.append(model)
    for mine, other in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(mine, other)


def test_a_compiled_model_trains_the_same_sub_nets():
    masks = []
    for compiled in (False, True):
        model = net().double()
        optimizer, sparsifier = attach(model)
        call = torch.compile(model, backend="aot_eager") if compiled else None
        steps = range(12)
        for step in steps:
            inputs, labels = batch(step)
            cross_entropy((call or model)(inputs.double()), labels).backward()
            optimizer.step()
            sparsifier.step()
            optimizer.zero_grad()
        masks.append({n: m.clone() for n, m in sparsifier.masks.items()})
        with sparsifier.subnet(0.5) as found:
            masks[-1] |= {f"other.{n}": m.clone() for n, m in found.items()}
    assert all(torch.equal(masks[0][name], masks[1][name]) for name in masks[0])


def assert_equal_models(model, other):
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_training_while_another_sub_net_is_shown_is_the_same_training():
    model, plain = net(), net()
    optimizer, sparsifier = attach(model)
    train(model, optimizer, sparsifier, range(10))
    with sparsifier.subnet(0.5):
        train(model, optimizer, sparsifier, range(10, 21))
        with pytest.raises(RuntimeError, match=r"leave the `with sparsifier\.subnet"):
            sparsifier.state_dict()
    train(plain, *attach(plain), range(21))
    assert_equal_models(model, plain)


class Outer(torch.optim.Optimizer):
    """An optimizer around another one, as Accelerate's."""

    def __init__(self, optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    def step(self):
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, Outer])
def test_passes_that_no_step_follows_change_only_batch_norms(wrap):
    models = []
    for skips in (False, True):
        model = net()
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        sparsifier = Sparsifier(model, optimizer, method=AST(0.8), total_steps=80, update_every=4)
        train(model, optimizer, sparsifier, range(12))
        if skips:  # as a gradient scaler does
            shown = copy.deepcopy(model.state_dict())
            model(batch(12)[0]).sum().backward()
            sparsifier.step()
            optimizer.zero_grad()
            assert all(torch.equal(t, shown[name]) for name, t in model.state_dict().items())
        train(model, optimizer, sparsifier, range(12, 20))
        models.append(model)
    for mine, other in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(mine, other)


def test_passes_without_gradients_count_the_statistics_of_the_sub_net_that_is_shown():
    model = net()
    optimizer, sparsifier = attach(model)
    train(model, optimizer, sparsifier, range(12))  # the next turn is another sub-net's
    before = copy.deepcopy(model.state_dict())
    inputs = batch(0)[0]
    with torch.no_grad():
        model(inputs)
    assert torch.equal(model[0].weight, before["0.weight"])
    wanted = 0.9 * before["1.running_mean"] + 0.1 * model[0](inputs).mean(0)
    assert torch.allclose(model[1].running_mean, wanted, atol=1e-6)


def test_a_model_in_training_can_be_exported_by_torch():
    model = net()
    optimizer, sparsifier = attach(model)
    train(model, optimizer, sparsifier, range(21))
    model.eval()
    inputs = batch(0)[0]
    for strict in (False, True):
        program = torch.export.export(model, (inputs,), strict=strict)
        assert torch.allclose(program.module()(inputs), model(inputs))


def test_copies_of_the_model_stay_as_they_are():
    model = net()
    optimizer, sparsifier = attach(model)
    train(model, optimizer, sparsifier, range(21))
    twin = copy.deepcopy(model)
    twin(batch(0)[0])
    for mine, other in zip(twin.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_step_whose_gradients_are_not_of_the_sub_net_in_turn_is_refused():
    model = net()
    optimizer, _ = attach(model)
    model.eval()
    model(batch(0)[0]).sum().backward()
    with pytest.raises(RuntimeError, match=r"called in training mode.*call model\(inputs\) after"):
        optimizer.step()


def test_options_that_make_no_sense_are_refused():
    for others in ((), (0.9,), (0.5, 0.8)):
        with pytest.raises(ValueError, match=r"denser sub-nets, at least one and each below"):
            AST(0.8, others=others)
    with pytest.raises(ValueError, match=r"name each sparsity once, got \[0\.5, 0\.5\]"):
        AST(0.8, others=(0.5, 0.5))
    with pytest.raises(TypeError, match=r"others must be a list of sparsities, got 0\.5"):
        AST(0.8, others=0.5)
    with pytest.raises(ValueError, match="sub-nets differ in density"):
        AST(0.5, others=(0.25,), structure="2:4")
    with pytest.raises(ValueError, match=r"update_every is 2, but 3 sub-nets train in turn"):
        attach(net(), AST(0.8, others=(0.4, 0.5)), update_every=2)
    with pytest.raises(TypeError, match="'rigl' trains one network, without sub-nets"):
        attach(net(), RigL(0.8))[1].subnet(0.8).__enter__()


def test_a_damaged_state_is_refused():
    _, sparsifier = attach(net())
    good = sparsifier.state_dict()
    bad = {key: value for key, value in good.items() if key != "alternation"}
    with pytest.raises(ValueError, match="lacks the other sub-nets"):
        sparsifier.load_state_dict(bad)
    for change in (
        {"subnets": []},
        {"statistics": [[]]},
        {"previous": {"other": torch.ones(1)}},
        {"previous": {"0.weight": torch.ones(64, 23)}},
    ):
        bad = {**good, "alternation": {**good["alternation"], **change}}
        with pytest.raises(ValueError, match="its sub-nets are others"):
            sparsifier.load_state_dict(bad)


def test_the_run_of_a_recipe_holds_the_sparsest_sub_net(small_config, tmp_path):
    config = dataclasses.replace(small_config, method=AST(0.8, others=(0.4,)))
    run = load_run(train_recipe(config, tmp_path / "run", progress=False).out)
    held = sum(int(mask.sum()) for mask in run.masks.values())
    total = sum(mask.numel() for mask in run.masks.values())
    assert held / total == pytest.approx(0.2, abs=0.01)
    epochs = [record for record in run.metrics if record["event"] == "epoch"]
    assert epochs[-1]["test_accuracy"] > 0.8
    operations = analyze_run(run)[0].rows
    forward = operations[0]["inference per sample"]
    # The sub-nets' mean density, and a quarter of the rest for 3/4 of the steps.
    expected = 3 * forward * (0.4 + 0.6 * 0.75 / 4) * 3 * 23 * 64
    assert operations[1]["training"] == pytest.approx(expected, rel=0.01)
