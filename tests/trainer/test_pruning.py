"""Pruning a torch model in one step, and training on with its masks."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from fanin.trainer import InfeasibleSparsityError, Sparsifier, SRigL, prune_


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.Conv2d(16, 24, 3),
        nn.Flatten(),
        nn.Linear(24, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def test_each_neuron_keeps_its_largest_weights_as_they_were():
    model = network()
    before = copy.deepcopy(model.state_dict())
    pruned = prune_(model, 0.9)
    assert pruned.masks.keys() == {"1.weight", "5.weight"}
    for name, mask in pruned.masks.items():
        fan_in = mask[0].numel() // 10
        for row, old in zip(model.state_dict()[name], before[name], strict=True):
            wanted = old.flatten().abs().argsort(descending=True)[:fan_in]
            expected = torch.zeros(old.numel()).index_copy(0, wanted, old.flatten()[wanted])
            assert torch.equal(row.flatten(), expected)
    untouched = before.keys() - pruned.masks.keys()
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in untouched)
    assert pruned.left == {
        "0.weight": "its neurons have 27 inputs, fewer than 32",
        "3.weight": "its neurons have 24 inputs, fewer than 32",
    }
    assert "0.weight stays dense: its neurons have 27 inputs" in str(pruned)


def test_training_goes_on_with_the_masks():
    model = network()
    pruned = prune_(model, 0.8, distribution="erk")
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    sparsifier = pruned.keep_masks(model, optimizer)
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    for _ in range(3):
        model(torch.randn(4, 3, 5, 5)).square().sum().backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()
    trained = dict(model.named_parameters())
    for name, mask in pruned.masks.items():
        assert torch.equal(sparsifier.masks[name], mask)
        assert not trained[name][~mask].any()
        assert not torch.equal(trained[name], weights[name])


def test_another_method_starts_from_the_same_masks():
    model = network()
    pruned = prune_(model, 0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier = Sparsifier(
        model,
        optimizer,
        method=SRigL(0.8),
        total_steps=100,
        update_every=10,
        layers=pruned.layers,
        initialization=pruned.initialization,
    )
    assert sparsifier.masks.keys() == pruned.masks.keys()
    assert all(torch.equal(sparsifier.masks[name], mask) for name, mask in pruned.masks.items())


def test_projections_of_attention_are_pruned_and_shared_weights_are_not():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, 64)
            self.attention = nn.MultiheadAttention(64, 2)
            self.head = nn.Linear(64, 50, bias=False)
            self.head.weight = self.embedding.weight

    pruned = prune_(Tied(), 0.75)
    assert pruned.masks.keys() == {"attention.in_proj_weight", "attention.out_proj.weight"}
    assert pruned.left == {"head.weight": "it is shared with embedding.weight"}


def test_neurons_of_hugging_faces_conv1d_are_its_columns():
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    model = nn.Sequential(conv1d(48, 64))  # of 64 inputs and 48 outputs
    before = model[0].weight.detach().clone()
    pruned = prune_(model, 0.9)
    for column, old in zip(model[0].weight.t(), before.t(), strict=True):
        wanted = old.abs().argsort(descending=True)[:6]
        assert torch.equal(column, torch.zeros(64).index_copy(0, wanted, old[wanted]))
    (row,) = pruned.summary
    assert (row.shape, row.active, row.fan_in) == ((48, 64), 48, 6)


def test_named_layers_stay_dense():
    pruned = prune_(network(), 0.9, dense_layers=["5"])
    assert pruned.masks.keys() == {"1.weight"}
    assert pruned.left["5.weight"] == "dense_layers names it"


@pytest.mark.parametrize(
    ("sparsity", "error", "match"),
    [
        (1.5, ValueError, r"must be in \(0, 1\)"),
        (0.999, InfeasibleSparsityError, "largest feasible sparsity"),
    ],
)
def test_a_sparsity_that_cannot_be_is_refused(sparsity, error, match):
    with pytest.raises(error, match=match):
        prune_(network(), sparsity)


def test_nothing_changes_where_a_weight_is_not_finite():
    model = network()
    with torch.no_grad():
        model[5].weight[0, 0] = torch.nan
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"'5\.weight' holds values that are not finite"):
        prune_(model, 0.9)
    assert torch.equal(model.state_dict()["1.weight"], before["1.weight"])


def test_a_model_without_a_layer_to_prune_is_refused():
    with pytest.raises(ValueError, match="every layer stays dense"):
        prune_(nn.Sequential(nn.Linear(8, 8)), 0.5)


@pytest.mark.slow  # exporting loads torch's exporter
def test_the_recipe_of_the_documentation_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    document = Path(__file__).parents[2] / "docs" / "pruning.md"
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL):
        exec(block, names)
    assert Path("fast.onnx").is_file()
    assert "Export to fast.onnx" in capsys.readouterr().out
    assert names["sparsifier"].masks.keys() == names["pruned"].masks.keys()


def test_layers_whose_neurons_are_in_dimension_1_are_pruned_as_linear_ones():
    conv1d = pytest.importorskip("transformers").pytorch_utils.Conv1D
    torch.manual_seed(0)
    turned, plain = nn.Sequential(conv1d(24, 64)), nn.Sequential(nn.Linear(64, 24))
    with torch.no_grad():
        plain[0].weight.copy_(turned[0].weight.t())
    ours, theirs = prune_(turned, 0.75), prune_(plain, 0.75)
    assert torch.equal(ours.masks["0.weight"].t(), theirs.masks["0.weight"])
    assert list(ours.summary) == list(theirs.summary)
    optimizer = torch.optim.SGD(turned.parameters(), lr=0.1)
    sparsifier = ours.keep_masks(turned, optimizer)
    assert torch.equal(sparsifier.masks["0.weight"], ours.masks["0.weight"])


def test_layers_that_compute_their_weight_stay_dense():
    model = nn.Sequential(
        nn.Linear(64, 24), nn.utils.parametrizations.weight_norm(nn.Linear(24, 64))
    )
    pruned = prune_(model, 0.75)
    assert list(pruned.masks) == ["0.weight"]
    assert "its layer computes it" in pruned.left["1.weight"]
