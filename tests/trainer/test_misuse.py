"""What users do that the documentation does not ask for."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fanin.trainer import (
    SET,
    SRSTE,
    ConfigError,
    InitializationOptions,
    LayerOptions,
    RigL,
    ScheduleOptions,
    Sparsifier,
    SRigL,
    TopKAST,
)
from fanin.trainer.recipe import extend

from ._options import grouped


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))


def attach(model, method=None, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    defaults = {"total_steps": 40, "update_every": 4, "method": method or SRigL(0.7)}
    return optimizer, Sparsifier(model, optimizer, **grouped(**defaults | options))


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
    with pytest.raises(
        RuntimeError, match=r"'2\.weight' is now torch\.float64 .*before creating its Spars"
    ):
        backward(model.double(), dtype=torch.float64)


def test_a_second_sparsifier_of_the_same_weights_is_refused():
    model = model_of()
    _, first = attach(model)
    with pytest.raises(
        ValueError, match=r"'0\.weight' is already masked by another Sparsifier.*det"
    ):
        attach(model)
    with pytest.raises(ValueError, match=r"'0\.weight' is already masked"):
        attach(nn.Sequential(*model, nn.Linear(4, 4)))
    attach(copy.deepcopy(model), initialization=InitializationOptions(keep_weights=True))
    first.detach()
    _, second = attach(model, initialization=InitializationOptions(keep_weights=True))
    assert second.masks


def test_layers_without_weights_stay_dense_and_those_without_values_are_refused():
    model = nn.Sequential(nn.Linear(20, 32), nn.Linear(32, 0), nn.Linear(0, 4))
    for distribution in ("erk", "uniform"):
        _, sparsifier = attach(model, distribution=distribution, no_ablation=[])
        assert set(sparsifier.masks) == {"0.weight"}
        assert "0×32" in str(sparsifier.summary())
        sparsifier.detach()
    with pytest.raises(ValueError, match=r"'0\.weight'.*no values yet \(device meta\)"):
        attach(model_of().to("meta"))


def test_a_gradient_of_another_type_than_its_weight_is_refused_as_such():
    model = model_of()
    attach(model)
    model[2].weight.grad_dtype = torch.bfloat16
    reason = r"the gradient of '2\.weight' is torch\.bfloat16, but its weight torch\.float32"
    with pytest.raises(RuntimeError, match=reason):
        backward(model)


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 0.0, -2.0, 0.5])
def test_factors_that_give_no_whole_number_of_epochs_are_refused(small_config, factor):
    with pytest.raises(ConfigError, match="not a whole number of epochs"):
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


NM = LayerOptions(distribution="uniform", dense_in_budget=False)


@pytest.mark.parametrize(
    ("method", "layers"),
    [(TopKAST(0.7, mask_every=1), LayerOptions()), (SRSTE(structure="2:4"), NM)],
)
def test_masks_are_not_chosen_of_weights_that_became_nan(method, layers):
    model = model_of()
    optimizer, sparsifier = attach(model, method, layers=layers)
    train(model, optimizer, sparsifier, range(3))
    before = sparsifier.masks["0.weight"].clone()
    model[0].weight.grad = torch.full_like(model[0].weight, torch.nan)
    with pytest.raises(ValueError, match=r"step 4: the mask of '0\.weight' .* are not finite"):
        optimizer.step()
    assert torch.equal(sparsifier.masks["0.weight"], before)


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


def test_what_stays_dense_because_of_its_kind_is_named_in_the_summary():
    class Conv1D(nn.Module):  # as Hugging Face's GPT-2 has it: [in, out]
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(20, 32))

    model = model_of()
    model.append(nn.Embedding(50, 4)).append(Conv1D()).append(nn.LayerNorm(4))
    _, sparsifier = attach(model)
    assert sparsifier.summary().others == {"Embedding": 200, "Conv1D": 640}
    assert str(sparsifier.summary()).endswith("dense, not counted: Embedding 200, Conv1D 640")
    assert "not counted" not in str(attach(model_of())[1].summary())


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"method": "srigl"}, TypeError, r"such as SRigL\(sparsity=0.9\), got 'srigl'"),
        ({"method": SRigL}, TypeError, r"such as SRigL\(sparsity=0.9\)"),
        ({"seed": -1}, ValueError, "seed must be an integer of at least 0, got -1"),
        ({"seed": 1.5}, ValueError, "seed must be an integer"),
        ({"total_steps": 40.5}, TypeError, "total_steps must be a whole number, got 40.5"),
        ({"update_every": "4"}, TypeError, "update_every must be a whole number"),
        ({"in_proj": True}, ValueError, "in_proj is True, but the model has no"),
        ({"densities": [0.5]}, TypeError, "densities must map layer names to densities"),
        ({"dense_layers": 3}, TypeError, "dense_layers must be a list of layer names, got 3"),
        ({"densities": {"0": float("nan")}}, ValueError, r"'0\.weight' must be in \(0, 1\]"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(options, error, reason):
    with pytest.raises(error, match=reason):
        attach(model_of(), **options)


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        (
            {"alpha": 0.2},
            r"^alpha is a field of schedule; write schedule=ScheduleOptions\(alpha=…\)$",
        ),
        ({"mask": "random"}, r"write initialization=InitializationOptions\(mask=…\)"),
        ({"dense_layer": ["0"]}, "no option 'dense_layer'.* 'dense_layers'"),
        ({"schedule": {"alpha": 0.2}}, r"schedule must be ScheduleOptions\(…\), got {'alpha'"),
        ({"layers": ["0"]}, r"layers must be LayerOptions\(…\), got \['0'\]"),
        (
            {"update_every": 4, "schedule": ScheduleOptions()},
            r"combined with schedule; write schedule=ScheduleOptions\(update_every=4, …\)$",
        ),
        (
            {"dense_layers": ["0"], "layers": LayerOptions()},
            r"dense_layers cannot .*; write layers=LayerOptions\(dense_layers=\['0'\]",
        ),
    ],
)
def test_misplaced_keywords_say_where_they_belong(keywords, reason):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=reason):
        Sparsifier(model, optimizer, method=SRigL(0.7), total_steps=400, **keywords)
    Sparsifier(model, optimizer, method=SRigL(0.7), total_steps=400)  # nothing was attached


def test_shorthands_say_the_same_as_their_groups():
    short, long = model_of(), model_of()
    options = {"update_every": 4, "distribution": "uniform", "dense_layers": ["2"]}
    masks = []
    for model, keywords in ((short, options), (long, grouped(**options))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sparsifier = Sparsifier(model, optimizer, method=SRigL(0.5), total_steps=40, **keywords)
        train(model, optimizer, sparsifier, range(10))
        masks.append(sparsifier.masks)
    assert list(masks[0]) == ["0.weight"]
    assert torch.equal(masks[0]["0.weight"], masks[1]["0.weight"])


def test_sparsities_that_are_no_numbers_are_refused():
    with pytest.raises(TypeError, match="sparsity must be a number"):
        SRigL("0.9")


def test_a_state_of_another_method_is_refused_by_the_methods_names():
    _, sparsifier = attach(model_of())
    _, other = attach(model_of(), RigL(0.7))
    with pytest.raises(
        ValueError, match="saved with method='srigl', but this sparsifier has method='rigl'"
    ):
        other.load_state_dict(sparsifier.state_dict())


def test_closures_and_compiled_optimizer_steps_keep_the_masks():
    for kind in ("closure", "compiled"):
        model = model_of()
        optimizer = (torch.optim.LBFGS if kind == "closure" else torch.optim.Adam)(
            model.parameters(), lr=0.05
        )
        sparsifier = Sparsifier(model, optimizer, method=SRigL(0.7), total_steps=40, update_every=4)
        inputs, labels = torch.randn(8, 20), torch.arange(8) % 4

        def loss(model=model, optimizer=optimizer, inputs=inputs, labels=labels):
            optimizer.zero_grad()
            value = cross_entropy(model(inputs), labels)
            value.backward()
            return value

        step = torch.compile(optimizer.step, backend="eager")
        for _ in range(9):
            if kind == "closure":
                optimizer.step(loss)
            else:
                loss()
                step()
            sparsifier.step()
        assert sparsifier.step_count == 9
        for name, mask in sparsifier.masks.items():
            assert bool((model.get_parameter(name)[~mask] == 0).all())
