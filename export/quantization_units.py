"""The units in which outputs of quantized models are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from .onnx_reading import graphs_of

LEAST_UNITS = 2.0
"""Units that an output may always differ by: each of two roundings may go the other way."""

NOISE_FACTOR = 4
"""How many times the model's own difference between two ways of running it is allowed."""

_STEPS = 255

_FEW = 32
"""Entries below which an output's range may be small by chance: its size counts then."""


@dataclass(frozen=True)
class Units:
    """Sizes of a quantized model's outputs in its own steps.

    Attributes:
        steps: the step of each output; where its values are no multiples of one, a 255th of their
            range stands for it, which :func:`with_noise` fills in for None.
        noise: largest difference, in units, between running the model as it is written and
            optimized. Runtimes put integer operators in place of dequantized ones, and a deep
            network amplifies what that changes.

    """

    steps: tuple[float | None, ...]
    noise: float = 0.0

    @property
    def tolerance(self) -> float:
        """Units that an output may differ by."""
        return max(LEAST_UNITS, NOISE_FACTOR * self.noise)

    def size(self, position: int) -> float:
        """Return the size of a unit of an output; 0 where it is 0 in all cases."""
        return self.steps[position] or 0.0

    def distance(self, position: int, actual: np.ndarray, expected: np.ndarray) -> float:
        """Return the largest difference of an output in units; NaN where one side has one."""
        difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        largest, size = float(difference.max(initial=0.0)), self.size(position)
        if not largest:
            return 0.0
        return largest / size if size else math.inf


def is_compared(expected: np.ndarray) -> bool:
    """Return whether units say anything of an output: not of labels, which change as a whole."""
    return expected.dtype.kind == "f" or expected.dtype.name in ("uint8", "int8")


def units_of(proto: onnx.ModelProto) -> Units | None:
    """Read the steps of a model's outputs; None for a model that computes in floats alone."""
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    nodes = [node for graph in graphs_of(proto.graph) for node in graph.node]
    if not any(_rounds_activations(node, constants) for node in nodes):
        return None
    makers = {name: node for node in proto.graph.node for name in node.output}
    return Units(tuple(_step(port, makers, constants) for port in proto.graph.output))


def with_noise(
    units: Units, before: Sequence[Sequence[np.ndarray]], after: Sequence[Sequence[np.ndarray]]
) -> Units:
    """Set the noise to the largest difference of the outputs of all cases, and missing steps."""
    outputs = zip(units.steps, zip(*before, strict=True), strict=True)
    units = Units(tuple(_range_step(all_) if step is None else step for step, all_ in outputs))
    noise = max(
        (
            units.distance(position, new, old)
            for old_case, new_case in zip(before, after, strict=True)
            for position, (old, new) in enumerate(zip(old_case, new_case, strict=True))
            if is_compared(old)
        ),
        default=0.0,
    )
    return Units(units.steps, noise)


def _range_step(cases: Sequence[np.ndarray]) -> float | None:
    """Return a 255th of the range of an output over all cases; None for no floats, and for 0."""
    if not all(map(is_compared, cases)):
        return None
    entries = np.concatenate([np.asarray(case, np.float64).reshape(-1) for case in cases])
    if not entries.size:
        return None
    size = float(np.ptp(entries))
    if entries.size < _FEW or not size:
        size = max(size, float(np.abs(entries).max()))
    return size / _STEPS or None


def _rounds_activations(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    if node.op_type == "QuantizeLinear":
        return node.input[0] not in constants
    return node.op_type.startswith("QLinear") or node.op_type in (
        "ConvInteger",
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QAttention",
        "QGemm",
    )


def _step(
    port: onnx.ValueInfoProto,
    makers: dict[str, onnx.NodeProto],
    constants: dict[str, onnx.TensorProto],
) -> float | None:
    if port.type.tensor_type.elem_type in (onnx.TensorProto.UINT8, onnx.TensorProto.INT8):
        return 1.0
    node = makers.get(port.name)
    if node is None or node.op_type != "DequantizeLinear" or node.input[1] not in constants:
        return None
    scale = numpy_helper.to_array(constants[node.input[1]])
    return float(scale.max()) if scale.size and scale.max() > 0 else None
