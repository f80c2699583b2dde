"""Read a Conv as a geometry, with ONNX's defaults filled in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.conv_geometry import ConvGeometry
from .access import input_of


def is_conv(node: ir.Node) -> bool:
    """Return whether a node is the standard Conv."""
    return node.domain == "" and node.op_type == "Conv"


def is_conv_transpose(node: ir.Node) -> bool:
    """Return whether a node is the standard ConvTranspose."""
    return node.domain == "" and node.op_type == "ConvTranspose"


def read_conv(node: ir.Node, weight_shape: Sequence[int]) -> ConvGeometry | str:
    """Read a Conv whose weight is ``[out, in / group, *kernel]``.

    ``auto_pad`` becomes explicit pads. SAME depends on the size of X where the stride is over 1,
    and can be resolved only where that size is known.

    Returns:
        The geometry, or the reason why ``CondensedConv`` cannot hold it.

    """
    kernel = tuple(weight_shape[2:])
    if len(kernel) not in (1, 2):
        return f"convolutions over {len(kernel)} axes have no kernel"
    group = node.attributes.get_int("group", 1)
    strides = _ints(node, "strides") or (1,) * len(kernel)
    dilations = _ints(node, "dilations") or (1,) * len(kernel)
    pads = _pads(node, kernel, strides, dilations)
    if isinstance(pads, str):
        return pads
    channels = weight_shape[1] * group
    try:
        return ConvGeometry(channels, weight_shape[0], kernel, strides, pads, dilations, group)
    except ValueError as error:
        return str(error)


def read_conv_transpose(node: ir.Node, weight_shape: Sequence[int]) -> ConvGeometry | str:
    """Read a ConvTranspose of stride 1, which is a Conv of the mirrored filters.

    Args:
        node: its weight is ``[in, out / group, *kernel]``.
        weight_shape: of that weight.

    Returns:
        The geometry of the Conv, whose weight :func:`mirrored` gives; the reason why there is none.

    """
    kernel = tuple(weight_shape[2:])
    group = node.attributes.get_int("group", 1)
    if any(stride != 1 for stride in _ints(node, "strides")):
        return "ConvTranspose of this stride is not supported"
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET" or _ints(node, "output_shape"):
        return "ConvTranspose of automatic pads is not supported"
    dilations = _ints(node, "dilations") or (1,) * len(kernel)
    given = _ints(node, "pads") or (0,) * (2 * len(kernel))
    reach = [(size - 1) * step for size, step in zip(kernel, dilations, strict=True)]
    pads = tuple(most - pad for most, pad in zip(reach * 2, given, strict=True))
    if min(pads) < 0 or any(_ints(node, "output_padding")) or len(kernel) not in (1, 2):
        return "ConvTranspose of such pads or axes is not supported"
    ones = (1,) * len(kernel)
    channels, outputs = weight_shape[0], weight_shape[1] * group
    try:
        return ConvGeometry(channels, outputs, kernel, ones, pads, dilations, group)
    except ValueError as error:
        return str(error)


def mirrored(array: np.ndarray, group: int) -> np.ndarray:
    """Turn a weight ``[in, out / group, *kernel]`` of ConvTranspose into that of its Conv."""
    inputs, outputs, *kernel = array.shape
    parts = array.reshape(group, inputs // group, outputs, *kernel).swapaxes(1, 2)
    axes = tuple(range(2, 2 + len(kernel)))
    return np.flip(parts.reshape(group * outputs, inputs // group, *kernel), axes)


def _pads(
    node: ir.Node, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...] | str:
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return _ints(node, "pads") or (0,) * (2 * len(kernel))
    if auto == "VALID":
        return (0,) * (2 * len(kernel))
    begins, ends = [], []
    for axis, (size, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        reach = (size - 1) * dilation
        if stride > 1:
            length = _length(input_of(node, 0), axis)
            if length is None:
                return f"auto_pad is {auto} with a stride of {stride} and X has no fixed size"
            reach = max(0, (-(-length // stride) - 1) * stride + reach + 1 - length)
        less, more = reach // 2, reach - reach // 2
        begins.append(more if auto == "SAME_LOWER" else less)
        ends.append(less if auto == "SAME_LOWER" else more)
    return (*begins, *ends)


def strides_pads_dilations(node: ir.Node, axes: int) -> tuple[list[int], list[int], list[int]]:
    """Return what a convolution has explicitly of these, with their defaults."""
    strides, dilations = (_ints(node, name) or (1,) * axes for name in ("strides", "dilations"))
    return list(strides), list(_ints(node, "pads") or (0,) * (2 * axes)), list(dilations)


def _length(x: ir.Value, axis: int) -> int | None:
    size = None if x.shape is None or len(x.shape) <= 2 + axis else x.shape[2 + axis]
    return size if isinstance(size, int) else None


def _ints(node: ir.Node, name: str) -> tuple[int, ...]:
    return tuple(node.attributes.get_ints(name, ()))
