"""Models that take turns in the calibration of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....export.condensed import CondensedWeight
from ....export.conv_geometry import ConvGeometry
from ....export.engines import load_plain
from ....export.onnx_op import IR_VERSION
from ..measure.problem import Problem, Sample
from ..requirements import require

if TYPE_CHECKING:
    import onnx


def own_image_problem() -> Problem:
    """Make the problem of models of their own images: their error is to be 0."""
    sample = Sample({"unused": np.zeros(1, np.float32)}, [np.zeros(1)])
    return Problem(sample, sample, tolerance=1e-4)


def save_case(model: onnx.ModelProto, path: Path, x: np.ndarray) -> np.ndarray:
    """Save a model; returns its right output for the image, float64."""
    require("onnx", "the calibration makes its models with it").save(model, path)
    (right,) = load_plain(model.SerializeToString())({"x": x})
    return np.asarray(right, np.float64)


def random_weight(
    rng: np.random.Generator, geometry: ConvGeometry, density: float
) -> CondensedWeight:
    """Make filters of constant fan-in, with taps anywhere."""
    rows, columns = geometry.out_channels, geometry.in_features
    fan_in = max(1, round(density * columns))
    places = np.argpartition(rng.random((rows, columns)), fan_in - 1, axis=1)[:, :fan_in]
    return CondensedWeight(
        values=(rng.standard_normal((rows, fan_in)) / fan_in**0.5).astype(np.float32),
        indices=np.sort(places, axis=1).astype(np.uint16),
        rows=np.arange(rows, dtype=np.int32),
        bias=np.ones(rows, np.float32),
        in_features=columns,
        out_features=rows,
    )


def chain_model(
    layers: Sequence[ConvGeometry | None], side: int, rng: np.random.Generator
) -> onnx.ModelProto:
    """Build dense convolutions one after the other; None stands for a pool that halves images."""
    onnx = require("onnx", "the calibration makes its models with it")
    helper = onnx.helper
    nodes, arrays, sides, value = [], [], [side], "x"
    for number, layer in enumerate(layers):
        output = "y" if number == len(layers) - 1 else f"v{number}"
        if layer is None:
            node = helper.make_node(
                "MaxPool", [value], [output], kernel_shape=[2, 2], strides=[2, 2]
            )
            sides.append(sides[-1] // 2)
        else:
            weight = rng.standard_normal(layer.weight_shape) / layer.in_features**0.5
            arrays.append(onnx.numpy_helper.from_array(weight.astype(np.float32), f"w{number}"))
            attributes = layer.attributes()
            del attributes["in_channels"], attributes["out_channels"]
            node = helper.make_node("Conv", [value, f"w{number}"], [output], **attributes)
            sides.append(layer.output_size(0, sides[-1]))
        nodes.append(node)
        value = output
    outputs = next(layer.out_channels for layer in reversed(layers) if layer)
    return _model(nodes, arrays, (layers[0].in_channels, outputs), (sides[0], sides[-1]))


def null_model(channels: int) -> onnx.ModelProto:
    """Build what a session costs by itself: a node on one pixel."""
    onnx = require("onnx", "the calibration makes its models with it")
    return _model([onnx.helper.make_node("Neg", ["x"], ["y"])], [], (channels, channels), (1, 1))


def place_model(channels: int, side: int) -> onnx.ModelProto:
    """Build what the structured form does after its product: a Gather of channels and an Add."""
    onnx = require("onnx", "the calibration makes its models with it")
    helper = onnx.helper
    order = np.arange(channels, dtype=np.int64)[::-1].copy()
    arrays = [
        onnx.numpy_helper.from_array(order, "order"),
        onnx.numpy_helper.from_array(np.ones((channels, 1, 1), np.float32), "bias"),
    ]
    nodes = [
        helper.make_node("Gather", ["x", "order"], ["v"], axis=1),
        helper.make_node("Add", ["v", "bias"], ["y"]),
    ]
    return _model(nodes, arrays, (channels, channels), (side, side))


def _model(
    nodes: list, arrays: list, channels: tuple[int, int], sides: tuple[int, int]
) -> onnx.ModelProto:
    """Put a model together; channels and sides of its input and of its output."""
    onnx = require("onnx", "the calibration makes its models with it")
    helper = onnx.helper

    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, count, side, side])
        for name, count, side in zip(("x", "y"), channels, sides, strict=True)
    )
    graph = helper.make_graph(nodes, "layers", [x], [y], arrays)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=IR_VERSION
    )
