"""Fold what scales and shifts channels after a condensed convolution into its weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from .access import input_of, label_of, remove_node
from .constants import folded_constant
from .nodes import (
    Names,
    condensed_nodes,
    has_no_epilogue,
    has_no_residual,
    is_condensed_conv,
    layer_name,
    read_weight,
    set_weight,
    take_output,
)
from .result_pass import ResultPass


@dataclass
class FoldNormResult(ir.passes.PassResult):
    """A pass result that also lists what was folded.

    Attributes:
        folded: one line for every node that is gone.
        scales: what the rows of each convolution were multiplied by, float64 ``[channels]``, by its
            name.

    """

    folded: list[str] = field(default_factory=list)
    scales: dict[str, np.ndarray] = field(default_factory=dict)


class FoldNormPass(ResultPass[FoldNormResult]):
    """Fold BatchNormalization, Mul and Add of constants into the condensed convolution before them.

    HardSigmoid is one as well, with a clip to 0 and 1.

    They have to be the only readers of its output, and their constants one number for each channel.
    The products are computed in float64 and rounded once to the type of the values. An ablated
    filter stays ablated: only its bias changes. Nothing is folded where a product is not finite.
    """

    def call(self, model: ir.Model) -> FoldNormResult:
        """Visit the condensed convolutions; a chain of such nodes folds whole."""
        names, opset = Names(model), model.opset_imports.get("", 1)
        result = FoldNormResult(model, modified=False)
        for node in filter(is_condensed_conv, condensed_nodes(model)):
            while (affine := _affine_after(node, opset)) and _fold(node, affine, names):
                result.modified = True
                line = f"{affine.node.op_type} {affine.node.name} into {layer_name(node)}"
                result.folded.append(line)
                name = label_of(node)
                result.scales[name] = affine.scale * result.scales.get(name, 1.0)
        return result


@dataclass(frozen=True)
class _Affine:
    """``output = input * scale + shift``, float64 ``[channels]`` each, then perhaps clipped."""

    node: ir.Node
    scale: np.ndarray
    shift: np.ndarray
    clip: tuple[float, float] | None = None


def _affine_after(node: ir.Node, opset: int) -> _Affine | None:
    """Read what alone reads a convolution; None when it is no such node."""
    output = node.outputs[0]
    uses = output.uses()
    if len(uses) != 1 or output.is_graph_output() or output.shape is None:
        return None
    if not has_no_epilogue(node) or not has_no_residual(node):
        return None
    reader, position = next(iter(uses))
    if reader.domain != "" or reader.graph is not node.graph:
        return None
    channels = node.attributes.get_int("out_channels")
    if reader.op_type == "BatchNormalization" and position == 0:
        return _batch_norm(reader, channels, opset)
    if reader.op_type == "HardSigmoid":
        slope = np.full(channels, reader.attributes.get_float("alpha", 0.2))
        shift = np.full(channels, reader.attributes.get_float("beta", 0.5))
        return _Affine(reader, slope, shift, (0.0, 1.0))
    if reader.op_type not in ("Mul", "Add"):
        return None
    constant = _per_channel(reader.inputs[1 - position], channels, len(output.shape), opset)
    if constant is None:
        return None
    if reader.op_type == "Mul":
        return _Affine(reader, constant, np.zeros(channels))
    return _Affine(reader, np.ones(channels), constant)


def _batch_norm(node: ir.Node, channels: int, opset: int) -> _Affine | None:
    if node.attributes.get_int("training_mode", 0) or any(v.uses() for v in node.outputs[1:]):
        return None
    arrays = [folded_constant(input_of(node, position), opset) for position in range(1, 5)]
    wide = [array.astype(np.float64) for array in arrays if array is not None]
    if len(wide) < len(arrays) or any(array.shape != (channels,) for array in wide):
        return None
    scale, shift, mean, variance = wide
    with np.errstate(all="ignore"):
        scale = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
        return _Affine(node, scale, shift - mean * scale)


def _per_channel(value: ir.Value | None, channels: int, rank: int, opset: int) -> np.ndarray | None:
    """Read a constant that broadcasts along the channels alone, as float64 ``[channels]``."""
    array = None if value is None else folded_constant(value, opset)
    if array is None or array.ndim > rank:
        return None
    aligned = (1,) * (rank - array.ndim) + array.shape
    if array.size != 1 and (aligned[1] != channels or array.size != channels):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,))


def _fold(node: ir.Node, affine: _Affine, names: Names) -> bool:
    weight = read_weight(node)
    if weight is None:
        return False
    values = weight.values.astype(np.float64) * affine.scale[weight.rows][:, None]
    # -0 is no padding.
    values = np.where(weight.is_entry(), values, 0.0)
    bias = weight.bias.astype(np.float64) * affine.scale + affine.shift
    with np.errstate(over="ignore"):
        values = values.astype(np.float32).astype(weight.values.dtype)
        bias = bias.astype(np.float32)
    if not (np.isfinite(values.astype(np.float32)).all() and np.isfinite(bias).all()):
        return False
    set_weight(node, replace(weight, values=values, bias=bias), names)
    if affine.clip is not None:
        for name, bound in zip(("clip_min", "clip_max"), affine.clip, strict=True):
            node.attributes.add(ir.AttrFloat32(name, bound))
    take_output(affine.node.outputs[0], node.outputs[0])
    remove_node(affine.node)
    return True
