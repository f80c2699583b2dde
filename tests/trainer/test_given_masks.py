"""Training that starts from a sparse model keeps its masks."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from fanin.trainer import (
    GMP,
    InitializationOptions,
    RigL,
    Sparsifier,
    SRigL,
    Static,
    load_run,
    train,
)
from fanin.trainer.recipe import SparsifierConfig, override
from fanin.trainer.structures import parse_structure

from ._options import grouped


def ablated_masks(shape, budget, seed):
    """Constant fan-in over half of the neurons."""
    neurons = shape[0] // 2
    fan_in = budget // neurons
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(shape, dtype=torch.bool)
    for row in torch.randperm(shape[0], generator=generator)[:neurons]:
        mask[row, torch.randperm(shape[1], generator=generator)[:fan_in]] = True
    return mask


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, 4))


def sparsifier(model, mask, method, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masks = mask if isinstance(mask, dict) else {"0.weight": mask}
    return Sparsifier(
        model,
        optimizer,
        method=method,
        total_steps=100,
        **grouped(
            **{
                "update_every": 10,
                "distribution": "uniform",
                "dense_layers": ["2"],
                "dense_in_budget": False,
                "mask": masks,
                "keep_weights": True,
            }
            | options
        ),
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "method", [SRigL(0.9), Static(0.9, structure="constant-fan-in"), Static(0.9), RigL(0.9)]
)
def test_given_masks_are_kept_with_their_ablated_neurons_and_weights(seed, method):
    model = network()
    before = copy.deepcopy(model.state_dict())
    mask = ablated_masks((20, 40), 80, seed)
    found = sparsifier(model, mask, method)
    assert torch.equal(found.masks["0.weight"], mask)
    assert found.masks["0.weight"] is not mask
    assert torch.equal(model[0].weight, before["0.weight"] * mask)


def test_weights_can_be_drawn_anew_on_given_masks():
    model, mask = network(), ablated_masks((20, 40), 80, 0)
    before = model[0].weight.detach().clone()
    sparsifier(model, mask, SRigL(0.9), keep_weights=False)
    assert bool((model[0].weight[~mask] == 0).all())
    assert not bool((model[0].weight[mask] == before[mask]).any())


@pytest.mark.parametrize(
    ("masks", "method", "reason"),
    [
        ({}, SRigL(0.9), "lack a mask of 0.weight"),
        ({"2.weight": torch.ones(4, 20).bool()}, SRigL(0.9), "lack a mask of 0.weight"),
        ({"0.weight": torch.ones(40, 20).bool()}, SRigL(0.9), r"shape \[40, 20\], its weight"),
        (ablated_masks((20, 40), 160, 0), SRigL(0.9), r"hold 20.00% .* asks for 10.00%"),
        (ablated_masks((20, 40), 40, 0), SRigL(0.9), r"hold 5.00% .* asks for 10.00%"),
        (torch.arange(800).view(20, 40) < 80, Static(0.9, structure="block-4"), "structure"),
        (torch.arange(800).view(20, 40) < 70, SRigL(0.9), "another structure"),
        (ablated_masks((20, 40), 80, 0), GMP(0.9), "chooses its masks from the weights"),
    ],
)
def test_masks_that_do_not_fit_are_refused_with_the_reason(masks, method, reason):
    with pytest.raises(ValueError, match=reason):
        sparsifier(network(), masks, method)


def test_a_mask_of_a_layer_that_shall_be_dense_is_refused():
    masks = {"0.weight": ablated_masks((20, 40), 80, 0), "2.weight": torch.ones(4, 20).bool()}
    with pytest.raises(ValueError, match=r"mask of the dense layer 2\.weight"):
        sparsifier(network(), masks, SRigL(0.9))


def test_output_layers_refuse_masks_without_some_classes():
    masks = {"0.weight": ablated_masks((20, 40), 80, 0), "2.weight": ablated_masks((4, 20), 8, 0)}
    with pytest.raises(ValueError, match=r"2\.weight must keep all its neurons"):
        sparsifier(network(), masks, SRigL(0.9), dense_layers=())


def test_structures_know_their_masks():
    groups = torch.tensor([[1, 1, 0, 0, 0, 1, 1, 0], [0, 1, 0, 1, 1, 0, 0, 1]]).bool()
    assert parse_structure("2:4").allows(groups)
    assert not parse_structure("2:4").allows(groups.roll(2, 1))
    assert parse_structure("constant-fan-in").allows(groups)
    blocks = groups[[0, 0, 1, 1]]
    assert parse_structure("block-2").allows(blocks)
    assert not parse_structure("block-2").allows(groups[[0, 1, 1, 0]])
    blocks[2:, 1] = False
    assert not parse_structure("block-2").allows(blocks)
    assert parse_structure("unstructured").allows(blocks)
    assert not parse_structure("constant-fan-in").allows(torch.zeros(2, 4).bool())


def test_a_run_that_starts_from_a_sparse_one_keeps_its_masks(small_config, tmp_path):
    before = train(small_config, tmp_path / "float", progress=False)
    masks = load_run(tmp_path / "float").masks
    assert any(not bool(mask.any(1).all()) for mask in masks.values())  # neurons were ablated
    start = {"training.initial_weights": str(tmp_path / "float"), "training.epochs": 1}
    start |= {"optimizer.lr": 1e-3, "training.quantization_aware": True}
    static = Static(0.8, structure="constant-fan-in")
    held = dataclasses.replace(small_config, method=static, sparsifier=SparsifierConfig())
    result = train(override(held, start), tmp_path / "held", progress=False)
    for name, mask in load_run(tmp_path / "held").masks.items():
        assert torch.equal(mask, masks[name])
    assert result.test_accuracy > before.test_accuracy - 0.02


def test_a_run_warns_where_it_cannot_keep_the_masks(small_config, tmp_path):
    train(small_config, tmp_path / "float", progress=False)
    start = {"training.initial_weights": str(tmp_path / "float"), "method.sparsity": 0.9}
    with pytest.warns(RuntimeWarning, match=r"are not kept, since they hold .* asks for"):
        train(override(small_config, start), tmp_path / "sparser", progress=False)


@pytest.mark.parametrize(
    ("mask", "kind"), [(torch.ones(20, 40), r"torch\.float32"), ([[True]], "list")]
)
def test_masks_that_are_no_bool_tensors_are_refused(mask, kind):
    with pytest.raises(TypeError, match=rf"that of '0\.weight' is {kind}; .* weight != 0"):
        InitializationOptions(mask={"0.weight": mask})
