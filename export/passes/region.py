"""Where an output of a layer that is constant stays constant, up to what mixes outputs.

An output is a neuron of a linear layer, along the last dimension, or a filter of a convolution,
along dimension 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from .access import graph_of, input_of, producer_of, size_of
from .constants import run_node
from .conv_layer import is_conv
from .nodes import (
    array_of,
    constant_of,
    is_condensed_conv,
    is_condensed_gemm,
    layer_name,
    read_geometry,
)

UNARY = frozenset(
    {
        "Abs",
        "Celu",
        "Clip",
        "Elu",
        "Erf",
        "Exp",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "Mish",
        "Neg",
        "Relu",
        "Selu",
        "Sigmoid",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Swish",
        "Tanh",
        "ThresholdedRelu",
    }
)
"""Operators of one input and constant scalars."""

BINARY = frozenset({"Add", "Div", "Max", "Min", "Mul", "Pow", "PRelu", "Sub"})
"""Operators that combine a value with constants, or values of the region with each other."""

_SPATIAL_REDUCTIONS = frozenset({"ReduceMean", "ReduceMax", "ReduceMin"})
_GLOBAL_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool"})

_OPSET = 23
"""The version of the standard operators that constants are computed with."""


@dataclass(frozen=True)
class Layout:
    """How a value holds the outputs of the layer.

    Attributes:
        rank: its number of dimensions.
        axis: the dimension of the outputs.
        block: entries of that dimension for each output, over 1 once an image was flattened.

    """

    rank: int
    axis: int
    block: int = 1


@dataclass(frozen=True)
class Step:
    """A node of the region.

    Attributes:
        node: the node.
        kind: "elementwise"; "pool", which leaves a constant as it is; "flatten".
        only_zero: whether a constant output stays constant only if it is 0: padding counts.

    """

    node: ir.Node
    kind: str
    only_zero: bool = False


@dataclass(frozen=True)
class Sink:
    """A layer that multiplies a value of the region by a constant weight.

    Attributes:
        node: a Conv, MatMul, Gemm or condensed node.
        value: the value that it reads.
        taps: columns of its weight for each entry of the value along the layout's axis.
        only_zero: whether an output can be removed only if it is 0: the layer pads with zeros.

    """

    node: ir.Node
    value: ir.Value
    taps: int = 1
    only_zero: bool = False


@dataclass
class Region:
    """Everything that is computed separately for each output of one layer.

    Attributes:
        source: the layer's result.
        steps: nodes in graph order.
        sinks: the layers that read the results.
        layouts: by id of the value.
        obstacle: why outputs cannot be removed; None when they can.

    """

    source: ir.Value
    steps: list[Step] = field(default_factory=list)
    sinks: list[Sink] = field(default_factory=list)
    layouts: dict[int, Layout] = field(default_factory=dict)
    obstacle: str | None = None

    @property
    def width(self) -> int:
        """Number of outputs of the layer."""
        return size_of(self.source, self.layouts[id(self.source)].axis)

    @property
    def values(self) -> list[ir.Value]:
        """The source and what the steps compute."""
        return [self.source, *(step.node.outputs[0] for step in self.steps)]

    def entries(self, value: ir.Value, outputs: np.ndarray) -> np.ndarray:
        """Return the positions of outputs along the layout's axis of a value."""
        block = self.layouts[id(value)].block
        return (outputs[:, None] * block + np.arange(block)).reshape(-1)

    def constants_at(self, constants: np.ndarray, outputs: np.ndarray) -> dict[int, np.ndarray]:
        """Compute in float64 what every value of the region is at outputs that are constant.

        Args:
            constants: ``[n]``, the source at these outputs.
            outputs: ``[n]``, their positions.

        Returns:
            ``[n, block]`` by id of the value.

        """
        found = {id(self.source): constants.astype(np.float64)[:, None]}
        for step in self.steps:
            output = step.node.outputs[0]
            layout = self.layouts[id(output)]
            if step.kind != "elementwise":
                before = found[id(step.node.inputs[0])]
                repeats = layout.block // before.shape[1]
                found[id(output)] = np.repeat(before, repeats, axis=1)
                continue
            shape = [1] * layout.rank
            shape[layout.axis] = -1
            inputs: list[np.ndarray | None] = []
            for value in step.node.inputs:
                if value is None:
                    inputs.append(None)
                elif id(value) in found:
                    inputs.append(found[id(value)].reshape(shape))
                else:
                    inputs.append(self._constant_part(step.node, value, outputs))
            with np.errstate(all="ignore"):
                result = run_node(step.node, output, inputs, _OPSET)
            found[id(output)] = np.asarray(result, np.float64).reshape(len(outputs), layout.block)
        return found

    def _constant_part(self, node: ir.Node, value: ir.Value, outputs: np.ndarray) -> np.ndarray:
        array = array_of(value)
        if array.dtype.kind == "f":
            array = array.astype(np.float64)
        return self.take_entries(node, array, outputs)

    def take_entries(self, node: ir.Node, array: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Select the part of a step's constant that belongs to outputs; a scalar belongs to all."""
        result = node.outputs[0]
        layout = self.layouts[id(result)]
        if array.size == 1:
            return array
        if node.op_type == "BatchNormalization":
            return array.take(self.entries(result, outputs), 0)
        if array.size != self.width * layout.block:
            return array
        return array.take(self.entries(result, outputs), layout.axis - layout.rank + array.ndim)


def find_region(source: ir.Value) -> Region:
    """Follow the result of a condensed node; stop at the first node that mixes its outputs."""
    region = Region(source)
    producer = producer_of(source)
    rank = 0 if source.shape is None else len(source.shape)
    axis = 1 if is_condensed_conv(producer) else rank - 1
    if source.shape is None or not isinstance(source.shape[axis], int):
        region.obstacle = "its shape is not known"
        return region
    region.layouts[id(source)] = Layout(rank, axis)
    graph = graph_of(producer)
    # Nodes are in topological order, so a value of the region is known before its readers.
    for node in graph:
        inside = [v for v in node.inputs if v is not None and id(v) in region.layouts]
        if not inside:
            continue
        step = _step(region, node, inside)
        if step is not None:
            output = node.outputs[0]
            region.steps.append(step)
            region.layouts[id(output)] = _layout_after(region, step, inside[0])
            continue
        sink = _sink(region, node, inside)
        if sink is None:
            region.obstacle = f"{node.op_type} {layer_name(node)} reads it"
            return region
        region.sinks.append(sink)
    for value in region.values:
        if value.is_graph_output():
            region.obstacle = f"{value.name} is an output of the model"
        elif any(use.node.graph is not graph for use in value.uses()):
            region.obstacle = f"a branch or loop reads {value.name}"
    if region.obstacle is None and not region.sinks:
        region.obstacle = "no layer reads it"
    return region


def _step(region: Region, node: ir.Node, inside: list[ir.Value]) -> Step | None:
    if node.domain != "" or any(output.uses() for output in node.outputs[1:]):
        return None
    layouts = {region.layouts[id(value)] for value in inside}
    if len(layouts) != 1:
        return None
    (layout,) = layouts
    if _is_elementwise(region, node, layout):
        return Step(node, "elementwise")
    if node.inputs[0] is not inside[0] or len(inside) != 1 or not _holds_images(layout):
        return None
    if node.op_type in _GLOBAL_POOLS or _reduces_image(node, layout):
        return Step(node, "pool")
    if node.op_type == "MaxPool":
        return Step(node, "pool") if _windows_meet_image(node) else None
    if node.op_type == "AveragePool":
        return _average_pool(node)
    return Step(node, "flatten") if _flattens(node) else None


def _holds_images(layout: Layout) -> bool:
    return layout.axis == 1 and layout.rank > 2


def _is_elementwise(region: Region, node: ir.Node, layout: Layout) -> bool:
    first = node.inputs[0]
    inside = first is not None and id(first) in region.layouts
    others = [v for v in node.inputs if v is not None and id(v) not in region.layouts]
    constants = [constant_of(value) for value in others]
    arrays = [array for array in constants if array is not None]
    known = len(arrays) == len(constants)
    if node.op_type in UNARY:
        return inside and known and all(array.size == 1 for array in arrays)
    if node.op_type == "Dropout":
        return inside and _dropout_is_off(node)
    width = region.width * layout.block
    if node.op_type == "BatchNormalization":
        trained = node.attributes.get_int("training_mode", 0)
        fits = layout.axis == 1 and all(array.shape == (width,) for array in arrays)
        return inside and known and not trained and fits
    if node.op_type in BINARY:
        return known and all(_is_per_output(array, layout, width) for array in arrays)
    return False


def _dropout_is_off(node: ir.Node) -> bool:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    return training is None or ((flag := constant_of(training)) is not None and not flag.any())


def _is_per_output(array: np.ndarray, layout: Layout, width: int) -> bool:
    """Whether a constant broadcasts along the layout's axis alone, and changes no shape."""
    if array.ndim > layout.rank:
        return False
    aligned = (1,) * (layout.rank - array.ndim) + array.shape
    return array.size == 1 or (array.size == width and aligned[layout.axis] == width)


def _layout_after(region: Region, step: Step, source: ir.Value) -> Layout:
    before = region.layouts[id(source)]
    result = step.node.outputs[0]
    if step.kind == "elementwise" or result.shape is None:
        return before
    block = size_of(result, before.axis) // region.width
    return replace(before, rank=len(result.shape), block=block)


def _reduces_image(node: ir.Node, layout: Layout) -> bool:
    if node.op_type not in _SPATIAL_REDUCTIONS or node.outputs[0].shape is None:
        return False
    axes = node.attributes.get_ints("axes", None)
    if axes is None:
        array = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = None if array is None else array.tolist()
    if axes is None:
        return False
    return sorted(axis % layout.rank for axis in axes) == list(range(2, layout.rank))


def _pool_pads(node: ir.Node) -> tuple[int, ...] | None:
    """Read the explicit pads of a pool; None where it resolves them itself."""
    if node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    return tuple(node.attributes.get_ints("pads", ()))


def _windows_meet_image(node: ir.Node) -> bool:
    """Whether every window of a pool holds a pixel, so that no window is padding alone."""
    pads = _pool_pads(node)
    if pads is None:
        return False
    if not any(pads):
        return True
    kernel = node.attributes.get_ints("kernel_shape")
    dilated = any(d != 1 for d in node.attributes.get_ints("dilations", ()))
    fits = all(pad < size for pad, size in zip(pads, (*kernel, *kernel), strict=True))
    return fits and not dilated and not node.attributes.get_int("ceil_mode", 0)


def _average_pool(node: ir.Node) -> Step | None:
    pads = _pool_pads(node)
    if pads is None or not _windows_meet_image(node):
        return None
    counted = node.attributes.get_int("count_include_pad", 0)
    beyond = any(pads) or bool(node.attributes.get_int("ceil_mode", 0))
    return Step(node, "pool", only_zero=bool(counted and beyond))


def _flattens(node: ir.Node) -> bool:
    """Whether a node puts the pixels of each channel behind each other in dimension 1."""
    x, y = input_of(node, 0), node.outputs[0]
    if x.shape is None or y.shape is None or len(y.shape) != 2:
        return False
    sizes = x.shape[1:]
    if not all(isinstance(size, int) for size in sizes) or y.shape[1] != math.prod(sizes):
        return False
    if node.op_type == "Flatten":
        return node.attributes.get_int("axis", 1) in (1, 1 - len(x.shape))
    if node.op_type == "Squeeze":
        return True
    wanted = constant_of(node.inputs[1]) if node.op_type == "Reshape" else None
    if wanted is None:
        return False
    # Rows have to stay rows: [N, C, H, W] to [N, C*H*W].
    first, _ = wanted.tolist()
    return first == 0 or x.shape[0] == y.shape[0] or first == -1


def _sink(region: Region, node: ir.Node, inside: list[ir.Value]) -> Sink | None:
    if len(inside) != 1 or node.inputs[0] is not inside[0]:
        return None
    (value,) = inside
    layout = region.layouts[id(value)]
    if layout.axis == layout.rank - 1 and _is_constant_linear(node):
        return Sink(node, value)
    if not _holds_images(layout):
        return None
    if is_condensed_conv(node):
        geometry = read_geometry(node)
        if geometry.group != 1 or any(constant_of(v) is None for v in node.inputs[1:5]):
            return None
        return Sink(node, value, math.prod(geometry.kernel_shape), any(geometry.pads))
    return _conv_sink(node, value) if is_conv(node) else None


def _is_constant_linear(node: ir.Node) -> bool:
    """Whether a node is a linear layer of a constant weight."""
    weight = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if weight is None or is_condensed_gemm(node):
        return weight is not None
    return (
        (node.domain, node.op_type) in (("", "MatMul"), ("", "Gemm"))
        and weight.ndim == 2
        and weight.dtype == np.float32
        and not node.attributes.get_int("transA", 0)
    )


def _conv_sink(node: ir.Node, value: ir.Value) -> Sink | None:
    weight = constant_of(node.inputs[1])
    biased = len(node.inputs) > 2 and node.inputs[2] is not None
    if weight is None or weight.dtype != np.float32 or node.attributes.get_int("group", 1) != 1:
        return None
    if biased and constant_of(node.inputs[2]) is None:
        return None
    taps = math.prod(weight.shape[2:])
    pads = _pool_pads(node)
    return Sink(node, value, taps, taps > 1 if pads is None else any(pads))
