from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

from fanin.export import ExportError, convert, export, onnx_convert, torch_export, verify_layers
from fanin.export.verify_layers import check_layers

from .onnx_models import sparse, write_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"], name="second"),
    ]
    arrays = {"w": sparse((48, 64)), "v": sparse((64, 32), seed=1)}
    return write_model(tmp_path / "in.onnx", nodes, arrays)


def test_large_file_is_checked_layer_by_layer(source: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(onnx_convert, "LARGE", 1000)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert [check.engine.split(" ", 2)[2] for check in report.parity] == [
        "without library, layer by layer",
        "with library, layer by layer",
    ]
    assert report.not_checked == (verify_layers.LAYER_BY_LAYER,)
    assert all(check.relative_error < 1e-5 for check in report.parity)


def test_large_module_is_checked_layer_by_layer(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(torch_export, "LARGE", 1000)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 4))
    with torch.no_grad():
        model[0].weight.mul_(torch.rand(64, 40) < 0.1)
    report = export(model, torch.randn(2, 40), tmp_path / "m.onnx", policy="condensed")
    assert all("layer by layer" in check.engine for check in report.parity)
    assert len(report.parity) == 2


def test_layer_that_computes_something_else_is_named(source: Path, tmp_path: Path, monkeypatch):
    convert(source, tmp_path / "out.onnx", policy="condensed")
    original = verify_layers.condensed_layer_model

    def wrong(weight, batch, **options):
        if weight.out_features == 32:
            weight = replace(weight, bias=weight.bias + np.float32(0.5))
        return original(weight, batch, **options)

    monkeypatch.setattr(verify_layers, "condensed_layer_model", wrong)
    with pytest.raises(ExportError, match=r"node second in onnxruntime .* differs from its weight"):
        check_layers(tmp_path / "out.onnx")


def test_switched_off_verification_is_said(source: Path, tmp_path: Path):
    report = convert(source, tmp_path / "out.onnx", policy="condensed", verify=False)
    assert report.parity == ()
    assert report.not_checked == ("outputs: the verification was switched off",)
    onnx.checker.check_model(tmp_path / "out.onnx", full_check=True)
