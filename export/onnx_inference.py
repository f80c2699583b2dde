"""Type and shape inference of our operators, for onnx's registry of schemas.

Every refusal names the node. What is not known is not refused: behind an operator that onnx does
not know, an input has no type at all, and a node may leave inputs out.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx.shape_inference import InferenceError

from ..ort_ops.contract import (
    CONDENSED_CONV,
    CONDENSED_GEMM,
    CONDENSED_GEMM_INTEGER_TO_FLOAT,
    DYNAMIC_QUANTIZE_CONDENSED_GEMM,
    INPUTS,
    OUTPUT_TYPES,
    QLINEAR_CONDENSED_CONV,
    QLINEAR_CONDENSED_GEMM,
)
from ..ort_ops.format.conv_geometry import ConvGeometry

_Dims = list[int | None]


def infer_gemm(ctx: onnx.shape_inference.InferenceContext) -> None:
    """Give Y the type of X and its shape with out_features as the last dimension."""
    _infer_gemm(ctx, CONDENSED_GEMM)


def infer_qlinear_gemm(ctx: onnx.shape_inference.InferenceContext) -> None:
    """Give Y the type of y_zero_point and the shape of X with out_features last."""
    _check_quantization(ctx, QLINEAR_CONDENSED_GEMM, _attribute(ctx, "out_features").i)
    _infer_gemm(ctx, QLINEAR_CONDENSED_GEMM)


def infer_gemm_integer_to_float(ctx: onnx.shape_inference.InferenceContext) -> None:
    """Make Y float32 of the shape of X with out_features last."""
    _check_quantization(ctx, CONDENSED_GEMM_INTEGER_TO_FLOAT, _attribute(ctx, "out_features").i)
    _infer_gemm(ctx, CONDENSED_GEMM_INTEGER_TO_FLOAT)


def infer_dynamic_quantize_gemm(ctx: onnx.shape_inference.InferenceContext) -> None:
    """Make Y float32 of the shape of X with out_features last."""
    _check_quantization(ctx, DYNAMIC_QUANTIZE_CONDENSED_GEMM, _attribute(ctx, "out_features").i)
    _infer_gemm(ctx, DYNAMIC_QUANTIZE_CONDENSED_GEMM)


def infer_conv(ctx: onnx.shape_inference.InferenceContext) -> None:
    """Give Y the type of X and the shape ``[N, out_channels, ...]``.

    A spatial axis whose length the convolution keeps keeps its symbolic name as well.
    """
    _infer_conv(ctx, CONDENSED_CONV, channels_last=False)


def infer_qlinear_conv(ctx: onnx.shape_inference.InferenceContext) -> None:
    """Give Y the type of y_zero_point and the shape of a convolution, channels where X has them."""
    _check_quantization(ctx, QLINEAR_CONDENSED_CONV, _attribute(ctx, "out_channels").i)
    flag = ctx.get_attribute("channels_last")
    _infer_conv(ctx, QLINEAR_CONDENSED_CONV, channels_last=flag is not None and flag.i != 0)


def _infer_gemm(ctx: onnx.shape_inference.InferenceContext, op: str) -> None:
    in_features, out_features = (_attribute(ctx, f"{end}_features").i for end in ("in", "out"))
    _check_weights(ctx, op, out_features)
    x, element = _tensor_type(ctx, 0), _output_element(ctx, op)
    if x is None or element is None:
        return
    dims = _dims(x)
    if dims is not None and (not dims or dims[-1] not in (None, in_features)):
        last = dims[-1] if dims else "missing"
        raise _refusal(ctx, f"the last dimension of X is {last}, in_features is {in_features}")

    y = onnx.TypeProto()
    y.tensor_type.elem_type = element
    if dims is not None:
        shape = y.tensor_type.shape
        for dim in x.tensor_type.shape.dim[:-1]:
            shape.dim.add().CopyFrom(dim)
        shape.dim.add().dim_value = out_features
    ctx.set_output_type(0, y)


def _infer_conv(
    ctx: onnx.shape_inference.InferenceContext, op: str, *, channels_last: bool
) -> None:
    geometry = _geometry(ctx)
    _check_weights(ctx, op, geometry.out_channels)
    x, element = _tensor_type(ctx, 0), _output_element(ctx, op)
    if x is None or element is None:
        return
    dims = _dims(x)
    letters = [*"HW"] if geometry.axes == 2 else ["L"]
    channel_axis = 1 + geometry.axes if channels_last else 1
    first_space = 1 if channels_last else 2
    wanted: _Dims = [None] * (2 + geometry.axes)
    wanted[channel_axis] = geometry.in_channels
    if dims is not None and _conflict(dims, wanted):
        axes = ", ".join(["N", *letters, "C"] if channels_last else ["N", "C", *letters])
        raise _refusal(
            ctx,
            f"X has the shape {_text(dims)}, it must be [{axes}] with C = in_channels, "
            f"which is {geometry.in_channels}",
        )

    y = onnx.TypeProto()
    y.tensor_type.elem_type = element
    shape = y.tensor_type.shape
    for _ in wanted:
        shape.dim.add()
    shape.dim[channel_axis].dim_value = geometry.out_channels
    if dims is not None:
        shape.dim[0].CopyFrom(x.tensor_type.shape.dim[0])
        for axis in range(geometry.axes):
            size = dims[first_space + axis]
            if size is not None:
                fitting = _fitting_size(ctx, geometry, axis, size)
                shape.dim[first_space + axis].dim_value = fitting
            elif geometry.keeps_size(axis):
                shape.dim[first_space + axis].CopyFrom(x.tensor_type.shape.dim[first_space + axis])
    ctx.set_output_type(0, y)


def _output_element(ctx: onnx.shape_inference.InferenceContext, op: str) -> int | None:
    """Return the element type of Y, that of an input of the same type variable if it is one."""
    output = OUTPUT_TYPES[op]
    if output == "tensor(float)":
        return onnx.TensorProto.FLOAT
    kind = _tensor_type(ctx, list(INPUTS[op].values()).index(output))
    return None if kind is None else kind.tensor_type.elem_type


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


def _check_weights(ctx: onnx.shape_inference.InferenceContext, op: str, outputs: int) -> None:
    values, indices, bias, rows = (
        _input_dims(ctx, op, name) for name in ("values", "indices", "bias", "rows")
    )
    if _conflict(values, (None, None)):
        raise _refusal(ctx, f"values has the shape {_text(values)}, it must be [active, fan_in]")
    if values is not None and _conflict(indices, values):
        raise _refusal(ctx, f"indices has the shape {_text(indices)}, values has {_text(values)}")
    if _conflict(bias, (outputs,)):
        raise _refusal(ctx, f"bias has the shape {_text(bias)}, it must be [{outputs}]")
    if _conflict(rows, (values[0] if values is not None else None,)):
        raise _refusal(ctx, f"rows has the shape {_text(rows)}, values has {_text(values)}")


def _check_quantization(ctx: onnx.shape_inference.InferenceContext, op: str, outputs: int) -> None:
    """Refuse scales and zero points of shapes that the op does not take."""
    for name in INPUTS[op]:
        if not name.endswith(("_scale", "_zero_point")):
            continue
        dims = _input_dims(ctx, op, name)
        shapes = ((outputs,), (1,)) if name == "values_scale" else ((), (1,))
        if all(_conflict(dims, shape) for shape in shapes):
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise _refusal(ctx, f"{name} has the shape {_text(dims)}, it must be {wanted}")


def _input_dims(ctx: onnx.shape_inference.InferenceContext, op: str, name: str) -> _Dims | None:
    return _dims(_tensor_type(ctx, list(INPUTS[op]).index(name)))


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
