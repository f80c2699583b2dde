"""Exported attention: the same as torch computes, with no copies that could be saved."""

from collections import Counter
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

from fanin.deploy import open_session
from fanin.export import convert, export

WIDTH = 24


class Block(nn.Module):
    """Attention as in a transformer: norm before, residual sum behind."""

    def __init__(self, heads: int, *, batch_first: bool = True, context: int | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, heads, batch_first=batch_first)
        self.batch_first = batch_first
        self.context = context

    def forward(self, x):
        y = self.norm(x) if self.batch_first else self.norm(x).transpose(0, 1)
        z = y if self.context is None else y[:, : self.context]
        y = self.attention(y, z, z, need_weights=False)[0]
        return x + (y if self.batch_first else y.transpose(0, 1))


def thinned(model: nn.Module, *names: str) -> nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Biases of zeros would be left out.
            parameter.copy_(0.3 * torch.randn_like(parameter))
            if name.endswith(names):
                parameter.mul_(torch.rand_like(parameter) < 0.2)
    return model.eval()


def check_outputs(path: Path, model: nn.Module, x: torch.Tensor) -> None:
    """Compare with torch in float64, with the library and without it."""
    with torch.no_grad():
        expected = deepcopy(model).double()(x.double()).numpy()
    for session in (open_session(path), ort.InferenceSession(path)):
        (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        np.testing.assert_allclose(actual, expected, atol=2e-6 * np.abs(expected).max())


def operators(path: Path) -> Counter:
    return Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)


def check_export(model: nn.Module, tmp_path: Path, length: int, **options) -> tuple:
    """Export, compare batches of 1 and 3 of both files, count operators of both."""
    files = tmp_path / "net.onnx", tmp_path / "net.dense.onnx"
    example = torch.randn(2, length, WIDTH)
    export(model, example, files[0], policy="condensed", dense_baseline=True, **options)
    for batch in (1, 3):
        for path in files:
            check_outputs(path, model, torch.randn(batch, length, WIDTH))
    return tuple(map(operators, files))


@pytest.mark.parametrize(
    ("opset", "heads", "length"), [(17, 3, 7), (18, 4, 4), (20, 2, 12), (20, 4, 1)]
)
def test_self_attention_keeps_one_transpose_for_each_tensor(opset, heads, length, tmp_path):
    model = thinned(Block(heads), "out_proj.weight")
    sparse, dense = check_export(model, tmp_path, length, opset=opset)
    assert sparse["CondensedGemm"] == 1
    assert sparse["Transpose"] == dense["Transpose"] == 5
    assert sparse["Gemm"] == 3
    assert dense["Gemm"] == 4
    # The residual sum is the layer's.
    assert (sparse["Add"], dense["Add"]) == (0, 1)
    for gone in ("Split", "Gather", "Slice", "Concat", "Shape", "Squeeze", "Unsqueeze"):
        assert sparse[gone] == dense[gone] == 0


def test_a_single_head_needs_no_head_dimension_to_be_moved(tmp_path):
    sparse, _ = check_export(thinned(Block(1), "out_proj.weight"), tmp_path, 5)
    assert (sparse["Gather"], sparse["Add"], sparse["Gemm"]) == (0, 0, 3)


def test_attention_operator_of_opset_23_gets_heads_by_one_transpose_each(tmp_path):
    sparse, dense = check_export(thinned(Block(3), "out_proj.weight"), tmp_path, 6, opset=23)
    assert sparse["Attention"] == dense["Attention"] == 1
    assert sparse["Transpose"] == dense["Transpose"] == 5


def test_a_condensed_projection_stays_whole_and_is_split(tmp_path):
    model = thinned(Block(4), "out_proj.weight", "in_proj_weight")
    sparse, dense = check_export(model, tmp_path, 9)
    assert sparse["CondensedGemm"] == 2
    assert (sparse["Split"], dense["Split"]) == (1, 0)
    assert sparse["Transpose"] == 5
    assert sparse["MatMul"] == 2  # scores, and what they weigh


def test_tokens_of_any_number_are_reordered_too(tmp_path):
    model = thinned(Block(3), "out_proj.weight")
    names = ({0: "batch", 1: "tokens"},)
    sparse, _ = check_export(model, tmp_path, 8, dynamic_shapes=names)
    check_outputs(tmp_path / "net.onnx", model, torch.randn(2, 5, WIDTH))
    assert (sparse["Transpose"], sparse["Shape"], sparse["Split"]) == (5, 0, 1)


def test_tokens_in_front_need_no_transpose_more(tmp_path):
    model = thinned(Block(3, batch_first=False), "out_proj.weight")
    sparse, _ = check_export(model, tmp_path, 8)
    assert sparse["Transpose"] == 5


def test_keys_of_another_length_are_taken_apart_alike(tmp_path):
    model = thinned(Block(3, context=2), "out_proj.weight")
    sparse, dense = check_export(model, tmp_path, 8)
    assert sparse["Gather"] == dense["Gather"] == 0
    assert sparse["Squeeze"] == 0


class Weights(Block):
    """Attention with a mask, whose weights are an output as well."""

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        y, weights = self.attention(x, x, x, attn_mask=mask)
        return x + y, weights


def test_masks_and_weights_of_attention_stay(tmp_path):
    model, x = thinned(Weights(3), "out_proj.weight"), torch.randn(3, 6, WIDTH)
    export(model, torch.randn(2, 6, WIDTH), tmp_path / "net.onnx", policy="condensed")
    with torch.no_grad():
        expected = [out.numpy() for out in deepcopy(model).double()(x.double())]
    session = open_session(tmp_path / "net.onnx")
    actual = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_allclose(other, one, atol=2e-6 * np.abs(one).max())


def test_a_file_of_torch_is_converted_to_the_same_layout(tmp_path):
    model = thinned(Block(3), "out_proj.weight")
    source, x = tmp_path / "torch.onnx", torch.randn(2, 6, WIDTH)
    torch.onnx.export(
        model, (x,), source, dynamo=True, opset_version=20, dynamic_shapes=({0: "n"},)
    )
    convert(source, tmp_path / "net.onnx", policy="condensed")
    check_outputs(tmp_path / "net.onnx", model, torch.randn(3, 6, WIDTH))
    found = operators(tmp_path / "net.onnx")
    assert (found["Transpose"], found["Add"], found["Gather"], found["Split"]) == (5, 0, 0, 0)


def test_onnx_runtime_copies_heads_into_no_other_order(tmp_path):
    model = thinned(Block(3), "out_proj.weight")
    check_export(model, tmp_path, 6)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    open_session(tmp_path / "net.onnx", options=options)
    found = operators(tmp_path / "optimized.onnx")
    # Tokens to the front, and what attention gives; the rest are flags of products.
    assert (found["Transpose"], found["FusedMatMul"], found["Mul"]) == (2, 2, 0)


def test_a_second_export_gives_the_same_bytes(tmp_path):
    model, example = thinned(Block(3), "out_proj.weight"), torch.randn(2, 6, WIDTH)
    for name in ("one.onnx", "two.onnx"):
        export(model, example, tmp_path / name, policy="condensed")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
