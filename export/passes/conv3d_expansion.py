"""A Conv over three axes whose kernel is flat, as one over two axes between reshapes.

Two neighboring axes along which it has size 1 become one axis; where it has size 1 along the first
alone, each plane is an image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ...ort_ops.format.conv_geometry import ConvGeometry
from .access import input_of, optional_input
from .builder import Builder, Size, write_conv
from .condense_reports import kept_of
from .constants import ConstantWeight
from .conv_layer import strides_pads_dilations
from .expansion import KINDS, Expansion
from .nodes import dimensions_of, replace_node
from .origins import leave

_INT64 = ir.DataType.INT64


def expand_conv(work: Expansion, node: ir.Node) -> bool:
    """Write a Conv over three axes as one over two, where its kernel allows that."""
    value = input_of(node, 1)
    found = work.weight(value)
    if found is None or found.array.ndim != 5 or found.array.dtype.name not in KINDS:
        return False
    sizes, kernel = dimensions_of(input_of(node, 0)), found.array.shape[2:]
    merged = next((at for at in (1, 0) if _is_plain(node, kernel, (at, at + 1))), None)
    if merged is None and sizes is not None and _is_plain(node, kernel, (0,)):
        return _expand_planes(work, node, sizes, found)
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


def _is_plain(node: ir.Node, kernel: Sequence[int], axes: Sequence[int]) -> bool:
    """Return whether a convolution only carries axes along."""
    strides, pads, _ = strides_pads_dilations(node, len(kernel))
    automatic = node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    unpadded = not any(pads[axis] or pads[axis + 3] for axis in axes)
    return unpadded and not automatic and all(kernel[a] == strides[a] == 1 for a in axes)


def _expand_planes(
    work: Expansion, node: ir.Node, sizes: list[Size], found: ConstantWeight
) -> bool:
    """Convolve each plane along the first axis as an image of its own."""
    geometry = _without_axis(node, found.array.shape, 0)
    array, kept = (a.reshape(geometry.weight_shape) for a in (found.array, kept_of(found)))
    both = [size for size in (sizes[0], sizes[2]) if isinstance(size, int)]
    images: Size = math.prod(both) if len(both) == 2 else None
    shape = [images, sizes[1], *sizes[3:]]
    reason = work.slower_as_conv(array, kept, geometry, shape, copies=2)
    if reason is not None:
        leave(node, input_of(node, 1), reason)
        return False
    builder, x = work.builder(node), input_of(node, 0)
    kind = x.dtype

    def of(value: ir.Value, *axes: int) -> list[ir.Value]:
        return [
            builder.add("Shape", value, shape=[1], kind=_INT64, start=axis, end=axis + 1)
            for axis in axes
        ]

    turned = builder.add("Transpose", x, kind=kind, perm=[0, 2, 1, 3, 4])
    rest = builder.integers("rest", -1)
    target = builder.add("Concat", rest, *of(x, 1, 3, 4), shape=[4], kind=_INT64, axis=0)
    flat = builder.add("Reshape", turned, target, shape=shape, kind=kind)
    kernel = builder.integers("kernel", *geometry.weight_shape)
    weight = builder.add(
        "Reshape", input_of(node, 1), kernel, shape=geometry.weight_shape, kind=kind
    )
    y = write_conv(builder, flat, weight, optional_input(node, 2), geometry)
    target = builder.add("Concat", *of(x, 0, 2), *of(y, 1, 2, 3), shape=[5], kind=_INT64, axis=0)
    y = builder.add("Reshape", y, target, kind=kind)
    replace_node(node, builder.add("Transpose", y, kind=kind, perm=[0, 2, 1, 3, 4]))
    return True


def _without_axis(node: ir.Node, shape: Sequence[int], at: int) -> ConvGeometry:
    strides, pads, dilations = strides_pads_dilations(node, 3)
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

    # Not -1, which an empty batch leaves open.
    pair = builder.add("ReduceProd", *sizes_of(x, 2 + at, 4 + at), shape=[1], kind=_INT64)
    shape = [*sizes_of(x, 0, 2 + at), pair, *sizes_of(x, 4 + at, 5)]
    target = builder.add("Concat", *shape, shape=[4], kind=_INT64, axis=0)
    flat = builder.add("Reshape", x, target, shape=sizes, kind=kind)
    kernel = builder.integers("kernel", *geometry.weight_shape)
    weight = builder.add(
        "Reshape", input_of(node, 1), kernel, shape=geometry.weight_shape, kind=kind
    )
    y = write_conv(builder, flat, weight, optional_input(node, 2), geometry)
    shape = [*sizes_of(y, 0, 2 + at), *sizes_of(x, 2 + at, 4 + at), *sizes_of(y, 3 + at, 4)]
    target = builder.add("Concat", *shape, shape=[5], kind=_INT64, axis=0)
    replace_node(node, builder.add("Reshape", y, target, kind=kind))
