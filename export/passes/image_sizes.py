"""Know that two images have the same sizes where these are symbols that inference loses."""

from __future__ import annotations

import onnx_ir as ir

from ...ort_ops.format.conv_geometry import ConvGeometry
from .access import graph_of, input_of
from .conv_layer import is_conv, read_conv
from .matching import is_op
from .nodes import dimensions_of, is_convolution, is_ours, read_geometry, same_shape
from .quantized_weight import is_dequantize, is_quantize
from .region import UNARY

_Change = tuple[tuple[int, int], ...]

_Origin = tuple[ir.Value | _Change, ...]
"""An image, and what convolutions do to its sizes one after the other."""


def same_images(one: ir.Value, other: ir.Value) -> bool:
    """Return whether two values ``[N, C, ...]`` are known to have the same shape.

    Batch and sizes follow from those of an image that both are computed from, by convolutions that
    change sizes alike or not at all.
    """
    if same_shape(one, other):
        return True
    sizes, others = dimensions_of(one), dimensions_of(other)
    if sizes is None or others is None or len(sizes) != len(others) or len(sizes) < 3:
        return False
    maker = one.producer()
    if maker is None or not isinstance(sizes[1], int) or sizes[1] != others[1]:
        return False
    origins = _origins(graph_of(maker))
    return origins.get(one) == origins.get(other, (other,))


def _origins(graph: ir.Graph) -> dict[ir.Value, _Origin]:
    """Say of the values that nodes compute where their sizes come from."""
    origins: dict[ir.Value, _Origin] = {}
    for node in graph:
        given = [origins.get(value, (value,)) for value in node.inputs if value is not None]
        for output in node.outputs:
            origins[output] = _keeps(node, given) or (output,)
    return origins


def _keeps(node: ir.Node, given: list[_Origin]) -> _Origin | None:
    """Return the origin of what a node computes from values of these; None where it begins one."""
    if not given:
        return None
    elementwise = node.domain == "" and node.op_type in UNARY
    if is_quantize(node) or is_dequantize(node) or elementwise:
        return given[0]
    if is_op(node, "Add"):
        return given[0] if given[0] == given[-1] else None
    change = _change(node)
    if change is None:
        return None
    return given[0] if all(one == (0, 1) for one in change) else (*given[0], change)


def _change(node: ir.Node) -> _Change | None:
    """Return by how much a convolution lengthens each axis, and its stride; None for others."""
    place = 3 if is_op(node, "QLinearConv") else 1
    geometry: ConvGeometry | str
    if is_conv(node) or place == 3:
        sizes = dimensions_of(input_of(node, place)) or []
        known = [size for size in sizes if isinstance(size, int)]
        geometry = read_conv(node, known) if len(known) == len(sizes) > 2 else "not known"
    elif is_ours(node) and is_convolution(node):
        if node.attributes.get_int("channels_last", 0):
            return None
        geometry = read_geometry(node)
    else:
        return None
    if isinstance(geometry, str):
        return None
    pads = zip(geometry.pads, geometry.pads[geometry.axes :], strict=False)
    reaches = zip(geometry.dilations, geometry.kernel_shape, strict=True)
    longer = [sum(pad) - step * (size - 1) for pad, (step, size) in zip(pads, reaches, strict=True)]
    return tuple(zip(longer, geometry.strides, strict=True))
