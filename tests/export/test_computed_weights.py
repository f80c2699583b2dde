"""Weights that the model computes from constants, that it shares, or whose zeros nobody knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from fanin.export import convert, export, plan_conversion
from fanin.export.layer_sheet import layer_sheet
from fanin.export.passes.fold_weights import FoldWeightsPass

from .onnx_models import node, run, sparse, write_model

W = sparse((48, 32))
X = np.random.default_rng(0).standard_normal((3, 48)).astype(np.float32)


class MaskedByItself(nn.Module):
    """Drops the small entries of its weight in forward, as training with a threshold does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(96, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.layer.weight
        kept = weight.abs() > weight.abs().mean() * 1.8
        masked = torch.where(kept, weight, torch.zeros_like(weight))
        return nn.functional.linear(x, masked, self.layer.bias)


def test_a_mask_that_is_computed_from_its_weight_gives_one_line(tmp_path: Path):
    torch.manual_seed(0)
    model, x = MaskedByItself(), torch.randn(2, 96)
    report = export(model, x, tmp_path / "m.onnx", policy="condensed")
    (layer,) = report.layers
    assert (layer.name, layer.decision) == ("layer.weight", "condensed")
    assert 0.85 < layer.sparsity < 0.95
    got = run(tmp_path / "m.onnx", library=True, x=x.numpy())[0]
    np.testing.assert_allclose(got, model(x).detach().numpy(), atol=1e-5)


class Tied(nn.Module):
    def __init__(self, words: int = 256, size: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(words, size)
        with torch.no_grad():
            self.embedding.weight.mul_(torch.rand(words, size) < 0.1)
        self.head = nn.Linear(size, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(words))


@pytest.mark.parametrize("policy", ["condensed", "dense"])
def test_a_tied_embedding_stays_one_tensor_or_the_report_names_the_copy(tmp_path: Path, policy):
    words = torch.randint(0, 256, (2, 5))
    report = export(Tied(), words, tmp_path / "m.onnx", policy=policy)
    stored = [t.name for t in onnx.load(tmp_path / "m.onnx").graph.initializer if len(t.dims) == 2]
    said = [note for note in report.notes if "stays in the file" in note]
    assert [layer.decision for layer in report.layers] == [policy]
    if policy == "dense":
        assert (stored, said) == (["embedding.weight"], [])
        return
    assert set(stored) == {"embedding.weight", "embedding.values", "embedding.indices"}
    assert said == ["embedding.weight stays in the file as well: Gather node_embedding reads it"]
    export(Tied(), words, tmp_path / "d.onnx", policy="dense")
    # Dense, the file would hold the weight once.
    dense = (tmp_path / "d.onnx").stat().st_size
    assert report.dense_file_bytes == pytest.approx(dense, rel=0.05)


def normed(tmp_path: Path) -> Path:
    """A file with weight norm: g · v / ‖v‖."""
    nodes = [
        node("ReduceL2", ["v"], "n", axes=[0], keepdims=1),
        node("Div", ["v", "n"], "u"),
        node("Mul", ["g", "u"], "w"),
        node("MatMul", ["x", "w"]),
    ]
    arrays = {"v": W + np.float32(0.01), "g": np.linspace(1, 2, 32, dtype=np.float32)[None]}
    return write_model(tmp_path / "in.onnx", nodes, arrays)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_computed_weight_is_stored_as_such_in_half_precision(tmp_path: Path, precision: str):
    source = normed(tmp_path)
    convert(source, tmp_path / "out.onnx", policy="dense", precision=precision)
    graph = onnx.load(tmp_path / "out.onnx").graph
    assert [n.op_type for n in graph.node if n.op_type != "Cast"] == ["MatMul"]
    (weight,) = graph.initializer
    assert (weight.name, list(weight.dims)) == ("v", [48, 32])
    v, g = (onnx.numpy_helper.to_array(t) for t in onnx.load(source).graph.initializer)
    exact = g * v / np.linalg.norm(v, axis=0)
    half = onnx.numpy_helper.to_array(weight).astype(np.float32)
    np.testing.assert_allclose(half, exact, rtol=2.0**-8)


def test_a_shared_weight_that_is_only_turned_is_not_stored_twice(tmp_path: Path):
    nodes = [
        node("Transpose", ["w"], "t", perm=[1, 0]),
        node("MatMul", ["x", "w"], "a"),
        node("MatMul", ["a", "t"], "y"),
    ]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": W}, y=("batch", 48))
    model = ir.load(source)
    assert not FoldWeightsPass()(model).modified
    assert list(model.graph.initializers) == ["w"]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (node("Expand", ["w", "huge"], "v"), "before it makes too many numbers"),
        (node("Mul", ["w", "other"], "v"), "before it cannot be computed"),
    ],
)
def test_constants_that_cannot_be_computed_are_a_reason(tmp_path: Path, step, reason: str):
    arrays = {"w": W, "huge": np.array([1 << 20, 48, 32]), "other": np.ones((7, 5), np.float32)}
    used = {name: array for name, array in arrays.items() if name in step.input}
    source = write_model(tmp_path / "in.onnx", [step, node("MatMul", ["x", "v"])], used, y=None)
    model = onnx.load(source)
    model.graph.value_info.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, [48, 32]))
    onnx.save(model, source)
    (layer,) = plan_conversion(source)
    cells = layer_sheet([layer], "layers").rows[0]
    assert not layer.counted
    assert cells[2:5] == ("?", "?", "?")
    assert cells[-1].endswith(", so not computed")
    assert reason in layer.reason
