"""Models that take turns in the calibration of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....export.engines import load_plain
from ....export.onnx_op import IR_VERSION
from ....ort_ops.format.conv_geometry import ConvGeometry
from ..engines.onnx_models import build_model
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


def chain_model(
    layers: Sequence[ConvGeometry | None], side: int, rng: np.random.Generator
) -> onnx.ModelProto:
    """Build dense convolutions one after the other; None stands for a pool that halves images."""
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
    channels = (convolutions[0].in_channels, convolutions[-1].out_channels)
    return _model(nodes, arrays, channels, (sides[0], sides[-1]))


def null_model(channels: int) -> onnx.ModelProto:
    """Build what a session costs by itself: a node on one pixel."""
    onnx = require("onnx", "the calibration makes its models with it")
    return _model([onnx.helper.make_node("Neg", ["x"], ["y"])], {}, (channels, channels), (1, 1))


def place_model(channels: int, side: int) -> onnx.ModelProto:
    """Build what the structured form does after its product: a Gather of channels and an Add."""
    onnx = require("onnx", "the calibration makes its models with it")
    helper = onnx.helper
    order = np.arange(channels, dtype=np.int64)[::-1].copy()
    arrays: dict[str, np.ndarray] = {"order": order, "bias": np.ones((channels, 1, 1), np.float32)}
    nodes = [
        helper.make_node("Gather", ["x", "order"], ["v"], axis=1),
        helper.make_node("Add", ["v", "bias"], ["y"]),
    ]
    return _model(nodes, arrays, (channels, channels), (side, side))


def _model(
    nodes: list[Any],
    constants: dict[str, np.ndarray],
    channels: tuple[int, int],
    sides: tuple[int, int],
) -> onnx.ModelProto:
    """Put a model together; channels and sides of its input and of its output."""
    x, y = ([1, count, side, side] for count, side in zip(channels, sides, strict=True))
    model: onnx.ModelProto = build_model(nodes, x, y, constants, ir_version=IR_VERSION)
    return model
