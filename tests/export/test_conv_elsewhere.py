"""A convolutional network's file where the library is absent: other runtimes take its functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from fanin.export import convert

from .conv_nets import ConvNet


def in_onnxruntime(path: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def in_the_reference_evaluator(path: Path, x: np.ndarray) -> np.ndarray:
    return ReferenceEvaluator(str(path)).run(None, {"x": x})[0]


def in_openvino(path: Path, x: np.ndarray) -> np.ndarray:
    """As docs/export.md says: OpenVINO reads no functions, so they are inlined first."""
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    inlined = onnx.inliner.inline_local_functions(onnx.load(path))
    assert not inlined.functions
    assert {node.domain for node in inlined.graph.node} == {""}
    plain = path.with_name("inlined.onnx")
    onnx.save(inlined, plain)
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    return openvino.Core().compile_model(plain, "CPU", settings)({"x": x})[0]


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> tuple[Path, ConvNet]:
    """A depthwise block with a gate and a residual, and an ablated filter that folds."""
    net = ConvNet(0, channels=8)
    net.conv(8, 1, density=0.3)
    net.unary("HardSwish")
    net.conv(8, 3, group=8, density=1.0)
    net.batch_norm()
    net.unary("HardSwish")
    net.conv(8, 1, ablated=0.3)
    net.residual()
    net.unary("Relu")
    net.conv(4, 3, stride=2)
    folder = tmp_path_factory.mktemp("elsewhere")
    onnx.save(net.model(), folder / "in.onnx")
    convert(folder / "in.onnx", folder / "out.onnx", policy="condensed")
    types = [node.op_type for node in onnx.load(folder / "out.onnx").graph.node]
    assert types.count("CondensedConv") == 4
    return folder / "out.onnx", net


@pytest.mark.parametrize("run", [in_onnxruntime, in_the_reference_evaluator, in_openvino])
def test_the_file_runs_without_the_library(network, run):
    path, net = network
    expected = net.value.numpy()
    actual = run(path, net.x)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, atol=2e-5 * np.abs(expected).max())
