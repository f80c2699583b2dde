"""Find the QuantizeLinear that a layer's float output ends in."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from .access import input_of
from .fuse_activation import saturation
from .image_sizes import same_images
from .nodes import constant_of
from .quantized_layer import (
    OPEN,
    QuantizedLayer,
    only_use,
    other_side,
    read_grid,
    third_input,
)
from .quantized_weight import is_dequantize, is_quantize


def until_quantized(layer: QuantizedLayer, opset: int) -> QuantizedLayer:
    """Follow the output through a residual sum and a clip to the QuantizeLinear that reads it.

    Where there is none, the layer's output is the float that it was.
    """
    value, clip = layer.output, OPEN
    residual = residual_grid = None
    add, giver = _residual_sum(value)
    if add is not None and giver is not None and same_images(value, giver.outputs[0]):
        given = input_of(giver, 0)
        grid = read_grid(given, input_of(giver, 1), third_input(giver), "what is added", opset)
        if not isinstance(grid, str):
            residual, residual_grid, value = given, grid, add.outputs[0]
    while activation := only_use(value, "Relu", "Clip", "Max", "Min"):
        bounds = saturation(activation)
        if bounds is None or bounds.input is not value:
            break
        low, high = (min(max(bound, bounds.low), bounds.high) for bound in clip)
        clip, value = (low, high), activation.outputs[0]
    if value.is_graph_output() or len(value.uses()) != 1:
        return layer
    ((quantize, position),) = value.uses()
    if not is_quantize(quantize) or position != 0 or quantize.graph is not layer.node.graph:
        return layer
    y = quantize.outputs[0]
    y_grid = read_grid(y, input_of(quantize, 1), third_input(quantize), "its output", opset)
    if isinstance(y_grid, str) or (residual_grid and residual_grid.dtype != y_grid.dtype):
        return layer
    return replace(
        layer,
        output=y,
        y_grid=y_grid,
        clip=clip,
        residual=residual,
        residual_grid=residual_grid,
    )


def _residual_sum(value: ir.Value) -> tuple[ir.Node | None, ir.Node | None]:
    """Return the Add that alone reads a value, and the DequantizeLinear of its other side."""
    add = only_use(value, "Add")
    giver = other_side(add, value).producer() if add is not None else None
    if giver is None or not is_dequantize(giver) or constant_of(input_of(giver, 0)) is not None:
        return None, None
    return add, giver


def without_quantizer(layer: QuantizedLayer) -> str:
    """Say why a layer's output is not followed to a QuantizeLinear."""
    add, giver = _residual_sum(layer.output)
    if add is None or giver is None or same_images(layer.output, giver.outputs[0]):
        return "its output is not quantized, and no op convolves 8-bit numbers to floats"
    return (
        "the shapes of the sum that reads its output are not known to be equal; fix the sizes of "
        "the model's inputs"
    )
