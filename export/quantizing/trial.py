"""What any set of layers in 8 bits does to the outputs, without building a file for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ..engines import load_original
from ..model_file import EXTERNAL_DATA_THRESHOLD, stage_model
from ..passes.access import input_of, label_of
from ..passes.nodes import Names, add_constant
from .float_model import FloatModel, Layer, row_maxima
from .output_error import Outputs
from .samples import Samples
from .static import Grid

_STEPS = 127


class Trial:
    """The float model with a switch at each layer that rounds its input and weight to 8 bits.

    The sums stay floats: 8-bit products are exact, and what rounds an output is the input of the
    next layer.
    """

    def __init__(
        self,
        floats: FloatModel,
        layers: Sequence[Layer],
        grids: Mapping[str, Grid] | None,
        path: Path,
    ) -> None:
        """Write the model.

        Args:
            floats: the float model, which stays as it is.
            layers: those to have a switch.
            grids: scale and zero point of the input of each, by the name of its node; None where
                each run finds them.
            path: a scratch file.

        """
        model = floats.model.clone()
        names = Names(model)
        nodes = {label_of(node): node for node in model.graph}
        self._switches = {}
        for layer in layers:
            switch = ir.Value(
                name=names.free(f"{layer.name}.rounds"),
                shape=ir.Shape(()),
                type=ir.TensorType(ir.DataType.BOOL),
            )
            model.graph.inputs.append(switch)
            self._switches[layer.node] = str(switch.name)
            grid = None if grids is None else grids[layer.node]
            _insert(nodes[layer.node], layer, switch, grid, names)
        self._run = load_original(stage_model(model, path, EXTERNAL_DATA_THRESHOLD).path)

    def run(self, samples: Samples, rounded: Collection[str]) -> list[Outputs]:
        """Run all samples with the layers of these nodes in 8 bits."""
        switches = {
            name: np.array(node in rounded, np.bool_) for node, name in self._switches.items()
        }
        return [tuple(self._run({**feeds, **switches})) for feeds in samples.feeds]


def _insert(node: ir.Node, layer: Layer, switch: ir.Value, grid: Grid | None, names: Names) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    x, weight = input_of(node, 0), input_of(node, 1)

    def add(op_type: str, inputs: Sequence[ir.Value], outputs: int = 1) -> Sequence[ir.Value]:
        new = ir.node(op_type, inputs, num_outputs=outputs, name=names.free(f"{layer.name}_trial"))
        for output in new.outputs:
            output.name = names.free(f"{layer.name}.trial")
        node.prepend(new)
        return new.outputs

    if grid is None:
        integers, scale, zero = add("DynamicQuantizeLinear", [x], 3)
    else:
        scale = add_constant(graph, names.free(f"{layer.name}.trial_scale"), grid[0])
        zero = add_constant(graph, names.free(f"{layer.name}.trial_zero"), grid[1])
        (integers,) = add("QuantizeLinear", [x, scale, zero])
    (rounded,) = add("DequantizeLinear", [integers, scale, zero])
    name = names.free(f"{layer.name}.trial_weight")
    constant = add_constant(graph, name, rounded_weight(layer.weight, layer.axis))
    node.replace_input_with(0, add("Where", [switch, rounded, x])[0])
    node.replace_input_with(1, add("Where", [switch, constant, weight])[0])


def rounded_weight(weight: np.ndarray, axis: int) -> np.ndarray:
    """Return the float32 weight that symmetric int8 with a scale for each output stands for."""
    scale = (row_maxima(weight, axis) / _STEPS).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1))
    shape = [1] * weight.ndim
    shape[axis] = -1
    scale = scale.reshape(shape)
    return np.clip(np.rint(weight / scale), -_STEPS, _STEPS).astype(np.float32) * scale
