"""A dense layer as ONNX models of other runtimes, in graph forms that they compile differently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..onnx_models import build_model

# DeepSparse 1.8 refuses newer ones.
_OPSET, _IR_VERSION = 13, 7


def save_dense_form(
    path: Path, form: str, weight: np.ndarray, bias: np.ndarray, batch: int
) -> dict[str, Any]:
    """Write x -> y as ``gemm``, ``matmul``, ``conv`` or ``spatial``; returns the worker's layer."""
    import onnx
    from onnx import helper

    outputs, inputs = weight.shape
    if form == "gemm":
        nodes = [helper.make_node("Gemm", ["x", "weight", "bias"], ["y"], transB=1)]
    elif form == "matmul":
        weight = np.ascontiguousarray(weight.T)
        nodes = [
            helper.make_node("MatMul", ["x", "weight"], ["product"]),
            helper.make_node("Add", ["product", "bias"], ["y"]),
        ]
    else:
        weight = weight[:, :, None, None]
        nodes = [helper.make_node("Conv", ["x", "weight", "bias"], ["y"], kernel_shape=[1, 1])]

    def shape(width: int) -> list[int]:
        tails = {"conv": [batch, width, 1, 1], "spatial": [1, width, 1, batch]}
        return tails.get(form, [batch, width])

    constants = {"weight": weight, "bias": bias}
    model = build_model(
        nodes, shape(inputs), shape(outputs), constants, opset=_OPSET, ir_version=_IR_VERSION
    )
    onnx.save(model, path)
    return {"model": str(path), "shape": shape(inputs)}
