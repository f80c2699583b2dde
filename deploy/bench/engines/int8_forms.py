"""A dense layer of 8-bit integers as ONNX models, in the graph forms of several runtimes.

uint8 in and out, as between two layers of a quantized network, except for ``dynamic`` and the forms
that end in ``-float``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..requirements import require
from .onnx_models import X_QUANTIZED, build_model
from .quantized_layer import QuantizedLayer

_OPSET, _IR_VERSION = 13, 7
"""DeepSparse 1.8 refuses newer ones."""

_MICROSOFT = "com.microsoft"


def save_int8_form(path: Path, form: str, layer: QuantizedLayer, batch: int) -> dict[str, Any]:
    """Write a layer in one of FORMS; returns the ``model`` and the ``shape`` of its input.

    The forms with one scale for all outputs round the weights once more.
    """
    onnx = require("onnx", "the benchmark makes its models with it")
    nodes, constants = FORMS[form](layer)

    def shape(width: int) -> list[int]:
        tails = {"conv": [batch, width, 1, 1], "spatial": [1, width, 1, batch]}
        return tails.get(form.removesuffix("-float"), [batch, width])

    floats = form == "dynamic" or form.endswith("-float")
    x, dtype = ("x", np.float32) if floats else (X_QUANTIZED, np.uint8)
    model = build_model(
        nodes,
        shape(layer.in_features),
        shape(layer.out_features),
        constants,
        opset=_OPSET,
        ir_version=_IR_VERSION,
        x=x,
        dtype=dtype,
    )
    onnx.save(model, path)
    return {"model": str(path), "shape": shape(layer.in_features), "dtype": np.dtype(dtype).name}


def _node(op_type: str, inputs: str, output: str, domain: str = "", **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(
        op_type, inputs.split(), [output], name=output, domain=domain, **attributes
    )


def _grids(layer: QuantizedLayer) -> dict[str, np.ndarray]:
    constants = {}
    for name, grid in (("x", layer.x), ("y", layer.y)):
        constants[f"{name}_scale"] = np.array(grid.scale, np.float32)
        constants[f"{name}_zero"] = np.array(grid.zero_point, np.uint8)
    return constants


def _by_columns(layer: QuantizedLayer) -> dict[str, np.ndarray]:
    zeros = np.zeros(layer.out_features, np.int8)
    weight = np.ascontiguousarray(layer.integers.T)
    return {"weight": weight, "weight_scale": layer.scales, "weight_zero": zeros}


_Form = tuple[list[Any], dict[str, np.ndarray]]


def _gemm(layer: QuantizedLayer) -> _Form:
    inputs = f"{X_QUANTIZED} x_scale x_zero weight weight_scale weight_zero bias y_scale y_zero"
    constants = {**_grids(layer), **_by_columns(layer), "bias": layer.integer_bias}
    return [_node("QGemm", inputs, "y", _MICROSOFT)], constants


def _dynamic(layer: QuantizedLayer) -> _Form:
    inputs = "x weight weight_scale weight_zero bias"
    constants = {**_by_columns(layer), "bias": layer.bias}
    return [_node("DynamicQuantizeMatMul", inputs, "y", _MICROSOFT)], constants


def _matmul(layer: QuantizedLayer) -> _Form:
    nodes = [
        _node("MatMulInteger", f"{X_QUANTIZED} weight x_zero weight_zero", "sums"),
        _node("Cast", "sums", "floats", to=1),
        _node("Mul", "floats unit", "products"),
        _node("Add", "products bias", "outputs"),
        _node("QuantizeLinear", "outputs y_scale y_zero", "y"),
    ]
    constants = {
        **_grids(layer),
        "weight": np.ascontiguousarray(layer.integers.T),
        "weight_zero": np.zeros((), np.int8),
        "unit": np.float32(layer.x.scale) * layer.scales,
        "bias": layer.bias,
    }
    del constants["x_scale"]
    return nodes, constants


def _conv(layer: QuantizedLayer) -> _Form:
    layer = layer.with_one_scale()
    inputs = f"{X_QUANTIZED} x_scale x_zero weight weight_scale weight_zero y_scale y_zero bias"
    constants = {
        **_grids(layer),
        "weight": layer.integers[:, :, None, None],
        "weight_scale": layer.scales[0],
        "weight_zero": np.zeros((), np.int8),
        "bias": layer.integer_bias,
    }
    return [_node("QLinearConv", inputs, "y", kernel_shape=[1, 1])], constants


def _with_floats(make: Callable[[QuantizedLayer], _Form]) -> Callable[[QuantizedLayer], _Form]:
    """Make a form read and write float32, on the same grids."""

    def form(layer: QuantizedLayer) -> _Form:
        nodes, constants = make(layer)
        first = _node("QuantizeLinear", "x x_scale x_zero", X_QUANTIZED)
        *nodes, last = nodes
        if last.op_type == "QuantizeLinear":
            nodes[-1].output[:] = last.output
        else:
            last.name = last.output[0] = "numbers"
            nodes += [last, _node("DequantizeLinear", "numbers y_scale y_zero", "y")]
        nodes = [first, *nodes]
        used = {name for node in nodes for name in node.input}
        constants = {**_grids(layer), **constants}
        return nodes, {name: array for name, array in constants.items() if name in used}

    return form


def _qdq(layer: QuantizedLayer) -> _Form:
    nodes = [
        _node("DequantizeLinear", f"{X_QUANTIZED} x_scale x_zero", "x"),
        _node("DequantizeLinear", "weight weight_scale weight_zero", "floats", axis=0),
        _node("Gemm", "x floats bias", "outputs", transB=1),
        _node("QuantizeLinear", "outputs y_scale y_zero", "y"),
    ]
    rows = {**_by_columns(layer), "weight": layer.integers}
    return nodes, {**_grids(layer), **rows, "bias": layer.bias}


FORMS = {
    "gemm": _gemm,
    "dynamic": _dynamic,
    "matmul": _matmul,
    "matmul-float": _with_floats(_matmul),
    "conv": _conv,
    "conv-float": _with_floats(_conv),
    "spatial": _conv,
    "spatial-float": _with_floats(_conv),
    "qdq": _qdq,
}
"""``gemm`` and ``dynamic`` are operators of ONNX Runtime, ``qdq`` is for OpenVINO, the others for
DeepSparse."""
