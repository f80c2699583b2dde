"""Which weights of a torch model are condensed, what the report says of the others, and masks."""

from __future__ import annotations

from pathlib import Path
from types import MethodType

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from fanin.export import ExportError, LayerReport
from fanin.export.onnx_inspect import condensed_weights
from fanin.export.torch_copy import eval_copy
from fanin.export.torch_layers import check_masks, list_weights

from .conftest import export_condensed


def sparsify(module: nn.Module, keep: float = 0.1) -> nn.Module:
    """Zero most of a module's weight in place."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        module.weight.mul_(torch.rand(module.weight.shape, generator=generator) < keep)
    return module


def layers(
    tmp_path: Path, model: nn.Module, example: torch.Tensor, **options
) -> dict[str, LayerReport]:
    report = export_condensed(model, example, tmp_path / "m.onnx", **options)
    return {layer.name: layer for layer in report.layers}


def decisions(tmp_path: Path, model: nn.Module, width: int, **options) -> dict[str, str]:
    """Reason by parameter name, "condensed" for condensed ones."""
    found = layers(tmp_path, model, torch.randn(2, width), **options)
    return {n: r.reason if r.decision == "dense" else r.decision for n, r in found.items()}


def test_zeros_decide_without_masks(tmp_path: Path):
    model = nn.Sequential(sparsify(nn.Linear(20, 30)), nn.Linear(30, 4))
    assert decisions(tmp_path, model, 20) == {
        "0.weight": "condensed",
        "1.weight": "sparsity 0.0%, under 50%",
    }


def test_minimum_sparsity_holds_for_masked_layers_too(tmp_path: Path):
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    mask = torch.ones(10, 10, dtype=torch.bool)
    mask[:, :3] = False
    with torch.no_grad():
        model[0].weight.mul_(mask)
    masks = {"0.weight": mask}
    found = decisions(tmp_path, model, 10, masks=masks)
    assert found["0.weight"] == "sparsity 30.0%, under 50%"
    found = decisions(tmp_path, model, 10, masks=masks, min_sparsity=0.3)
    assert found == {"0.weight": "condensed", "1.weight": "no mask"}


@pytest.mark.parametrize("shape", [(2, 8), (2, 3, 8)])
def test_zero_under_the_mask_stays_a_stored_weight(tmp_path: Path, shape: tuple[int, ...]):
    model = nn.Sequential(nn.Linear(8, 4))
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[:, 2] = True
    with torch.no_grad():
        model[0].weight.zero_()
    layer = layers(tmp_path, model, torch.randn(shape), masks={"0.weight": mask})["0.weight"]
    stored = condensed_weights(tmp_path / "m.onnx")["0"]
    np.testing.assert_array_equal(stored.indices, [[2]] * 4)
    assert (layer.sparsity, layer.active, layer.reason) == (7 / 8, 4, "by mask")


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_layers_that_torch_computes_in_other_ways_are_condensed_too(tmp_path: Path):
    hooked = sparsify(nn.Linear(20, 20))
    hooked.register_forward_hook(lambda *arguments: arguments[2] + 1)
    patched = sparsify(nn.Linear(20, 20))
    patched.forward = MethodType(lambda self, x: nn.functional.linear(x, self.weight), patched)
    model = nn.Sequential(sparsify(Doubled(20, 20)), hooked, patched)
    found = layers(tmp_path, model, torch.randn(2, 20))
    assert [layer.kind for layer in found.values()] == ["Doubled", "Linear", "Linear"]
    assert {layer.decision for layer in found.values()} == {"condensed"}


class Words(nn.Module):
    """Looks words up, and has layers that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.words = sparsify(nn.Embedding(9, 20))
        self.idle = sparsify(nn.Linear(20, 20))
        self.head = sparsify(nn.Linear(20, 5))

    def forward(self, ids):
        return self.head(self.words(ids))


def test_weights_that_cannot_be_condensed_are_listed_with_the_reason(tmp_path: Path):
    found = layers(tmp_path, Words(), torch.randint(0, 9, (2, 4)))
    assert {name: layer.reason for name, layer in found.items()} == {
        "words.weight": "Embedding is not supported",
        "idle.weight": "not in the file: no output depends on it",
        "head.weight": "by its zeros",
    }
    assert found["idle.weight"].bytes_dense == 0


def test_convolution_reports_its_filters_sparsity():
    conv = nn.Conv2d(3, 8, 3)
    mask = np.zeros((8, 3, 3, 3), bool)
    mask[1:, 0, 1, :2] = True
    (report,) = list_weights(nn.Sequential(conv), {"0.weight": mask})
    assert (report.active, report.fan_in) == (7, 2)
    assert report.sparsity == pytest.approx(1 - 14 / 216)
    assert report.bytes_dense == 4 * (216 + 8)


def test_shared_parameter_is_one_layer_and_its_mask_may_use_any_name(tmp_path: Path):
    first, second = nn.Linear(12, 12), nn.Linear(12, 12)
    second.weight = first.weight
    model = nn.Sequential(first, nn.Tanh(), second, first)
    sparsify(first)
    masks = {"2.weight": first.weight != 0}
    found = layers(tmp_path, model, torch.randn(2, 12), masks=masks)
    assert {name: layer.nodes for name, layer in found.items()} == {"0.weight": ("0", "0_1", "0_2")}
    weights = condensed_weights(tmp_path / "m.onnx")
    for node, linear in zip(("0", "0_1", "0_2"), (first, second, first), strict=True):
        np.testing.assert_array_equal(weights[node].to_dense(), linear.weight.detach())
        np.testing.assert_array_equal(weights[node].bias, linear.bias.detach())
    names = [tensor.name for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer]
    assert len([name for name in names if "values" in name]) == 1


@pytest.mark.parametrize(
    ("masks", "sentence"),
    [
        ({"0.wieght": torch.ones(4, 8)}, "'0.wieght' names no parameter.*Did you mean '0.weight'"),
        ({"0.weight": torch.ones(8, 4)}, r"shape \[8, 4\], the parameter has \[4, 8\]"),
        ({"0.bias": torch.ones(4)}, "masks belong to weights of two or more dimensions"),
        ({"0.weight": torch.full((4, 8), 0.5)}, "holds other values than 0 and 1"),
        ({"0.weight": torch.zeros(4, 8)}, r"0.weight\[0, 0\] is .* although its mask leaves it"),
    ],
)
def test_mask_that_does_not_fit_is_refused(masks: dict, sentence: str):
    with pytest.raises(ExportError, match=sentence):
        check_masks(nn.Sequential(nn.Linear(8, 4)), masks)


def test_model_that_is_itself_a_linear_layer_is_called_layer(tmp_path: Path):
    found = layers(tmp_path, sparsify(nn.Linear(16, 4)), torch.randn(2, 16))
    assert found["weight"].nodes == ("layer",)
    names = {tensor.name for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer}
    assert names == {f"layer.{part}" for part in ("values", "indices", "bias", "rows")} | {
        "layer.no_residual"
    }


def test_copy_shares_parameters_but_not_buffers():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    copied = eval_copy(model).model
    assert copied[0].weight is model[0].weight
    assert copied[1].running_mean is not model[1].running_mean


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: m.double(), "0.weight is float64; models of float32"),
        (lambda m: m.to("meta"), "0.weight lies on the meta device"),
        (lambda m: m.append(nn.LazyLinear(3)), "1.weight is not initialized"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*[Ll]azy.*:UserWarning")
def test_tensor_that_cannot_be_exported_is_named(change, sentence: str):
    model = nn.Sequential(nn.Linear(4, 4))
    change(model)
    with pytest.raises(ExportError, match=sentence):
        eval_copy(model)
