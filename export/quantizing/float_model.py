"""The float32 model that is quantized: standard operators, norms folded, every node named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ...ort_ops.contract import DOMAIN, QUANTIZED_OPS
from ..errors import ExportError
from ..forms import Chooser
from ..lowering import lower
from ..onnx_schema import register_schemas
from ..onnx_source import load_source
from ..passes.access import input_of, label_of, name_of
from ..passes.condense import CondensePass
from ..passes.nodes import Names, constant_of
from .free_names import free_names

LINEAR, CONV = ("Gemm", "MatMul"), "Conv"

_QUANTIZED = {
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QAttention",
    "QGemm",
    "QuantizeLinear",
}

_STEPS = 127
"""Symmetric int8 goes from -127 to 127."""

_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Layer:
    """A Gemm, MatMul or Conv of a constant weight.

    Attributes:
        name: of its weight.
        node: name of the node.
        op_type: of the node.
        weight: as the node reads it.
        axis: its axis of outputs.
        bias: of the node; None where it has none.
        obstacle: why it cannot be quantized; None where it can.

    """

    name: str
    node: str
    op_type: str
    weight: np.ndarray
    axis: int
    bias: np.ndarray | None
    obstacle: str | None = None

    @property
    def sparsity(self) -> float:
        """Share of zeros in the weight."""
        return 1 - float(np.count_nonzero(self.weight)) / self.weight.size


@dataclass(frozen=True)
class FloatModel:
    """A model in standard operators, and what of it can be quantized.

    Attributes:
        model: the graph.
        layers: in graph order.
        notes: for the report.

    """

    model: ir.Model
    layers: tuple[Layer, ...]
    notes: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its constants."""
        graphs = self.model.graphs()
        tensors = [v.const_value for g in graphs for v in g.initializers.values()]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def load_float_model(path: Path) -> FloatModel:
    """Read an ONNX file and write its layers, condensed or not, as dense Gemm, MatMul and Conv.

    Raises:
        FileNotFoundError: there is no such file.
        ExportError: it is no ONNX model, is quantized already, or has no layer that can be.

    """
    model, notes = load_source(path)
    _require_float(path, model)
    register_schemas()
    common.ShapeInferencePass(strict_mode=False)(model)
    # Weights of any sparsity are taken, so that the norms behind all of them are folded.
    CondensePass(min_sparsity=0)(model)
    lower(model, Chooser.of("dense", 1, portable=True), fold=True)
    names = Names(model)
    for node in model.graph:
        if not node.name:
            node.name = names.free(f"{node.op_type}_{node.outputs[0].name}")
    free_names(path, model)
    layers = tuple(_layers(model))
    if not layers:
        raise ExportError(f"{path} has no MatMul, Gemm or Conv of a constant weight to quantize")
    return FloatModel(model, layers, notes)


def _require_float(path: Path, model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        op_type = node.op_type
        ours = node.domain == DOMAIN and op_type in QUANTIZED_OPS
        if ours or op_type in _QUANTIZED or op_type.startswith("QLinear"):
            raise ExportError(
                f"{path} is quantized already (node {label_of(node)!r} is a {op_type}); give the "
                "float32 model, or convert this one with fanin export"
            )


def _layers(model: ir.Model) -> Iterator[Layer]:
    for node in model.graph.all_nodes():
        if node.domain != "" or node.op_type not in (*LINEAR, CONV):
            continue
        weight = constant_of(node.inputs[1]) if constant_of(node.inputs[0]) is None else None
        if weight is None or weight.ndim < 2 or not weight.size:
            continue
        trans_b = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0
        axis = 0 if node.op_type == CONV or trans_b else 1
        yield Layer(
            layer_name(name_of(input_of(node, 1))),
            label_of(node),
            node.op_type,
            weight,
            axis,
            constant_of(node.inputs[2]) if len(node.inputs) > 2 else None,
            _obstacle(model, node, weight, axis),
        )


def layer_name(initializer: str) -> str:
    """Return what reports call the layer of a weight, whatever the passes appended to its name."""
    for suffix in ("_quantized", "_Transposed", ".weight", ".active", ".weight"):
        initializer = initializer.removesuffix(suffix)
    return initializer


def _obstacle(model: ir.Model, node: ir.Node, weight: np.ndarray, axis: int) -> str | None:
    if node.graph is not model.graph:
        return "it stands in a branch or loop, which ONNX Runtime's quantizer leaves alone"
    if weight.dtype != np.float32:
        return f"it computes in {weight.dtype}, not in float32"
    if node.op_type in LINEAR and weight.ndim != 2:
        return f"its weight has {weight.ndim} dimensions"
    if not np.isfinite(weight).all():
        return "its weight holds values that are not finite"
    if node.op_type == "Gemm" and _scales_or_turns(node):
        return "its Gemm has alpha, beta or transA"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    array = constant_of(bias)
    if bias is not None and (array is None or array.ndim != 1):
        return "its bias is no constant vector"
    if array is not None and not np.isfinite(array).all():
        return "its bias holds values that are not finite"
    largest = row_maxima(weight, axis)
    scales = largest / _STEPS
    tiny = np.flatnonzero((largest > 0) & (scales < _TINY))
    if tiny.size:
        row = int(tiny[0])
        return f"the scale of its weight in row {row} would be {scales[row]:.3g}, a denormal number"
    return None


def _scales_or_turns(node: ir.Node) -> bool:
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    return factors != [1, 1] or node.attributes.get_int("transA", 0) != 0


def row_maxima(weight: np.ndarray, axis: int) -> np.ndarray:
    """Return the largest magnitude of each output's weights, float64 ``[out_features]``."""
    others = tuple(i for i in range(weight.ndim) if i != axis)
    return np.asarray(np.abs(weight).max(axis=others), np.float64)
