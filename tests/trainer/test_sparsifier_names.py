import pytest
import torch
from torch import nn

from fanin.trainer import Sparsifier, SRigL

from ._options import grouped


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32))
        self.table = nn.Embedding(7, 32)
        self.norm = nn.LayerNorm(32)
        self.classifier = nn.Linear(32, 10)


def attach(model, parameters=None, **options):
    optimizer = torch.optim.SGD(parameters or model.parameters(), lr=0.1)
    defaults = {"method": SRigL(sparsity=0.2), "total_steps": 1000, "distribution": "uniform"}
    return Sparsifier(model, optimizer, **grouped(**defaults | options))


def test_only_linear_and_convolution_weights_become_sparse():
    model = nn.Sequential(
        nn.Conv1d(4, 8, 3), nn.Conv2d(8, 8, 3, groups=2), nn.Conv3d(2, 8, 3),
        nn.ConvTranspose2d(8, 8, 3), nn.Embedding(9, 9), nn.Linear(8, 8), nn.PReLU(8),
    )  # fmt: skip
    masks = attach(model).masks
    assert list(masks) == ["0.weight", "1.weight", "2.weight", "5.weight"]
    assert masks["1.weight"].shape == (8, 4, 3, 3)


def test_names_may_mean_the_layer_or_its_weight():
    for name in ("encoder.0", "encoder.0.weight"):
        assert "encoder.0.weight" not in attach(Net(), dense_layers=[name]).masks


@pytest.mark.parametrize("option", ["dense_layers", "no_ablation"])
def test_a_misspelled_name_is_an_error_with_near_matches(option):
    with pytest.raises(ValueError, match=f"{option} names 'clasifier'.*mean 'classifier'"):
        attach(Net(), **{option: ["clasifier"]})


@pytest.mark.parametrize("name", ["norm", "table", "encoder.1", "encoder", "0"])
def test_names_of_other_modules_are_errors(name):
    with pytest.raises(ValueError, match="not a linear or convolution layer"):
        attach(Net(), dense_layers=[name])


@pytest.mark.parametrize("option", ["dense_layers", "no_ablation"])
def test_a_string_in_place_of_a_list_is_an_error(option):
    with pytest.raises(TypeError, match=r"list of layer names; write \['classifier'\]"):
        attach(Net(), **{option: "classifier"})


def test_weights_that_cannot_be_sparse_are_named():
    tied = Net()
    tied.decoder = nn.Linear(32, 7)
    tied.decoder.weight = tied.table.weight
    with pytest.raises(ValueError, match=r"'decoder.weight' .* shared by 'table.weight'"):
        attach(tied)
    assert "decoder.weight" not in attach(tied, dense_layers=["decoder"]).masks

    frozen = Net()
    frozen.classifier.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"'classifier.weight' .* frozen"):
        attach(frozen)

    partly = Net()
    with pytest.raises(ValueError, match=r"'classifier.weight' .* not among the optimizer's"):
        attach(partly, partly.encoder.parameters())


def test_models_without_prunable_layers_and_lazy_or_parametrized_layers_are_refused():
    with pytest.raises(ValueError, match="no Linear, Conv1d, Conv2d, Conv3d or Conv1D"):
        attach(nn.Sequential(nn.LayerNorm(4)))
    with pytest.raises(ValueError, match=r"'0' is lazy"):
        attach(nn.Sequential(nn.LazyLinear(4)))
    normed = Net()
    nn.utils.parametrizations.weight_norm(normed.classifier)
    with pytest.raises(ValueError, match=r"'classifier.weight' .* is computed by its"):
        attach(normed)


def test_infeasible_sparsity_is_refused_at_construction():
    with pytest.raises(ValueError, match=r"largest feasible sparsity here is 0\.9"):
        Sparsifier(
            nn.Sequential(nn.Linear(10, 10)),
            torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1),
            method=SRigL(sparsity=0.95),
            total_steps=1000,
        )


def test_attention_output_projections_are_found_by_name():
    model = nn.TransformerEncoderLayer(32, 4, 64)
    names = list(attach(model).masks)
    assert names == ["self_attn.out_proj.weight", "linear1.weight", "linear2.weight"]
