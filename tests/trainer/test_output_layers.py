"""Which layers compute the outputs, and so keep all their neurons."""

import warnings

import pytest
import torch
import torchvision
from torch import nn
from torch.nn.functional import linear

from fanin.trainer import RigL, Sparsifier, SRigL
from fanin.trainer.layers import prunable_weights
from fanin.trainer.models import MODELS
from fanin.trainer.output_layers import output_layers

from ._options import grouped


def outputs_of(model):
    found = output_layers(model, prunable_weights(model, in_proj=True))
    return found and sorted(name.removesuffix(".weight") for name in found)


class Net(nn.Module):
    """Layers in another order than they are used."""

    def __init__(self):
        super().__init__()
        self.head, self.other = nn.Linear(32, 10), nn.Linear(32, 4)
        self.body, self.gate = nn.Linear(16, 32), nn.Linear(16, 32)
        self.steps = 0

    def hidden(self, inputs):
        return torch.relu(self.body(inputs)) * torch.sigmoid(self.gate(inputs))

    def forward(self, inputs):
        self.steps = self.steps + inputs.sum()  # a symbol during the trace
        self.seen = inputs
        return torch.log_softmax(self.head(self.hidden(inputs)), 1)


class TwoHeads(Net):
    def forward(self, inputs):
        hidden = self.hidden(inputs)
        return {"classes": self.head(hidden), "others": [self.other(hidden).softmax(1)]}


class Sum(Net):
    def forward(self, inputs):
        return self.body(inputs) + self.gate(inputs)


class ByFunction(Net):
    def forward(self, inputs):
        return linear(torch.relu(self.body(inputs)), self.head.weight)


class Branching(Net):
    def forward(self, inputs):
        return self.head(self.hidden(inputs if inputs.sum() > 0 else -inputs))


def test_output_layers_are_found_wherever_they_are_defined():
    assert outputs_of(Net()) == ["head"]
    assert outputs_of(TwoHeads()) == ["head", "other"]
    assert outputs_of(Sum()) == ["body", "gate"]
    assert outputs_of(ByFunction()) == ["head"]
    assert outputs_of(Branching()) is None


@pytest.mark.parametrize(
    ("make", "head"),
    [
        (lambda: torchvision.models.resnet18(), "fc"),
        (lambda: torchvision.models.mobilenet_v3_small(), "classifier.3"),
        (lambda: MODELS["resnet18"](width=8).build((3, 32, 32), 10), "head"),
        (lambda: MODELS["wide-resnet"](depth=10, widen=1).build((3, 32, 32), 10), "head"),
        (lambda: MODELS["mlp"](hidden=(8,)).build((1, 8, 8), 10), "head"),
    ],
)
def test_models_of_recipes_are_traced(make, head):
    assert outputs_of(make()) == [head]


def test_the_trace_leaves_the_model_and_the_random_numbers_as_they_were():
    model = Net()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert outputs_of(model) == ["head"]
    assert torch.equal(torch.rand(2), expected)
    assert model.steps == 0
    assert not hasattr(model, "seen")
    assert model(torch.ones(2, 16)).shape == (2, 10)


def attach(model, method, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    defaults = {"distribution": "uniform", "update_every": 5} | options
    return optimizer, Sparsifier(
        model, optimizer, method=method, total_steps=100, **grouped(**defaults)
    )


@pytest.mark.parametrize("method", [SRigL(0.8, gamma_sal=0.95), RigL(0.9)])
def test_a_head_that_is_defined_first_keeps_its_classes(method):
    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():
        model.head.weight[5:] *= 0.01
    optimizer, sparsifier = attach(
        model, method, keep_weights=True, dense_layers=["other"], dense_in_budget=False
    )
    for step in range(40):
        inputs = torch.randn(16, 16, generator=torch.Generator().manual_seed(step))
        nn.functional.nll_loss(model(inputs), inputs.argmax(1) % 5).backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()
    assert bool(sparsifier.masks["head.weight"].any(1).all())
    assert sparsifier.state_dict()["settings"]["no_ablation"] == ["head.weight"]


def test_a_model_that_cannot_be_traced_says_which_layer_is_protected():
    reason = r"cannot trace the model, so gate\.weight.*LayerOptions\(no_ablation=\[…\]\)"
    with pytest.warns(UserWarning, match=reason) as warned:
        attach(Branching(), SRigL(0.5))
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(Branching(), SRigL(0.5), no_ablation=["head"])
        attach(Branching(), SRigL(0.5, gamma_sal=0))  # nothing is ever ablated
        attach(Branching(), SRigL(0.5), dense_layers=["gate"], dense_in_budget=False)
