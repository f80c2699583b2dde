"""Static quantization: ranges of activations from samples, QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import onnx_ir as ir

from ..errors import ExportError
from ..passes.access import input_of, label_of
from ..passes.matching import is_op
from ..passes.nodes import array_of, constant_of
from ..passes.quantized_layer import only_use
from ..passes.quantized_weight import is_dequantize, is_quantize
from .float_model import CONV, LINEAR, Layer, row_maxima
from .samples import Samples
from .tool import clean, running

Method = Literal["min-max", "entropy", "percentile"]

METHODS: tuple[Method, ...] = get_args(Method)

_CALIBRATORS: Mapping[str, str] = {
    "min-max": "MinMax",
    "entropy": "Entropy",
    "percentile": "Percentile",
}

_BETWEEN = (
    "Add",
    "AveragePool",
    "Clip",
    "Concat",
    "Flatten",
    "GlobalAveragePool",
    "LeakyRelu",
    "MaxPool",
    "Relu",
    "Reshape",
    "Resize",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
"""What computes in 8 bits between convolutions. Sums and norms around linear layers stay floats:
our op adds float residuals, and to round them once more would only add error."""

_BIAS_UNITS = 1 << 20
"""Units that the bias of a row without weights gets."""

Grid = tuple[np.ndarray, np.ndarray]
"""Scale and zero point of a layer's input."""


class _Reader:
    """What ONNX Runtime's calibrators read samples from, a run at a time."""

    def __init__(self, samples: Samples) -> None:
        self._feeds = samples.feeds
        self._left = iter(samples.feeds)

    def __len__(self) -> int:
        return len(self._feeds)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._left = iter(self._feeds[start_index:end_index])

    def get_next(self) -> dict[str, np.ndarray] | None:
        feeds = next(self._left, None)
        return None if feeds is None else dict(feeds)


def quantize_static(
    path: Path, out: Path, layers: Collection[Layer], samples: Samples, method: Method, large: bool
) -> ir.Model:
    """Quantize layers of a float model; those of Conv output 8-bit integers.

    Args:
        path: the float model.
        out: the file to write.
        layers: those to quantize.
        samples: to find the ranges of activations on.
        method: how they are found.
        large: whether the model needs a data file.

    Returns:
        The model that was written.

    Raises:
        ExportError: the quantizer refuses the model.

    """
    nodes = [layer.node for layer in layers]
    with running("quantize_static"):
        from onnxruntime.quantization import CalibrationMethod, QuantType
        from onnxruntime.quantization import quantize_static as quantize

        extra: dict[str, Any] = {
            "OpTypesToExcludeOutputQuantization": list(LINEAR),
            # A run at a time: histograms of all samples at once would need all their activations.
            "CalibStridedMinMax": 1,
        }
        between = _nodes_between(ir.load(path), nodes)
        quantize(
            path,
            out,
            _Reader(samples),
            op_types_to_quantize=[*LINEAR, CONV, *_BETWEEN],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=[*nodes, *between],
            use_external_data_format=large,
            calibrate_method=getattr(CalibrationMethod, _CALIBRATORS[method]),
            extra_options=extra,
        )
    model = clean(out, nodes)
    sharpen_biases(model, layers)
    return model


def _nodes_between(model: ir.Model, layers: Collection[str]) -> list[str]:
    """List the nodes that read nothing but outputs of quantized convolutions and of each other."""
    found: list[str] = []
    reached: set[ir.Value] = set()
    for node in model.graph:
        if node.op_type == CONV and label_of(node) in layers:
            reached.update(node.outputs)
            continue
        if node.domain != "" or node.op_type not in _BETWEEN:
            continue
        read = [v for v in node.inputs if v is not None and constant_of(v) is None]
        # A sum with a constant is a bias, which 8 bits would round.
        biased = node.op_type == "Add" and len(read) < 2
        if read and not biased and all(value in reached for value in read):
            found.append(label_of(node))
            reached.update(node.outputs)
    return found


def sharpen_biases(model: ir.Model, layers: Collection[Layer]) -> None:
    """Store the biases of rows without weights finely.

    The quantizer gives such a row the scale 1, so that its bias becomes a multiple of the input's
    scale. Any scale suits zeros: this one has the bias in about a million units.

    Args:
        model: with QuantizeLinear and DequantizeLinear; changed in place.
        layers: those that were quantized.

    """
    known = {layer.node: layer for layer in layers}
    for node in model.graph:
        layer = known.get(label_of(node))
        if layer is None or layer.bias is None or len(node.inputs) < 3:
            continue
        dead = row_maxima(layer.weight, layer.axis) == 0
        x, weight, bias_giver = (input_of(node, position).producer() for position in range(3))
        if not dead.any() or x is None or weight is None or bias_giver is None:
            continue
        if not all(map(is_dequantize, (x, weight, bias_giver))):
            continue
        if len(weight.outputs[0].uses()) > 1:
            continue  # another layer has another input
        x_scale = np.float32(array_of(input_of(x, 1)).reshape(()))
        weight_scale = input_of(weight, 1)
        bias, bias_scale = input_of(bias_giver, 0), input_of(bias_giver, 1)
        fine = (np.abs(layer.bias) / np.float32(_BIAS_UNITS) / x_scale).astype(np.float32)
        dead &= np.isfinite(fine) & (fine >= np.finfo(np.float32).tiny)
        scales = np.where(dead, fine, array_of(weight_scale))
        units = np.where(dead, scales * x_scale, array_of(bias_scale))
        exact = layer.bias.astype(np.float64) / units
        integers = np.where(dead, np.rint(exact), array_of(bias)).astype(np.int32)
        for value, array in ((weight_scale, scales), (bias, integers), (bias_scale, units)):
            dtype = array_of(value).dtype
            value.const_value = ir.tensor(array.astype(dtype), name=value.name)


def read_grids(model: ir.Model, layers: Collection[Layer]) -> dict[str, Grid]:
    """Read the scale and zero point of the input of each of these layers, by node."""
    grids, nodes = {}, {layer.node for layer in layers}
    for node in model.graph:
        if label_of(node) not in nodes:
            continue
        giver = input_of(node, 0).producer()
        if giver is None or not is_dequantize(giver):
            raise ExportError(
                f"onnxruntime's quantizer left the input of {label_of(node)} in float"
            )
        grids[label_of(node)] = (array_of(giver.inputs[1]), array_of(giver.inputs[2]))
    return grids


def round_sums_once(model: ir.Model, condensed: Sequence[str]) -> int:
    """Let a sum read the floats of a convolution that will be condensed, not its 8-bit integers.

    The quantizer rounds the convolution and then the sum. Our op adds the residual itself, so the
    first rounding only costs accuracy, and a pass over the activations.

    Args:
        model: with QuantizeLinear and DequantizeLinear; changed in place.
        condensed: names of the convolutions.

    Returns:
        How many sums were changed.

    """
    changed = 0
    for node in list(model.graph):
        if node.op_type != CONV or label_of(node) not in condensed:
            continue
        quantize = only_use(node.outputs[0], "QuantizeLinear")
        dequantize = quantize and only_use(quantize.outputs[0], "DequantizeLinear")
        add = dequantize and only_use(dequantize.outputs[0], "Add")
        if not (quantize and dequantize and add) or not is_quantize(quantize):
            continue
        place = 0 if add.inputs[0] is dequantize.outputs[0] else 1
        other = input_of(add, 1 - place).producer()
        if not is_dequantize(other) or is_op(other, "Add"):
            continue  # the other convolution's sum is read already
        add.replace_input_with(place, node.outputs[0])
        model.graph.remove([dequantize, quantize], safe=True)
        changed += 1
    return changed
