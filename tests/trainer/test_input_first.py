"""Hugging Face's Conv1D, a linear layer whose weight is [in, out], trains as Linear does."""

import copy
import itertools

import pytest
import torch
from torch import nn

from fanin.trainer import (
    DSR,
    MEST,
    SET,
    SNFS,
    SRSTE,
    LayerOptions,
    RigL,
    Sparsifier,
    SRigL,
    save_weights,
)
from fanin.trainer.analysis.flops import layer_costs

transformers = pytest.importorskip("transformers")
WIDTHS = (24, 40, 12)


def twins():
    """A model of Conv1D and the same of Linear, in float64."""
    torch.manual_seed(0)
    turned = nn.Sequential()
    plain = nn.Sequential()
    for inputs, outputs in itertools.pairwise(WIDTHS):
        layer = transformers.pytorch_utils.Conv1D(outputs, inputs)
        linear = nn.Linear(inputs, outputs)
        with torch.no_grad():
            linear.weight.copy_(layer.weight.t())
            linear.bias.copy_(layer.bias)
        turned.append(layer).append(nn.Tanh())
        plain.append(linear).append(nn.Tanh())
    return turned.double(), plain.double()


def train(model, method, saved=None, steps=range(20)):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options = {"total_steps": 30, "update_every": 4, "seed": 3}
    if ":" in getattr(method, "structure", ""):
        options["layers"] = LayerOptions(distribution="uniform", dense_in_budget=False)
    state = None
    if saved is not None:
        state = saved[0]
        optimizer.load_state_dict(saved[1])
    sparsifier = Sparsifier(model, optimizer, method=method, state=state, **options)
    for step in steps:
        inputs = torch.randn(16, WIDTHS[0], generator=torch.Generator().manual_seed(step))
        (model(inputs.double()) - inputs[:, : WIDTHS[-1]]).square().mean().backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()
    return sparsifier


METHODS = [
    SRigL(0.7, gamma_sal=0.9), RigL(0.7), SET(0.7, structure="constant-fan-in"), SNFS(0.7),
    MEST(0.7), DSR(0.7), RigL(0.5, structure="2:4"), SRSTE("2:4"),
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.name}-{m.sparsity}")
def test_masks_and_weights_are_those_of_the_linear_layer_turned(method):
    turned, plain = twins()
    ours, theirs = train(turned, method), train(plain, method)
    for name, mask in ours.masks.items():
        assert mask.shape == turned.get_parameter(name).shape
        assert torch.equal(mask.t(), theirs.masks[name])
        weight, expected = turned.get_parameter(name), plain.get_parameter(name)
        assert torch.allclose(weight.t(), expected, rtol=1e-9, atol=1e-12)
        assert bool((weight[~mask] == 0).all())
    assert list(ours.summary()) == list(theirs.summary())


def test_training_resumes_bit_for_bit():
    whole = twins()[0]
    train(whole, METHODS[0])
    model = twins()[0]
    half = train(model, METHODS[0], steps=range(9))
    half.detach()
    other = copy.deepcopy(model)
    saved = half.state_dict(), half._optimizers[-1].state_dict()
    train(other, METHODS[0], saved, range(9, 20))
    for mine, its in zip(whole.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_operations_are_those_of_the_linear_layer():
    turned, plain = twins()
    ours, theirs = (layer_costs(model.float(), (WIDTHS[0],)) for model in (turned, plain))
    assert ours == theirs


@pytest.mark.slow
def test_a_small_gpt2_trains_and_its_block_exports(tmp_path):
    onnx = pytest.importorskip("onnx")
    export = pytest.importorskip("fanin.export").export
    config = transformers.GPT2Config(
        vocab_size=96, n_positions=16, n_embd=32, n_layer=1, n_head=2, use_cache=False,
        bos_token_id=1, eos_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    layers = LayerOptions(dense_layers=["lm_head"], dense_in_budget=False)
    sparsifier = Sparsifier(
        model, optimizer, method=SRigL(0.8), total_steps=20, update_every=4, layers=layers
    )
    for step in range(8):
        tokens = torch.randint(96, (2, 12), generator=torch.Generator().manual_seed(step))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()
    assert len(sparsifier.masks) == 4
    mask = sparsifier.masks["transformer.h.0.attn.c_attn.weight"]
    counts = mask.sum(0)
    assert len(set(counts[counts > 0].tolist())) == 1
    save_weights(tmp_path / "weights.safetensors", model, sparsifier.masks)

    path, block = tmp_path / "mlp.onnx", "transformer.h.0.mlp."
    mlp = copy.deepcopy(model.transformer.h[0].mlp).eval()
    masks = {
        name.removeprefix(block): mask
        for name, mask in sparsifier.masks.items()
        if name.startswith(block)
    }
    report = export(mlp, torch.randn(2, 12, 32), path, masks=masks, policy="condensed")
    assert report.parity_error < 1e-5
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count("CondensedGemm") == 2
