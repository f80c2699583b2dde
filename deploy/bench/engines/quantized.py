"""Dense models with int8 weights, as ONNX Runtime's own tool makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..requirements import require

_INTEGER_OPS = ("MatMulInteger", "DynamicQuantizeMatMul", "QGemm", "ConvInteger")


def save_int8(model: Any, path: Path) -> Path:
    """Quantize the weights of an ONNX model dynamically (int8, per channel); returns ``path``.

    Raises QuantizationError when the tool left every weight as it was.
    """
    onnx = require("onnx", "the benchmark makes its models with it")
    quantization = require("onnxruntime.quantization", "it makes the int8 model")
    source = path.with_suffix(".float32.onnx")
    onnx.save(model, source)
    quantization.quantize_dynamic(
        source, path, per_channel=True, weight_type=quantization.QuantType.QInt8
    )
    if not {node.op_type for node in onnx.load(path).graph.node} & set(_INTEGER_OPS):
        raise QuantizationError("quantize_dynamic left every weight as it was")
    return path


class QuantizationError(RuntimeError):
    """ONNX Runtime's tool did not do what it is for."""
