"""Convolutional torch models, from small ones to those of torchvision."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest
import torch
from onnx import helper
from torch import nn

from fanin.export import ExportReport, export, inspect
from fanin.export.onnx_inspect import condensed_weights
from fanin.trainer.models import ResNet18

from ._masks import settle_norms_, sparsify_convs_


def node_types(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def decisions(report: ExportReport) -> dict[str, tuple[str, str]]:
    return {layer.name: (layer.decision, layer.reason) for layer in report.layers}


def clips(path: Path) -> Counter[tuple[float, float]]:
    found: Counter = Counter()
    for node in onnx.load(path).graph.node:
        if node.op_type == "CondensedConv":
            values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            found[values["clip_min"], values["clip_max"]] += 1
    return found


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory):
    torch.manual_seed(0)
    model = ResNet18(width=8).build((3, 32, 32), 10)
    settle_norms_(model)
    masks = sparsify_convs_(model, 0.8, 0.2)
    path = tmp_path_factory.mktemp("resnet") / "model.onnx"
    report = export(
        model, torch.randn(2, 3, 32, 32), path, masks=masks, policy="condensed", dense_baseline=True
    )
    return model, masks, report


def test_resnet_is_condensed_convolutions_a_mean_and_a_head(resnet):
    _, masks, report = resnet
    assert all(decisions(report)[name][0] == "condensed" for name in masks)
    types = node_types(Path(report.path))
    # Of 20 convolutions 17 clip at 0; 8 add what the shortcut brings.
    assert types.pop("CondensedConv") == len(masks) == 20
    assert set(types) <= {"ReduceMean", "GlobalAveragePool", "Flatten", "Reshape", "Gemm"}
    assert clips(Path(report.path)) == {(0.0, float("inf")): 17, (float("-inf"), float("inf")): 3}
    assert sum(line.startswith("Add into") for line in report.fused) == 8
    assert report.parity_error < 1e-4


def test_nodes_and_constants_have_the_modules_names(resnet):
    _, masks, report = resnet
    names = {layer.name for layer in inspect(report.path).layers}
    assert names == {name.removesuffix(".weight") for name in masks}
    assert "stage1_block1.conv1.values" in {
        t.name for t in onnx.load(report.path).graph.initializer
    }


def test_filters_fold_inside_a_block_and_stay_at_its_end(resnet):
    _, _, report = resnet
    folded = {line.split()[-1] for line in report.folded}
    assert folded == {f"stage{s}_block{b}.conv1" for s in (1, 2, 3, 4) for b in (1, 2)}
    kept = {line.split()[4].rstrip(":") for line in report.unfolded if "reads it" in line}
    assert {"conv", "stage1_block1.conv2", "stage2_block1.shortcut.conv"} <= kept
    weights = condensed_weights(report.path)
    first, second = (weights[f"stage1_block1.conv{n}"] for n in (1, 2))
    assert first.out_features < 8
    assert second.in_features == 9 * first.out_features


def test_same_model_gives_the_same_bytes_and_stays_as_it_is(resnet, tmp_path: Path):
    model, masks, report = resnet
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    again = export(
        model, torch.randn(2, 3, 32, 32), tmp_path / "again.onnx", masks=masks, policy="condensed"
    )
    assert Path(again.path).read_bytes() == Path(report.path).read_bytes()
    assert model.training
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_zeros_are_found_without_masks(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding="same"),
        nn.BatchNorm2d(16),
        nn.ReLU6(),
        nn.Conv2d(16, 16, 3, groups=16, padding=1),
        nn.Hardswish(),
        nn.Conv2d(16, 8, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    settle_norms_(model)
    sparsify_convs_(model, 0.7)
    with torch.no_grad():
        model[3].weight.mul_(torch.rand(model[3].weight.shape) < 0.3)
    report = export(model, torch.randn(1, 3, 12, 10), tmp_path / "m.onnx", policy="condensed")
    found = decisions(report)
    assert found["0.weight"] == ("condensed", "by its zeros")
    assert found["5.weight"][0] == "condensed"
    assert found["3.weight"] == ("condensed", "by its zeros")
    assert clips(Path(report.path)) == {(0.0, 6.0): 1, (float("-inf"), float("inf")): 2}


def test_convolutions_over_one_axis(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(4, 16, 5, stride=2, padding=2),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Conv1d(16, 8, 3, dilation=2),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
    )
    settle_norms_(model)
    masks = sparsify_convs_(model, 0.8, 0.2)
    report = export(
        model, torch.randn(2, 4, 40), tmp_path / "m.onnx", masks=masks, policy="condensed"
    )
    assert [layer.decision for layer in report.layers] == ["condensed"] * 2
    assert report.folded == ("3 ablated filters of 0",)
    assert "BatchNormalization" not in node_types(tmp_path / "m.onnx")


def test_dynamic_images_are_exported(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2, padding=1)
    )
    masks = sparsify_convs_(model, 0.7)
    report = export(
        model,
        torch.randn(2, 3, 16, 14),
        tmp_path / "m.onnx",
        masks=masks,
        policy="condensed",
        dynamic_shapes=[{0: "batch", 2: "height", 3: "width"}],
    )
    assert len(report.condensed_layers) == 2
    shape = onnx.load(report.path).graph.input[0].type.tensor_type.shape
    assert [d.dim_param for d in shape.dim] == ["batch", "", "height", "width"]


@pytest.mark.parametrize("policy", ["structured", "dense"])
def test_portable_model_has_standard_operators(tmp_path: Path, policy: str):
    torch.manual_seed(0)
    model = ResNet18(width=4).build((3, 16, 16), 5)
    settle_norms_(model)
    masks = sparsify_convs_(model, 0.8, 0.3)
    report = export(
        model,
        torch.randn(2, 3, 16, 16),
        tmp_path / "m.onnx",
        masks=masks,
        policy=policy,
        portable=True,
    )
    proto = onnx.load(tmp_path / "m.onnx")
    assert not proto.functions
    assert {node.domain for node in proto.graph.node} == {""}
    assert all(layer.decision == policy for layer in report.layers if layer.name in masks)
    assert report.folded


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values_are_rounded_with_the_norm_in_them(tmp_path: Path, dtype: str):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3),
        nn.Flatten(),
    )
    settle_norms_(model)
    masks = sparsify_convs_(model, 0.8, 0.3)
    report = export(
        model,
        torch.randn(2, 3, 9, 9),
        tmp_path / "m.onnx",
        masks=masks,
        policy="condensed",
        values_dtype=dtype,
    )
    assert {layer.values_dtype for layer in report.layers} == {dtype}
    stored = condensed_weights(tmp_path / "m.onnx")
    assert {str(weight.values.dtype) for weight in stored.values()} == {dtype}
    assert report.folded == ("4 ablated filters of 0",)
    assert 1e-5 < report.output_rounding_error < 1e-1
    assert report.parity_error < 1e-5
