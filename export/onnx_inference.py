"""Type and shape inference of our operators, for onnx's registry of schemas.

Every refusal names the node. What is not known is not refused: behind an operator that onnx does
not know, an input has no type at all, and a node may leave inputs out.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx.shape_inference import InferenceError

from ..ort_ops.format.conv_geometry import ConvGeometry

_Dims = list[int | None]


def infer_gemm(ctx: onnx.shape_inference.InferenceContext) -> None:
    """Give Y the type of X and its shape with out_features as the last dimension."""
    in_features, out_features = (_attribute(ctx, f"{end}_features").i for end in ("in", "out"))
    _check_weights(ctx, out_features)
    x = _tensor_type(ctx, 0)
    if x is None:
        return
    dims = _dims(x)
    if dims is not None and (not dims or dims[-1] not in (None, in_features)):
        last = dims[-1] if dims else "missing"
        raise _refusal(ctx, f"the last dimension of X is {last}, in_features is {in_features}")

    y = onnx.TypeProto()
    y.tensor_type.elem_type = x.tensor_type.elem_type
    if dims is not None:
        shape = y.tensor_type.shape
        for dim in x.tensor_type.shape.dim[:-1]:
            shape.dim.add().CopyFrom(dim)
        shape.dim.add().dim_value = out_features
    ctx.set_output_type(0, y)


def infer_conv(ctx: onnx.shape_inference.InferenceContext) -> None:
    """Give Y the type of X and the shape ``[N, out_channels, ...]``.

    A spatial axis whose length the convolution keeps keeps its symbolic name as well.
    """
    geometry = _geometry(ctx)
    _check_weights(ctx, geometry.out_channels)
    x = _tensor_type(ctx, 0)
    if x is None:
        return
    dims = _dims(x)
    wanted = (None, geometry.in_channels, *[None] * geometry.axes)
    if dims is not None and _conflict(dims, wanted):
        axes = "N, C, H, W" if geometry.axes == 2 else "N, C, L"
        raise _refusal(
            ctx,
            f"X has the shape {_text(dims)}, it must be [{axes}] with C = in_channels, "
            f"which is {geometry.in_channels}",
        )

    y = onnx.TypeProto()
    y.tensor_type.elem_type = x.tensor_type.elem_type
    shape = y.tensor_type.shape
    shape.dim.add().CopyFrom(
        x.tensor_type.shape.dim[0] if dims is not None else onnx.TensorShapeProto.Dimension()
    )
    shape.dim.add().dim_value = geometry.out_channels
    for axis in range(geometry.axes):
        dim = shape.dim.add()
        if dims is None:
            continue
        size = dims[2 + axis]
        if size is not None:
            dim.dim_value = _fitting_size(ctx, geometry, axis, size)
        elif geometry.keeps_size(axis):
            dim.CopyFrom(x.tensor_type.shape.dim[2 + axis])
    ctx.set_output_type(0, y)


def _fitting_size(
    ctx: onnx.shape_inference.InferenceContext, geometry: ConvGeometry, axis: int, size: int
) -> int:
    output = geometry.output_size(axis, size)
    if output < 1:
        raise _refusal(
            ctx, f"X is {size} long on spatial axis {axis}, shorter than the kernel with its pads"
        )
    return output


def _geometry(ctx: onnx.shape_inference.InferenceContext) -> ConvGeometry:
    names = ("kernel_shape", "strides", "pads", "dilations")
    lists = {name: tuple(_attribute(ctx, name).ints) for name in names}
    for name, sizes in lists.items():
        if not sizes:
            raise _refusal(ctx, f"the attribute {name} is empty")
    try:
        return ConvGeometry(
            in_channels=_attribute(ctx, "in_channels").i,
            out_channels=_attribute(ctx, "out_channels").i,
            kernel_shape=lists["kernel_shape"],
            strides=lists["strides"],
            pads=lists["pads"],
            dilations=lists["dilations"],
            group=_attribute(ctx, "group").i,
        )
    except ValueError as error:
        raise _refusal(ctx, str(error)) from error


def _check_weights(ctx: onnx.shape_inference.InferenceContext, outputs: int) -> None:
    values, indices, bias, rows = (_dims(_tensor_type(ctx, index)) for index in range(1, 5))
    if _conflict(values, (None, None)):
        raise _refusal(ctx, f"values has the shape {_text(values)}, it must be [active, fan_in]")
    if values is not None and _conflict(indices, values):
        raise _refusal(ctx, f"indices has the shape {_text(indices)}, values has {_text(values)}")
    if _conflict(bias, (outputs,)):
        raise _refusal(ctx, f"bias has the shape {_text(bias)}, it must be [{outputs}]")
    if _conflict(rows, (values[0] if values is not None else None,)):
        raise _refusal(ctx, f"rows has the shape {_text(rows)}, values has {_text(values)}")


def _attribute(ctx: onnx.shape_inference.InferenceContext, name: str) -> onnx.AttributeProto:
    found = ctx.get_attribute(name)
    if found is None:
        raise _refusal(ctx, f"the attribute {name} is missing")
    return found


def _tensor_type(ctx: onnx.shape_inference.InferenceContext, index: int) -> onnx.TypeProto | None:
    """Return the type of an input; None where it is left out, of unknown type or no tensor."""
    kind = ctx.get_input_type(index) if index < ctx.get_num_inputs() else None
    return kind if kind is not None and kind.HasField("tensor_type") else None


def _dims(kind: onnx.TypeProto | None) -> _Dims | None:
    """Read the dimensions, None where unknown; None when not even the rank is known."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim]


def _conflict(dims: _Dims | None, wanted: Sequence[int | None]) -> bool:
    if dims is None:
        return False
    if len(dims) != len(wanted):
        return True
    return any(None not in (d, w) and d != w for d, w in zip(dims, wanted, strict=True))


def _text(dims: _Dims | None) -> str:
    known = [] if dims is None else dims
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in known) + "]"


def _refusal(ctx: onnx.shape_inference.InferenceContext, why: str) -> InferenceError:
    return InferenceError(f"{ctx.get_display_name()}: {why}")
