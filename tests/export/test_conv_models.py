"""torchvision's networks at 90 %: what each node became, and equal outputs with and without us."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from fanin.export import export, inspect

from ._masks import settle_norms_, sparsify_convs_

torchvision = pytest.importorskip("torchvision")


def node_types(path: str) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def masked(name: str, ablated: float = 0.0) -> tuple[nn.Module, dict]:
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(num_classes=100)
    settle_norms_(model)
    first = "conv1" if name.startswith("resnet") else "features.0.0"
    masks = sparsify_convs_(model, 0.9, ablated)
    for key in [key for key in masks if key == f"{first}.weight"]:
        del masks[key]
    return model, masks


def check_mobilenet(tmp_path: Path, name: str, size: int, depthwise: int) -> None:
    model, masks = masked(name)
    report = export(
        model, torch.randn(1, 3, size, size), tmp_path / "m.onnx", masks=masks, policy="condensed"
    )
    found = {layer.name: layer for layer in report.layers}
    reasons = Counter(layer.reason for layer in found.values() if layer.decision == "condensed")
    assert reasons == {"by mask": len(masks), "depthwise, stored whole": depthwise}
    left = Counter(layer.reason for layer in found.values() if layer.decision == "dense")
    # The first convolution and the two layers of the classifier have no mask.
    assert left == {"no mask": 3}
    types = node_types(report.path)
    assert types["CondensedConv"] == len(masks) + depthwise
    assert types["Conv"] == 1
    # What is left gates the first convolution and the classifier, which stayed dense.
    assert types["HardSwish"] == 2
    assert not {"BatchNormalization", "HardSigmoid", "Relu"} & set(types)
    # Every residual add is one of a 1×1 convolution that ends its block.
    assert types["Add"] == 0
    assert report.parity_error <= 1e-4
    assert {check.engine.rpartition(" ")[0].split()[-1] for check in report.parity} == {
        "with",
        "without",
    }
    assert len(inspect(report.path).layers) == len(masks) + depthwise


def test_mobilenet_v3_small_takes_depthwise_convolutions_and_activations_along(tmp_path: Path):
    check_mobilenet(tmp_path, "mobilenet_v3_small", 64, depthwise=11)


@pytest.mark.slow
def test_mobilenet_v3_large_takes_depthwise_convolutions_and_activations_along(tmp_path: Path):
    check_mobilenet(tmp_path, "mobilenet_v3_large", 96, depthwise=15)


def test_masked_depthwise_convolutions_are_condensed_by_their_masks(tmp_path: Path):
    torch.manual_seed(0)
    model = torchvision.models.mobilenet_v3_small(num_classes=10).features[:4]
    masks = {}
    for name, parameter in model.named_parameters():
        if parameter.ndim == 4 and parameter.shape[1] == 1:
            masks[name] = torch.rand(parameter.shape) < 0.3
            with torch.no_grad():
                parameter.mul_(masks[name])
    report = export(
        model, torch.randn(1, 3, 32, 32), tmp_path / "m.onnx", masks=masks, policy="condensed"
    )
    reasons = {layer.reason for layer in report.layers if layer.name in masks}
    assert reasons == {"by mask"}
    assert report.parity_error <= 1e-4


@pytest.mark.slow
def test_resnet_50_is_condensed_convolutions_between_the_first_and_the_head(tmp_path: Path):
    model, masks = masked("resnet50", ablated=0.1)
    report = export(
        model, torch.randn(1, 3, 128, 128), tmp_path / "m.onnx", masks=masks, policy="condensed"
    )
    found = {layer.name: layer for layer in report.layers}
    assert {key for key, layer in found.items() if layer.decision == "condensed"} == set(masks)
    assert len(masks) == 52
    assert {key: found[key].reason for key in ("conv1.weight", "fc.weight")} == {
        "conv1.weight": "no mask",
        "fc.weight": "no mask",
    }
    types = node_types(report.path)
    assert types["CondensedConv"] == 52
    assert types["Conv"] == 1
    assert not {"BatchNormalization", "Add"} & set(types)
    # The activation of the first convolution is the only one that is a node.
    assert types["Relu"] == 1
    assert sum(line.startswith("Add into") for line in report.fused) == 16
    # Filters fold inside the blocks; what a residual add reads keeps its channels.
    folded = {line.split()[-1] for line in report.folded}
    inner = {
        f"layer{stage}.{block}.conv{number}"
        for stage, count in enumerate((3, 4, 6, 3), start=1)
        for block in range(count)
        for number in (1, 2)
    }
    assert folded == inner
    assert report.parity_error <= 1e-4
    assert len(report.parity) == 2
