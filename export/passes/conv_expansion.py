"""Convolutions that are no CondensedConv as they stand, but one between reshapes.

A Conv over three axes whose kernel has size 1 along two neighboring ones takes these as one axis.
ConvTranspose of a stride over 1 is a Conv that computes the pixels between two of X as channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.conv_geometry import ConvGeometry
from .access import graph_of, input_of, optional_input
from .builder import Builder, Size
from .condense_reports import kept_of
from .expansion import Expansion
from .nodes import dimensions_of, take_output
from .origins import leave

_INT64 = ir.DataType.INT64

_KINDS = ("float32", "float16")


def expand_conv(work: Expansion, node: ir.Node) -> bool:
    """Write a Conv over three axes as one over two, where its kernel allows that."""
    value = input_of(node, 1)
    found = work.weight(value)
    if found is None or found.array.ndim != 5 or found.array.dtype.name not in _KINDS:
        return False
    sizes, kernel = dimensions_of(input_of(node, 0)), found.array.shape[2:]
    merged = next((at for at in (1, 0) if _is_plain(node, kernel, at)), None)
    if merged is None:
        reason: str | None = "convolutions over three axes have no kernel"
    elif sizes is None:
        reason = "the rank of what it convolves is not known"
    else:
        geometry = _without_axis(node, found.array.shape, merged)
        array, kept = (a.reshape(geometry.weight_shape) for a in (found.array, kept_of(found)))
        reason = work.slower_as_conv(array, kept, geometry, _merge(sizes, merged))
        if reason is None:
            _write_flat(work.builder(node), node, geometry, merged, _merge(sizes, merged))
            return True
    leave(node, value, str(reason))
    return False


def _is_plain(node: ir.Node, kernel: Sequence[int], at: int) -> bool:
    """Return whether axes ``at`` and ``at + 1`` are only carried along."""
    pair = (at, at + 1)
    strides, pads, _ = _geometry_of(node, len(kernel))
    automatic = node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    unpadded = not any(pads[axis] or pads[axis + 3] for axis in pair)
    return unpadded and not automatic and all(kernel[a] == strides[a] == 1 for a in pair)


def _geometry_of(node: ir.Node, axes: int) -> tuple[list[int], list[int], list[int]]:
    """Return strides, pads and dilations, with their defaults."""
    ints = node.attributes.get_ints
    strides, dilations = (ints(name, ()) or (1,) * axes for name in ("strides", "dilations"))
    return list(strides), list(ints("pads", ()) or (0,) * (2 * axes)), list(dilations)


def _without_axis(node: ir.Node, shape: Sequence[int], at: int) -> ConvGeometry:
    strides, pads, dilations = _geometry_of(node, 3)
    kernel = list(shape[2:])
    for numbers in (kernel, strides, dilations):
        del numbers[at]
    del pads[at + 3], pads[at]
    group = node.attributes.get_int("group", 1)
    channels = shape[1] * group
    return ConvGeometry(
        channels,
        shape[0],
        tuple(kernel),
        tuple(strides),
        tuple(pads),
        tuple(dilations),
        group,
    )


def _merge(sizes: list[Size], at: int) -> list[Size]:
    pair = [size for size in sizes[2 + at : 4 + at] if isinstance(size, int)]
    return [*sizes[: 2 + at], math.prod(pair) if len(pair) == 2 else None, *sizes[4 + at :]]


def _write_flat(
    builder: Builder, node: ir.Node, geometry: ConvGeometry, at: int, sizes: list[Size]
) -> None:
    """Convolve with two axes as one, and take them apart again."""
    x, kind = input_of(node, 0), input_of(node, 0).dtype

    def sizes_of(value: ir.Value, start: int, end: int) -> list[ir.Value]:
        if start == end:
            return []
        return [builder.add("Shape", value, shape=[end - start], kind=_INT64, start=start, end=end)]

    rest = builder.integers("rest", -1)
    shape = [*sizes_of(x, 0, 2 + at), rest, *sizes_of(x, 4 + at, 5)]
    target = builder.add("Concat", *shape, shape=[4], kind=_INT64, axis=0)
    flat = builder.add("Reshape", x, target, shape=sizes, kind=kind)
    kernel = builder.integers("kernel", *geometry.weight_shape)
    weight = builder.add(
        "Reshape", input_of(node, 1), kernel, shape=geometry.weight_shape, kind=kind
    )
    y = _conv(builder, flat, weight, optional_input(node, 2), geometry)
    shape = [*sizes_of(y, 0, 2 + at), *sizes_of(x, 2 + at, 4 + at), *sizes_of(y, 3 + at, 4)]
    target = builder.add("Concat", *shape, shape=[5], kind=_INT64, axis=0)
    _finish(node, builder.add("Reshape", y, target, kind=kind))


def _conv(
    builder: Builder, x: ir.Value, weight: ir.Value, bias: ir.Value | None, geometry: ConvGeometry
) -> ir.Value:
    inputs = [x, weight] if bias is None else [x, weight, bias]
    return builder.add(
        "Conv",
        *inputs,
        kind=x.dtype,
        kernel_shape=geometry.kernel_shape,
        strides=geometry.strides,
        pads=geometry.pads,
        dilations=geometry.dilations,
        group=geometry.group,
    )


def _finish(node: ir.Node, y: ir.Value) -> None:
    take_output(node.outputs[0], y)
    graph_of(node).remove(node, safe=True)


def expand_conv_transpose(work: Expansion, node: ir.Node) -> bool:
    """Write a ConvTranspose of a stride over 1 as a Conv, whose channels are pixels."""
    value = input_of(node, 1)
    found = work.weight(value)
    if found is None or found.array.dtype.name not in _KINDS:
        return False
    kernel = found.array.shape[2:]
    strides, pads, dilations = _geometry_of(node, len(kernel))
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
    y = _conv(builder, input_of(node, 0), weight, bias, geometry)
    y = _interleave(builder, y, outputs, stride, len(kernel))
    _finish(node, _crop(builder, y, begins, beyond))
    return True


def _unsupported(
    work: Expansion,
    node: ir.Node,
    strides: Sequence[int],
    dilations: Sequence[int],
    kernel: Sequence[int],
) -> str | None:
    automatic = node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    if automatic or tuple(node.attributes.get_ints("output_shape", ())):
        return "ConvTranspose of automatic pads is not supported"
    if len(kernel) not in (1, 2) or len(set(strides)) > 1 or any(d != 1 for d in dilations):
        return "ConvTranspose of three axes, unequal strides or strides and dilations stays"
    bias = optional_input(node, 2)
    if bias is not None and work.weight(bias) is None:
        return "its bias is no constant"
    return None


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
