"""ConvTranspose of a stride over 1: a Conv whose channels are the pixels between two of X."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.conv_geometry import ConvGeometry
from .access import graph_of, input_of, optional_input
from .builder import Builder, write_conv
from .condense_reports import kept_of
from .conv_layer import strides_pads_dilations
from .expansion import KINDS, Expansion
from .nodes import dimensions_of, replace_node
from .origins import leave


def expand_conv_transpose(work: Expansion, node: ir.Node) -> bool:
    """Write a ConvTranspose of a stride over 1 as a Conv, whose channels are pixels."""
    value = input_of(node, 1)
    found = work.weight(value)
    if found is None or found.array.dtype.name not in KINDS:
        return False
    kernel = found.array.shape[2:]
    strides, pads, dilations = strides_pads_dilations(node, len(kernel))
    if all(stride == 1 for stride in strides):
        return False
    reason = _unsupported(work, node, strides, dilations, kernel)
    if reason is not None:
        leave(node, value, reason)
        return False
    builder, stride = work.builder(node), strides[0]
    taps = [-(-size // stride) for size in kernel]
    further = node.attributes.get_ints("output_padding", ()) or [0] * len(kernel)
    begins, ends = pads[: len(kernel)], pads[len(kernel) :]
    # What stands after the end of Y, which the pixels of the last phases reach beyond.
    beyond = [
        stride * t - k + end - more
        for t, k, end, more in zip(taps, kernel, ends, further, strict=True)
    ]
    group = node.attributes.get_int("group", 1)
    phases = stride ** len(kernel)
    channels, outputs = found.array.shape[0], found.array.shape[1] * group
    around = tuple(t - 1 for t in taps) * 2
    ones = (1,) * len(kernel)
    geometry = ConvGeometry(channels, outputs * phases, tuple(taps), ones, around, ones, group)
    before = len(graph_of(node))
    weight = _phase_filters(builder, value, found.array.shape, group, stride)
    made = work.weight(weight)
    if min(beyond) < 0:
        reason = "its output_padding reaches beyond the last pixel of its kernel"
    elif made is None:
        reason = "its weight cannot be rearranged"
    else:
        share = math.prod(kernel) / (phases * math.prod(taps))
        sizes = dimensions_of(input_of(node, 0))
        reason = work.slower_as_conv(made.array, kept_of(made), geometry, sizes, share, 2)
    if reason is not None:
        _undo(node, len(graph_of(node)) - before)
        leave(node, value, reason)
        return False
    bias = optional_input(node, 2)
    given = None if bias is None else work.weight(bias)
    if given is not None:
        bias = builder.constant("bias", np.repeat(given.array, phases))
    y = write_conv(builder, input_of(node, 0), weight, bias, geometry)
    y = _interleave(builder, y, outputs, stride, len(kernel))
    replace_node(node, _crop(builder, y, begins, beyond))
    return True


def _unsupported(
    work: Expansion,
    node: ir.Node,
    strides: Sequence[int],
    dilations: Sequence[int],
    kernel: Sequence[int],
) -> str | None:
    bias = optional_input(node, 2)
    if bias is not None and work.weight(bias) is None:
        return "its bias is no constant"
    return unsupported_transpose(node, strides, dilations, kernel)


def unsupported_transpose(
    node: ir.Node, strides: Sequence[int], dilations: Sequence[int], kernel: Sequence[int]
) -> str | None:
    """Say why a ConvTranspose of a stride over 1 stays, by its attributes; None if it need not."""
    automatic = node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    if automatic or tuple(node.attributes.get_ints("output_shape", ())):
        return "ConvTranspose of automatic pads is not supported"
    if len(kernel) not in (1, 2) or len(set(strides)) > 1 or any(d != 1 for d in dilations):
        return "ConvTranspose of three axes, unequal strides or strides and dilations stays"
    return None


def phase_filters(array: np.ndarray, group: int, stride: int) -> np.ndarray:
    """Turn an array ``[in, out / group, *kernel]`` as an expansion does, without padding.

    Args:
        array: its kernel has sizes that the stride divides.
        group: of the ConvTranspose.
        stride: of all its axes.

    """
    inputs, outputs, *kernel = array.shape
    axes = len(kernel)
    taps = [size // stride for size in kernel]
    apart = [group, inputs // group, outputs]
    for t in taps:
        apart += [t, stride]
    of_taps = [3 + 2 * axis for axis in range(axes)]
    turned = np.flip(array.reshape(apart), tuple(of_taps))
    perm = [0, 2, *(axis + 1 for axis in of_taps), 1, *of_taps]
    shape = (group * outputs * stride**axes, inputs // group, *taps)
    return turned.transpose(perm).reshape(shape)


def _phase_filters(
    builder: Builder, weight: ir.Value, shape: Sequence[int], group: int, stride: int
) -> ir.Value:
    """Turn ``[in, out / group, *kernel]`` into ``[out * phases, in / group, *taps]``, mirrored.

    Output q · stride + r reads X at q, q - 1, … with the taps r, r + stride, … of the kernel.
    """
    inputs, outputs, *kernel = shape
    axes, kind = len(kernel), weight.dtype
    missing = [-size % stride for size in kernel]
    if any(missing):
        pads = builder.integers("pads", *[0] * (4 + axes), *missing)
        weight = builder.add("Pad", weight, pads, kind=kind)
    taps = [-(-size // stride) for size in kernel]
    apart = [group, inputs // group, outputs]
    for t in taps:
        apart += [t, stride]
    weight = builder.add("Reshape", weight, builder.integers("apart", *apart), kind=kind)
    of_taps = [3 + 2 * axis for axis in range(axes)]
    turned = [
        builder.integers(name, *numbers)
        for name, numbers in (
            ("from", [-1] * axes),
            ("to", [np.iinfo(np.int64).min] * axes),
            ("axes", of_taps),
            ("by", [-1] * axes),
        )
    ]
    weight = builder.add("Slice", weight, *turned, kind=kind)
    perm = [0, 2, *(axis + 1 for axis in of_taps), 1, *of_taps]
    weight = builder.add("Transpose", weight, kind=kind, perm=perm)
    shape = [group * outputs * stride**axes, inputs // group, *taps]
    return builder.add(
        "Reshape", weight, builder.integers("filters", *shape), shape=shape, kind=kind
    )


def _undo(node: ir.Node, count: int) -> None:
    """Remove the nodes that were put before one."""
    graph = graph_of(node)
    at = list(graph).index(node)
    for gone in reversed(list(graph)[at - count : at]):
        graph.remove(gone, safe=True)


def _interleave(builder: Builder, y: ir.Value, outputs: int, stride: int, axes: int) -> ir.Value:
    """Bring the channels of each phase to their pixels."""
    if axes == 2:
        return builder.add("DepthToSpace", y, kind=y.dtype, blocksize=stride, mode="CRD")
    apart = builder.integers("apart", 0, outputs, stride, -1)
    y = builder.add("Reshape", y, apart, kind=y.dtype)
    y = builder.add("Transpose", y, kind=y.dtype, perm=[0, 1, 3, 2])
    return builder.add("Reshape", y, builder.integers("whole", 0, outputs, -1), kind=y.dtype)


def _crop(builder: Builder, y: ir.Value, begins: Sequence[int], beyond: Sequence[int]) -> ir.Value:
    if not any((*begins, *beyond)):
        return y
    ends = [-more if more else np.iinfo(np.int64).max for more in beyond]
    axes = [2 + axis for axis in range(len(begins))]
    bounds = [
        builder.integers(name, *numbers)
        for name, numbers in (("begins", begins), ("ends", ends), ("axes", axes))
    ]
    return builder.add("Slice", y, *bounds, kind=y.dtype)
