"""Convolutional networks of other libraries, trained in two lines, are exported like our own."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn

from fanin.export import export
from fanin.ort_ops import register
from fanin.trainer import Sparsifier, SRigL


def train_two_lines(model: nn.Module, steps: int = 4) -> Sparsifier:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sparsifier = Sparsifier(
        model, optimizer, method=SRigL(sparsity=0.8), total_steps=steps, update_every=2
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        images = torch.randn(4, 3, 64, 64, generator=generator)
        nn.functional.cross_entropy(model(images), torch.arange(4)).backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()
    return sparsifier


def check_export(model: nn.Module, path: Path) -> None:
    sparsifier = train_two_lines(model)
    report = export(
        model, torch.randn(2, 3, 64, 64), path, masks=sparsifier.masks, policy="condensed"
    )
    found = {layer.name: layer for layer in report.layers}
    for name, mask in sparsifier.masks.items():
        sparse = 1 - float(mask.float().mean()) >= 0.5
        whole = found[name].reason == "depthwise, stored whole"
        assert (found[name].decision == "condensed") == (sparse or whole), name
    kinds = [layer.kind for layer in found.values() if layer.decision == "condensed"]
    assert kinds.count("Conv2d") > 10
    # Without and with the library, against torch.
    assert len(report.parity) == 2
    assert report.parity_error <= 1e-4
    options = onnxruntime.SessionOptions()
    register(options)
    session = onnxruntime.InferenceSession(report.path, options)
    (port,) = session.get_inputs()
    x = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        expected = model.eval()(x)
    (actual,) = session.run(None, {port.name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(actual), expected, rtol=1e-4, atol=1e-4)


def test_a_torchvision_network_trained_in_two_lines_is_exported(tmp_path: Path):
    torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
    torch.manual_seed(0)
    check_export(torchvision.models.mobilenet_v3_small(num_classes=4), tmp_path / "m.onnx")


def test_a_timm_network_trained_in_two_lines_is_exported(tmp_path: Path):
    timm = pytest.importorskip("timm", reason="timm is not installed: pip install 'fanin[timm]'")
    torch.manual_seed(0)
    model = timm.create_model("mobilenetv3_small_050", num_classes=4)
    check_export(model, tmp_path / "m.onnx")
