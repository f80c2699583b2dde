"""Models that the calibration of convolutions times in turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....export.engines import load_plain
from ....ort_ops.format.conv_geometry import ConvGeometry
from ..engines.onnx_models import build_model
from ..requirements import require

if TYPE_CHECKING:
    import onnx


def save_case(model: onnx.ModelProto, path: Path, x: np.ndarray) -> np.ndarray:
    """Save a model; returns its expected output for the image, float64."""
    require("onnx", "the calibration makes its models with it").save(model, path)
    (expected,) = load_plain(model.SerializeToString())({"x": x})
    return np.asarray(expected, np.float64)


def chain_model(
    layers: Sequence[ConvGeometry | None], side: int, rng: np.random.Generator
) -> onnx.ModelProto:
    """Build consecutive dense convolutions; None stands for a pool that halves images."""
    onnx = require("onnx", "the calibration makes its models with it")
    helper = onnx.helper
    convolutions = [layer for layer in layers if layer is not None]
    arrays: dict[str, np.ndarray] = {}
    nodes, sides, value = [], [side], "x"
    for number, layer in enumerate(layers):
        output = "y" if number == len(layers) - 1 else f"v{number}"
        if layer is None:
            node = helper.make_node(
                "MaxPool", [value], [output], kernel_shape=[2, 2], strides=[2, 2]
            )
            sides.append(sides[-1] // 2)
        else:
            weight = rng.standard_normal(layer.weight_shape) / layer.in_features**0.5
            arrays[f"w{number}"] = weight.astype(np.float32)
            attributes = layer.attributes()
            del attributes["in_channels"], attributes["out_channels"]
            node = helper.make_node("Conv", [value, f"w{number}"], [output], **attributes)
            sides.append(layer.output_size(0, sides[-1]))
        nodes.append(node)
        value = output
    x_shape = (1, convolutions[0].in_channels, sides[0], sides[0])
    y_shape = (1, convolutions[-1].out_channels, sides[-1], sides[-1])
    return build_model(nodes, x_shape, y_shape, arrays)


def null_model(channels: int) -> onnx.ModelProto:
    """Build a session's overhead: a node on one pixel."""
    onnx = require("onnx", "the calibration makes its models with it")
    shape = (1, channels, 1, 1)
    return build_model([onnx.helper.make_node("Neg", ["x"], ["y"])], shape, shape)


def place_model(channels: int, side: int) -> onnx.ModelProto:
    """Build what the structured form does after its product: a Gather of channels and an Add."""
    onnx = require("onnx", "the calibration makes its models with it")
    order = np.arange(channels, dtype=np.int64)[::-1].copy()
    bias = np.ones((channels, 1, 1), np.float32)
    nodes = [
        onnx.helper.make_node("Gather", ["x", "order"], ["v"], axis=1),
        onnx.helper.make_node("Add", ["v", "bias"], ["y"]),
    ]
    shape = (1, channels, side, side)
    return build_model(nodes, shape, shape, {"order": order, "bias": bias})
