"""Modules with the quantization operators that PyTorch's PT2E and torchao leave in a model."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from torch import nn

from fanin.export import convert, export

from .onnx_models import node_types, run

OPS = torch.ops.quantized_decomposed


class Quantized(nn.Module):
    """As PT2E converts a network: int8 weights per channel, float biases, a float output."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in (("conv", (24, 8, 3, 3)), ("second", (24, 24, 1, 1)), ("fc", (32, 24))):
            kept = torch.rand(shape, generator=generator) < 0.1
            weight = torch.randint(-127, 128, shape, generator=generator) * kept
            scale = 0.002 * (1 + torch.rand(shape[0], generator=generator))
            self.register_buffer(f"{name}_weight", weight.to(torch.int8))
            self.register_buffer(f"{name}_scale", scale)
            self.register_buffer(f"{name}_zero", torch.zeros(shape[0], dtype=torch.int64))
            bias = torch.randn(shape[0], generator=generator)
            self.register_parameter(f"{name}_bias", nn.Parameter(bias))

    def weight(self, name: str) -> torch.Tensor:
        parts = (getattr(self, f"{name}_{part}") for part in ("weight", "scale", "zero"))
        return OPS.dequantize_per_channel(*parts, 0, -127, 127, torch.int8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = _rounded(x, 0.03, 117)
        y = nn.functional.conv2d(y, self.weight("conv"), self.conv_bias, padding=1)
        y = _rounded(torch.relu(y), 0.04, 0)
        y = _rounded(nn.functional.conv2d(y, self.weight("second"), self.second_bias), 0.03, 60)
        y = _rounded(y.mean((2, 3)), 0.02, 60)
        return nn.functional.linear(y, self.weight("fc"), self.fc_bias)


def _rounded(x: torch.Tensor, scale: float, zero: int) -> torch.Tensor:
    integers = OPS.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)
    return OPS.dequantize_per_tensor(integers, scale, zero, 0, 255, torch.uint8)


TYPES = ["QLinearCondensedConv", "QLinearCondensedConv", "CondensedGemmIntegerToFloat"]


def ours(path: Path) -> list[str]:
    return [op_type for op_type in node_types(path) if "Condensed" in op_type]


def test_module_is_exported(tmp_path: Path):
    model, x = Quantized().eval(), torch.randn(2, 8, 9, 9)
    report = export(model, x, tmp_path / "out.onnx", policy="condensed")
    assert ours(tmp_path / "out.onnx") == TYPES
    assert [layer.decision for layer in report.layers] == ["condensed"] * 3
    assert all(check.units is not None for check in report.parity)
    (actual,) = run(tmp_path / "out.onnx", library=True, **{_input(tmp_path): x.numpy()})
    np.testing.assert_allclose(actual, model(x).detach().numpy(), atol=0.05)


def test_file_of_torchs_exporter_is_converted(tmp_path: Path):
    torch.onnx.export(
        Quantized().eval(),
        (torch.randn(2, 8, 9, 9),),
        tmp_path / "in.onnx",
        dynamo=True,
        external_data=False,
        verbose=False,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    report = convert(tmp_path / "in.onnx", tmp_path / "out.onnx", policy="condensed")
    assert ours(tmp_path / "out.onnx") == TYPES
    assert [layer.name for layer in report.layers] == ["conv_weight", "second_weight", "fc_weight"]
    for check in report.layer_checks:
        assert (check.layers, check.checked) == (3, 3)
        # A float bias is rounded to an integer.
        assert check.differing < 0.005 * check.integers
        assert check.float_error < 1e-6


def _input(folder: Path) -> str:
    return onnx.load(folder / "out.onnx").graph.input[0].name


def test_network_of_pt2e_is_converted(tmp_path: Path):
    """Quantized as torchao's documentation says, exported by torch, converted from the file."""
    pytest.importorskip("torchao", reason="pip install torchao")
    pt2e = importlib.import_module("torchao.quantization.pt2e.quantize_pt2e")
    x86 = importlib.import_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(384, 40), nn.ReLU(), nn.Linear(40, 8),
    ).eval()  # fmt: skip
    for layer in (model[2], model[5]):
        layer.weight.data *= torch.rand(layer.weight.shape) < 0.1
    shapes = ({0: torch.export.Dim("batch")},)
    x = torch.randn(4, 3, 10, 10)
    program = torch.export.export(model, (x,), dynamic_shapes=shapes).module()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = pt2e.prepare_pt2e(program, quantizer)
    prepared(x)
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    torch.onnx.export(
        pt2e.convert_pt2e(prepared),
        (x,),
        source,
        dynamo=True,
        external_data=False,
        verbose=False,
        dynamic_shapes=shapes,
    )
    before = source.read_bytes()
    report = convert(source, target, policy="condensed")
    assert source.read_bytes() == before
    assert ours(target) == ["QLinearCondensedConv", "QLinearCondensedGemm"]
    assert [layer.decision for layer in report.layers] == ["dense", *["condensed"] * 2, "dense"]
    feeds = {onnx.load(source).graph.input[0].name: x.numpy()}
    (actual,), (expected,) = run(target, library=True, **feeds), run(source, **feeds)
    np.testing.assert_allclose(expected, model(x).detach(), atol=0.05 * np.abs(expected).max())
    # Sums of floats are rounded where the op's are exact: an integer may differ by 1.
    np.testing.assert_allclose(actual, expected, atol=0.02 * np.abs(expected).max())
