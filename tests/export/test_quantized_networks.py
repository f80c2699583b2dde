"""Whole networks that onnxruntime.quantization has quantized."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torchvision
from onnx import numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

from fanin.export import convert, onnx_convert, verify_layers
from fanin.export.quantized_cpus import Cpu
from fanin.export.report import UNCHANGED

from .onnx_models import node_types, run


class Random(CalibrationDataReader):
    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(0)
        samples = [rng.standard_normal(shape).astype(np.float32) for _ in range(3)]
        self._feeds = iter([{name: sample} for sample in samples])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


class Block(nn.Module):
    """A transformer's encoder layer, 64 features wide."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.query, self.key = nn.Linear(64, 64), nn.Linear(64, 64)
        self.value, self.out = nn.Linear(64, 64), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        parts = [layer(y).unflatten(-1, (4, 16)).transpose(1, 2) for layer in self.projections]
        heads = nn.functional.scaled_dot_product_attention(*parts)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    @property
    def projections(self) -> tuple[nn.Linear, ...]:
        return self.query, self.key, self.value


def float_model(folder: Path, module: nn.Module, example: torch.Tensor) -> Path:
    """Write a module with 90 % of its weights at 0, prepared for quantization."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1 and name not in ("conv1.weight", "fc.weight"):
            kept = torch.rand(parameter.shape, generator=generator) < 0.1
            parameter.data *= 3 * kept
    batch = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(
        module.eval(),
        (example,),
        folder / "float.onnx",
        dynamo=True,
        opset_version=18,
        dynamic_shapes=batch,
        external_data=False,
        verbose=False,
    )
    quant_pre_process(folder / "float.onnx", folder / "prepared.onnx")
    return folder / "prepared.onnx"


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("resnet")
    return float_model(folder, torchvision.models.resnet18(), torch.randn(2, 3, 64, 64))


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return float_model(tmp_path_factory.mktemp("block"), Block(), torch.randn(2, 7, 64))


def static(source: Path, form: QuantFormat, shape: tuple[int, ...], target: Path) -> Path:
    name = onnx.load(source).graph.input[0].name
    quantize_static(
        source,
        target,
        Random(name, shape),
        quant_format=form,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return target


@pytest.mark.parametrize("form", QuantFormat)
def test_static_resnet(resnet: Path, tmp_path: Path, form: QuantFormat):
    source = static(resnet, form, (2, 3, 64, 64), tmp_path / "in.onnx")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert hashlib.sha256(source.read_bytes()).hexdigest() == digest
    assert [layer.decision for layer in report.layers] == ["dense", *["condensed"] * 19, "dense"]
    assert node_types(tmp_path / "out.onnx").count("QLinearCondensedConv") == 19
    for check in report.layer_checks:
        assert (check.layers, check.checked) == (19, 19)
        # A QLinearConv computes what our op does; a QDQ pair rounds floats that it summed.
        assert check.differing <= (0 if form == QuantFormat.QOperator else 20)
        assert check.integers > 250_000
    x = np.random.default_rng(3).standard_normal((3, 3, 64, 64)).astype(np.float32)
    (expected,) = run(source, x=x)
    for library in (False, True):
        (actual,) = run(tmp_path / "out.onnx", library=library, x=x)
        if form == QuantFormat.QOperator:
            np.testing.assert_array_equal(actual, expected)
        else:
            assert np.abs(actual - expected).max() < 0.05 * np.abs(expected).max()


def test_quantized_network_that_stays_dense_is_written(resnet: Path, tmp_path: Path):
    source = static(resnet, QuantFormat.QDQ, (2, 3, 64, 64), tmp_path / "in.onnx")
    report = convert(source, tmp_path / "out.onnx", policy="dense")
    assert {layer.decision for layer in report.layers} == {"dense"}
    assert len(report.layers) == 21
    assert (report.parity, report.not_checked) == ((), (UNCHANGED,))
    x = np.random.default_rng(3).standard_normal((3, 3, 64, 64)).astype(np.float32)
    for library in (None, False):
        both = [run(path, library=library, x=x)[0] for path in (source, tmp_path / "out.onnx")]
        np.testing.assert_array_equal(*both)


@pytest.mark.parametrize("form", QuantFormat)
def test_static_transformer(block: Path, tmp_path: Path, form: QuantFormat):
    source = static(block, form, (2, 7, 64), tmp_path / "in.onnx")
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert [layer.decision for layer in report.layers] == ["condensed"] * 6
    assert node_types(tmp_path / "out.onnx").count("QLinearCondensedGemm") == 6
    assert all(check.checked == 6 for check in report.layer_checks)


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic_transformer(block: Path, tmp_path: Path, per_channel: bool):
    """Query, key and value share what is quantized; the other layers quantize it themselves."""
    quantize_dynamic(
        block, tmp_path / "in.onnx", per_channel=per_channel, weight_type=QuantType.QInt8
    )
    report = convert(tmp_path / "in.onnx", tmp_path / "out.onnx", policy="condensed")
    assert [layer.decision for layer in report.layers] == ["condensed"] * 6
    types = node_types(tmp_path / "out.onnx")
    assert types.count("CondensedGemmIntegerToFloat") == 3
    assert types.count("DynamicQuantizeCondensedGemm") == 3
    assert types.count("DynamicQuantizeLinear") == 1
    # Both residual sums are fused.
    assert sum("Add" in line for line in report.fused) == 2
    x = np.random.default_rng(3).standard_normal((3, 7, 64)).astype(np.float32)
    (expected,) = run(tmp_path / "in.onnx", x=x)
    for library in (False, True):
        (actual,) = run(tmp_path / "out.onnx", library=library, x=x)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_asymmetric_weights_are_reported(block: Path, tmp_path: Path):
    quantize_dynamic(block, tmp_path / "in.onnx", weight_type=QuantType.QUInt8)
    report = convert(tmp_path / "in.onnx", tmp_path / "out.onnx", policy="condensed")
    assert all(layer.sparsity > 0.85 for layer in report.layers)
    constants = onnx.load(tmp_path / "in.onnx").graph.initializer
    zeros = {tensor.name: numpy_helper.to_array(tensor) for tensor in constants}
    for layer in report.layers:
        name = layer.name.replace("_quantized", "_zero_point")
        symmetric = zeros[name] == 128
        assert layer.decision == ("condensed" if symmetric else "dense")
        assert ("zero point" in layer.reason) != symmetric


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_large_network_is_checked_by_the_definition(
    block: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.setattr(onnx_convert, "LARGE", 1000)
    if kind == "static":
        static(block, QuantFormat.QDQ, (2, 7, 64), tmp_path / "in.onnx")
    else:
        quantize_dynamic(block, tmp_path / "in.onnx", weight_type=QuantType.QInt8)
    report = convert(tmp_path / "in.onnx", tmp_path / "out.onnx", policy="condensed")
    assert report.not_checked == (verify_layers.LAYER_BY_LAYER,)
    assert [check.engine.split(" ", 2)[2] for check in report.parity] == [
        "with library, layer by layer"
    ]


def test_auto_chooses_by_size(block: Path, resnet: Path, tmp_path: Path, monkeypatch):
    """Small layers stay ONNX Runtime's own, the large convolutions are condensed."""
    monkeypatch.setattr(Cpu, "of_this_machine", lambda: Cpu("avx512vbmi"))
    quantize_dynamic(block, tmp_path / "small.onnx", weight_type=QuantType.QInt8)
    report = convert(tmp_path / "small.onnx", tmp_path / "out.onnx")
    assert {layer.decision for layer in report.layers} == {"dense"}
    source = static(resnet, QuantFormat.QDQ, (2, 3, 64, 64), tmp_path / "large.onnx")
    report = convert(source, tmp_path / "out.onnx")
    assert report.layers[-2].decision == "condensed"
    assert report.layers[-2].speedup is not None
