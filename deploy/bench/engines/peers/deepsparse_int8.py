"""Writes a network in the 8-bit operators that DeepSparse has kernels for.

DeepSparse 1.8 hands graphs with QuantizeLinear and DequantizeLinear around float operators, and
convolutions with a scale for each channel, to its ONNX Runtime whole; QLinearMatMul ends its
process. What it computes itself is QLinearConv with one scale for all weights, and MatMulInteger on
an input whose scale is constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....model_check import checked_content
from ....runtime import load_onnxruntime
from ..quantized_layer import Grid, rounded_rows
from .deepsparse_model import deepsparse_file

if TYPE_CHECKING:
    import onnx

Inputs = Sequence[Mapping[str, np.ndarray]]


def deepsparse_int8_file(path: Path, to: Path, calibration: Inputs) -> str:
    """Write the float32 network ``path`` in 8 bits; inputs and outputs stay float32.

    Args:
        path: the network.
        to: the file to write; others are written beside it.
        calibration: inputs whose range the activations get.

    Returns:
        What differs from the network, such as "53 Conv and 1 Gemm in 8 bits".

    Raises:
        UnsupportedModelError: DeepSparse does not read the network.

    """
    import onnx

    known, convolved = to.with_suffix(".known.onnx"), to.with_suffix(".conv.onnx")
    deepsparse_file(path, known)
    save_for_quantizers(known, known)
    counts = Counter(node.op_type for node in onnx.load(known).graph.node)
    if counts["Conv"]:
        quantize_convolutions(known, convolved, calibration)
        known = convolved
    model = onnx.load(known)
    inputs = sorted({node.input[0] for node in _products(model)})
    ranges = _ranges(model, inputs, calibration)
    replaced = Counter(node.op_type for node in _products(model))
    _use_integer_products(model, {name: Grid.over(found) for name, found in ranges.items()})
    onnx.save(model, to)
    replaced["Conv"] = sum(node.op_type == "QLinearConv" for node in model.graph.node)
    texts = [f"{count} {kind}" for kind, count in sorted(replaced.items()) if count]
    return f"{', '.join(texts)} in 8 bits"


def save_for_quantizers(path: Path, to: Path) -> None:
    """Write the model into one file, marked as prepared: exports need no more optimization.

    Without the mark the tools of onnxruntime.quantization log a warning that it is not.
    """
    import onnx

    checked_content(path)
    model = onnx.load(path)
    own = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, {**own, "onnx.quant.pre_process": "onnxruntime.quant"})
    onnx.save(model, to)


def quantize_convolutions(path: Path, to: Path, calibration: Inputs) -> None:
    """Write QLinearConv, and leave out Relu where 8 bits imply it, with ONNX Runtime's tool.

    An 8-bit MaxPool would make DeepSparse hand on the network.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    quantize_static(
        path,
        to,
        CalibrationInputs(calibration),
        quant_format=QuantFormat.QOperator,
        op_types_to_quantize=["Conv", "Relu"],
        per_channel=False,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


class CalibrationInputs:
    """Gives inputs to ONNX Runtime's tools, one after another."""

    def __init__(self, inputs: Inputs) -> None:
        self._left = iter(inputs)

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        """Return the next inputs by name, None after the last."""
        return next(self._left, None)


def _products(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """List MatMul and Gemm of an activation with a matrix of float32 constants."""
    arrays = {tensor.name: tensor for tensor in model.graph.initializer}
    return [
        node
        for node in model.graph.node
        if node.op_type in ("MatMul", "Gemm")
        and node.input[0] not in arrays
        and node.input[1] in arrays
        and len(arrays[node.input[1]].dims) == 2
        and not _attributes(node).get("transA")
        and _attributes(node).get("alpha", 1.0) == _attributes(node).get("beta", 1.0) == 1.0
    ]


def _ranges(
    model: onnx.ModelProto, names: Sequence[str], calibration: Inputs
) -> dict[str, np.ndarray]:
    """Run the network, and return the least and largest number of each of these values."""
    import onnx

    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    of_graph = {value.name for value in (*model.graph.input, *model.graph.output)}
    observed.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in names
        if name not in of_graph
    )
    runtime = load_onnxruntime()
    session = runtime.InferenceSession(
        observed.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    seen: dict[str, list[float]] = {name: [] for name in names}
    outputs = [output.name for output in session.get_outputs()]
    for inputs in calibration:
        values = {**inputs, **dict(zip(outputs, session.run(None, inputs), strict=True))}
        for name in names:
            seen[name] += [float(values[name].min()), float(values[name].max())]
    return {name: np.array(numbers) for name, numbers in seen.items()}


def _use_integer_products(model: onnx.ModelProto, grids: Mapping[str, Grid]) -> None:
    """Replace products by MatMulInteger on inputs that are quantized once for all who read them."""
    from onnx import helper, numpy_helper

    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    products = {node.output[0] for node in _products(model)}
    quantized: set[str] = set()
    nodes: list[onnx.NodeProto] = []

    def constant(name: str, value: np.ndarray | np.generic) -> str:
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    for node in graph.node:
        if node.output[0] not in products:
            nodes.append(node)
            continue
        x, y, grid = node.input[0], node.output[0], grids[node.input[0]]
        if x not in quantized:
            quantized.add(x)
            scale = constant(f"{x}/scale", np.float32(grid.scale))
            zero = constant(f"{x}/zero", np.uint8(grid.zero_point))
            nodes.append(helper.make_node("QuantizeLinear", [x, scale, zero], [f"{x}/uint8"]))
        rows = numpy_helper.to_array(weights[node.input[1]])
        rows = rows if _attributes(node).get("transB") else rows.T
        integers, scales = rounded_rows(rows)
        weight = constant(f"{y}/weight", np.ascontiguousarray(integers.T))
        zero = constant(f"{y}/weight_zero", np.int8(0))
        unit = constant(f"{y}/unit", np.float32(grid.scale) * scales)
        bias = node.input[2] if len(node.input) > 2 else ""
        scaled = f"{y}/scaled" if bias else y
        nodes += [
            helper.make_node(
                "MatMulInteger", [f"{x}/uint8", weight, f"{x}/zero", zero], [f"{y}/sums"]
            ),
            helper.make_node("Cast", [f"{y}/sums"], [f"{y}/floats"], to=1),
            helper.make_node("Mul", [f"{y}/floats", unit], [scaled]),
        ]
        if bias:
            nodes.append(helper.make_node("Add", [scaled, bias], [y]))
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)


def _attributes(node: onnx.NodeProto) -> dict[str, float]:
    from onnx import helper

    return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
