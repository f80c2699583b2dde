"""The model-local functions of our ops on 8-bit integers, as onnx_function.py has the others.

Sums come from MatMulInteger and ConvInteger; every step after them is one operator in float32,
rounded on its own as in the ops' definition.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper

from ..ort_ops.contract import (
    CONDENSED_GEMM_INTEGER_TO_FLOAT,
    DYNAMIC_QUANTIZE_CONDENSED_GEMM,
    OUTPUT,
    QLINEAR_CONDENSED_CONV,
    QLINEAR_CONDENSED_GEMM,
)
from .onnx_function import (
    attribute_value,
    constant,
    convolution,
    function_of,
    scattered_kernel,
    scattered_matrix,
)


def qlinear_condensed_gemm_function(opset: int) -> onnx.FunctionProto:
    """Write ``QLinearCondensedGemm`` as a function over operators of one opset version.

    Raises:
        ValueError: the opset is not one of :data:`..onnx_function.FUNCTION_OPSETS`.

    """
    nodes = [
        *_integer_matrix(),
        helper.make_node("MatMulInteger", ["X", "integers_t", "x_zero_point"], ["products"]),
        helper.make_node("Add", ["products", "bias"], ["total"]),
        helper.make_node("Cast", ["total"], ["real_total"], to=TensorProto.FLOAT),
        *_multipliers(),
        helper.make_node("Mul", ["real_total", "multipliers"], ["units"]),
        *_requantized("units"),
    ]
    return function_of(QLINEAR_CONDENSED_GEMM, nodes, opset)


def qlinear_condensed_conv_function(
    opset: int, *, signed_x: bool = True, channels_last: bool = True
) -> onnx.FunctionProto:
    """Write ``QLinearCondensedConv`` as a function over operators of one opset version.

    Without ``signed_x`` it is for files in which X is uint8 at every node, without
    ``channels_last`` for files in which no node has its channels last; both save passes over the
    tensors.

    Raises:
        ValueError: the opset is not one of :data:`..onnx_function.FUNCTION_OPSETS`.

    """
    image, zero_point = "X", "x_zero_point"
    before, after = [], []
    if channels_last:
        before, image = _channels_to_front(), "x_front"
        after = _channels_to_back()
    if signed_x:
        before += _as_unsigned(image, zero_point)
        image, zero_point = "x_unsigned", "zero_point_unsigned"
    nodes = [
        *scattered_kernel(),
        # As uint8: ConvInteger of ONNX Runtime takes int8 in its newest releases only, and sums
        # products of uint8 exactly on every CPU.
        constant("shift", np.array(128, np.float32)),
        helper.make_node("Add", ["kernel", "shift"], ["kernel_shifted"]),
        helper.make_node("Cast", ["kernel_shifted"], ["integers"], to=TensorProto.UINT8),
        constant("kernel_zero", np.array(128, np.uint8)),
        *before,
        convolution("ConvInteger", [image, "integers", zero_point, "kernel_zero"], "products"),
        # A scale and a bias for each channel, which is axis 1: [outputs, 1 (, 1)].
        helper.make_node("Shape", ["kernel_dims"], ["axes"]),
        constant("one", np.array([1], np.int64)),
        helper.make_node("Expand", ["one", "axes"], ["ones"]),
        helper.make_node("Concat", ["one_dim", "ones"], ["channel_shape"], axis=0),
        helper.make_node("Reshape", ["bias", "channel_shape"], ["channel_bias"]),
        helper.make_node("Add", ["products", "channel_bias"], ["total"]),
        helper.make_node("Cast", ["total"], ["real_total"], to=TensorProto.FLOAT),
        *_multipliers(),
        helper.make_node("Reshape", ["multipliers", "channel_shape"], ["channel_multipliers"]),
        helper.make_node("Mul", ["real_total", "channel_multipliers"], ["units_front"]),
        *after,
        *_requantized("units" if channels_last else "units_front"),
    ]
    return function_of(QLINEAR_CONDENSED_CONV, nodes, opset)


def condensed_gemm_integer_to_float_function(opset: int) -> onnx.FunctionProto:
    """Write ``CondensedGemmIntegerToFloat`` as a function over operators of one opset version.

    Raises:
        ValueError: the opset is not one of :data:`..onnx_function.FUNCTION_OPSETS`.

    """
    nodes = [
        *_integer_matrix(),
        helper.make_node("MatMulInteger", ["X", "integers_t", "x_zero_point"], ["total"]),
        helper.make_node("Mul", ["x_scale", "values_scale"], ["multipliers"]),
        *_dequantized(),
        *_float_epilogue("biased"),
    ]
    return function_of(CONDENSED_GEMM_INTEGER_TO_FLOAT, nodes, opset)


def dynamic_quantize_condensed_gemm_function(
    opset: int, *, per_row: bool = True
) -> onnx.FunctionProto:
    """Write ``DynamicQuantizeCondensedGemm`` as a function over operators of one opset version.

    Without ``per_row`` it is for files in which no node has that attribute set; ONNX Runtime fuses
    it with the operators that it is made of.

    Raises:
        ValueError: the opset is not one of :data:`..onnx_function.FUNCTION_OPSETS`.

    """
    if not per_row:
        quantized = [
            helper.make_node(
                "DynamicQuantizeLinear", ["X"], ["x_quantized", "x_scale", "x_zero_point"]
            ),
            *_integer_matrix(),
            helper.make_node(
                "MatMulInteger", ["x_quantized", "integers_t", "x_zero_point"], ["total"]
            ),
            helper.make_node("Mul", ["x_scale", "values_scale"], ["multipliers"]),
            *_dequantized(),
            *_float_epilogue("biased"),
        ]
        return function_of(DYNAMIC_QUANTIZE_CONDENSED_GEMM, quantized, opset)
    nodes = [
        *_integer_matrix(),
        *_quantized_groups(opset),
        # MatMulInteger of ONNX Runtime has no zero point for each row.
        helper.make_node("MatMulInteger", ["x_rows", "integers_t"], ["products"]),
        *_row_sums(),
        helper.make_node("Mul", ["zero_points", "row_sums"], ["shift"]),
        helper.make_node("Sub", ["products", "shift"], ["total"]),
        helper.make_node("Mul", ["scales", "values_scale"], ["multipliers"]),
        *_dequantized(),
        helper.make_node("Concat", ["leading", "out_dim"], ["y_shape"], axis=0),
        helper.make_node("Reshape", ["biased", "y_shape"], ["y_biased"], allowzero=1),
        *_float_epilogue("y_biased"),
    ]
    return function_of(DYNAMIC_QUANTIZE_CONDENSED_GEMM, nodes, opset)


def _integer_matrix() -> list[NodeProto]:
    """Build the nodes that give ``integers_t``, int8 ``[in_features, out_features]``."""
    return [
        *scattered_matrix(),
        helper.make_node("Cast", ["weight"], ["integers"], to=TensorProto.INT8),
        helper.make_node("Transpose", ["integers"], ["integers_t"], perm=[1, 0]),
    ]


def _multipliers() -> list[NodeProto]:
    """Build the nodes that give ``multipliers`` ``[out_features]`` or ``[1]``, and ``y_unit``."""
    return [
        constant("no_dims", np.array([], np.int64)),
        helper.make_node("Reshape", ["y_scale", "no_dims"], ["y_unit"]),
        helper.make_node("Mul", ["x_scale", "values_scale"], ["products_scale"]),
        helper.make_node("Div", ["products_scale", "y_unit"], ["multipliers"]),
    ]


def _requantized(value: str) -> list[NodeProto]:
    """Build the nodes that add the residual, clip, round and saturate, all in units of Y."""
    return [
        helper.make_node("Cast", ["residual"], ["residual_real"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["residual_zero_point"], ["residual_zero"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["residual_real", "residual_zero"], ["residual_centered"]),
        helper.make_node("Div", ["residual_scale", "y_unit"], ["residual_multiplier"]),
        helper.make_node("Mul", ["residual_centered", "residual_multiplier"], ["to_add"]),
        helper.make_node("Add", [value, "to_add"], ["sum"]),
        attribute_value("clip_low", "clip_min", AttributeProto.FLOAT),
        attribute_value("clip_high", "clip_max", AttributeProto.FLOAT),
        helper.make_node("Div", ["clip_low", "y_unit"], ["low_units"]),
        helper.make_node("Div", ["clip_high", "y_unit"], ["high_units"]),
        # Past these bounds Y is saturated, and QuantizeLinear of a runtime that converts to int32
        # before it saturates stays right.
        constant("lowest", np.array(-1024, np.float32)),
        constant("highest", np.array(1024, np.float32)),
        helper.make_node("Clip", ["low_units", "lowest", "highest"], ["low"]),
        helper.make_node("Clip", ["high_units", "lowest", "highest"], ["high"]),
        helper.make_node("Clip", ["sum", "low", "high"], ["clipped"]),
        constant("unit", np.array(1, np.float32)),
        helper.make_node("Reshape", ["y_zero_point", "no_dims"], ["y_zero"]),
        helper.make_node("QuantizeLinear", ["clipped", "unit", "y_zero"], [OUTPUT]),
    ]


def _dequantized() -> list[NodeProto]:
    """Build the nodes that scale ``total`` by ``multipliers`` and add the bias: ``biased``."""
    return [
        helper.make_node("Cast", ["total"], ["real_total"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["real_total", "multipliers"], ["real"]),
        helper.make_node("Add", ["real", "bias"], ["biased"]),
    ]


def _float_epilogue(value: str) -> list[NodeProto]:
    return [
        attribute_value("low", "clip_min", AttributeProto.FLOAT),
        attribute_value("high", "clip_max", AttributeProto.FLOAT),
        helper.make_node("Add", [value, "residual"], ["sum"]),
        helper.make_node("Clip", ["sum", "low", "high"], [OUTPUT]),
    ]


def _as_unsigned(image: str, zero_point: str) -> list[NodeProto]:
    """Build the nodes that add 128 to an int8 X and its zero point, and leave a uint8 X as it is.

    ONNX defines the cast of 128 to int8 as -128, which tells the two types apart.
    """

    def shifted(name: str, output: str) -> list[NodeProto]:
        return [
            helper.make_node("Cast", [name], [f"{output}_wide"], to=TensorProto.INT32),
            helper.make_node("Add", [f"{output}_wide", "offset"], [f"{output}_shifted"]),
            helper.make_node("Cast", [f"{output}_shifted"], [output], to=TensorProto.UINT8),
        ]

    return [
        constant("half_range", np.array(128, np.int32)),
        constant("two", np.array(2, np.int32)),
        helper.make_node("CastLike", ["half_range", "x_zero_point"], ["in_type_of_x"]),
        helper.make_node("Cast", ["in_type_of_x"], ["probe"], to=TensorProto.INT32),
        helper.make_node("Sub", ["half_range", "probe"], ["twice_offset"]),
        helper.make_node("Div", ["twice_offset", "two"], ["offset"]),
        *shifted(image, "x_unsigned"),
        *shifted(zero_point, "zero_point_unsigned"),
    ]


def _channels_to_front() -> list[NodeProto]:
    """Build the nodes that give ``x_front`` ``[N, C, ...]``, whatever channels_last is.

    A transposition of the two last axes of [N, pixels, C] moves the channels; where they are in
    front already, it is one of [N, 1, everything], which moves nothing.
    """
    return [
        attribute_value("last_number", "channels_last", AttributeProto.INT),
        helper.make_node("Cast", ["last_number"], ["last"], to=TensorProto.BOOL),
        constant("first_axis", np.array([1], np.int64)),
        constant("second_axis", np.array([2], np.int64)),
        constant("last_axis", np.array([-1], np.int64)),
        constant("past_axes", np.array([9], np.int64)),
        helper.make_node("Where", ["last", "first_axis", "second_axis"], ["space_begin"]),
        helper.make_node("Where", ["last", "last_axis", "past_axes"], ["space_end"]),
        helper.make_node("Reshape", ["in_scalar", "one_dim"], ["x_channels"]),
        helper.make_node("Shape", ["X"], ["x_shape"]),
        helper.make_node("Shape", ["X"], ["images"], start=0, end=1),
        helper.make_node("Slice", ["x_shape", "space_begin", "space_end"], ["space"]),
        helper.make_node("ReduceProd", ["space"], ["pixels"], keepdims=1),
        *_turned("X", "pixels", "x_channels", "x_turned"),
        helper.make_node("Concat", ["images", "x_channels", "space"], ["front_shape"], axis=0),
        helper.make_node("Reshape", ["x_turned", "front_shape"], ["x_front"], allowzero=1),
    ]


def _channels_to_back() -> list[NodeProto]:
    """Build the nodes that give ``units_front`` the layout of Y: ``units``."""
    return [
        helper.make_node("Shape", ["units_front"], ["y_front_shape"]),
        helper.make_node("Shape", ["units_front"], ["y_space"], start=2),
        helper.make_node("ReduceProd", ["y_space"], ["y_pixels"], keepdims=1),
        *_turned("units_front", "out_dim", "y_pixels", "y_turned"),
        helper.make_node("Concat", ["images", "y_space", "out_dim"], ["y_back_shape"], axis=0),
        helper.make_node("Where", ["last", "y_back_shape", "y_front_shape"], ["y_shape"]),
        helper.make_node("Reshape", ["y_turned", "y_shape"], ["units"], allowzero=1),
    ]


def _turned(value: str, rows: str, columns: str, output: str) -> list[NodeProto]:
    """Build the nodes that transpose [N, rows, columns], or [N, 1, all] if channels are first."""
    return [
        helper.make_node("Mul", [rows, columns], [f"{output}_size"]),
        helper.make_node("Where", ["last", rows, "first_axis"], [f"{output}_rows"]),
        helper.make_node("Where", ["last", columns, f"{output}_size"], [f"{output}_columns"]),
        helper.make_node(
            "Concat",
            ["images", f"{output}_rows", f"{output}_columns"],
            [f"{output}_shape"],
            axis=0,
        ),
        helper.make_node("Reshape", [value, f"{output}_shape"], [f"{output}_flat"], allowzero=1),
        helper.make_node("Transpose", [f"{output}_flat"], [output], perm=[0, 2, 1]),
    ]


def _quantized_groups(opset: int) -> list[NodeProto]:
    """Build the nodes that quantize X in groups of one scale: its rows, or all of X.

    They give ``x_rows`` uint8 ``[rows, in_features]``, and ``scales`` and ``zero_points`` (int32)
    ``[groups, 1]``.
    """

    def extreme(op_type: str, output: str) -> list[NodeProto]:
        if opset < 18:
            return [helper.make_node(op_type, ["with_zero"], [output], axes=[1], keepdims=1)]
        return [helper.make_node(op_type, ["with_zero", "columns_axis"], [output], keepdims=1)]

    return [
        attribute_value("per_row_number", "per_row", AttributeProto.INT),
        helper.make_node("Cast", ["per_row_number"], ["by_rows"], to=TensorProto.BOOL),
        constant("single", np.array([1], np.int64)),
        constant("columns_axis", np.array([1], np.int64)),
        helper.make_node("Shape", ["X"], ["leading"], start=0, end=-1),
        # A 1 before them, since X may have no leading dimensions.
        helper.make_node("Concat", ["single", "leading"], ["factors"], axis=0),
        helper.make_node("ReduceProd", ["factors"], ["row_count"], keepdims=1),
        helper.make_node("Mul", ["row_count", "in_dim"], ["size"]),
        helper.make_node("Where", ["by_rows", "row_count", "single"], ["group_count"]),
        helper.make_node("Where", ["by_rows", "in_dim", "size"], ["group_size"]),
        helper.make_node("Concat", ["group_count", "group_size"], ["groups_shape"], axis=0),
        helper.make_node("Reshape", ["X", "groups_shape"], ["groups"], allowzero=1),
        # A column of zeros: 0 is in every group's range, and no group is empty.
        helper.make_node("Concat", ["group_count", "single"], ["column_shape"], axis=0),
        helper.make_node("Expand", ["zero", "column_shape"], ["zero_column"]),
        helper.make_node("Concat", ["groups", "zero_column"], ["with_zero"], axis=1),
        *extreme("ReduceMin", "smallest"),
        *extreme("ReduceMax", "largest"),
        constant("steps", np.array(255, np.float32)),
        constant("one", np.array(1, np.float32)),
        helper.make_node("Sub", ["largest", "smallest"], ["range"]),
        helper.make_node("Div", ["range", "steps"], ["step"]),
        helper.make_node("Equal", ["step", "zero"], ["flat"]),
        helper.make_node("Where", ["flat", "one", "step"], ["scales"]),
        helper.make_node("Neg", ["smallest"], ["below"]),
        helper.make_node("Div", ["below", "scales"], ["below_units"]),
        helper.make_node("Round", ["below_units"], ["rounded_zero"]),
        helper.make_node("Clip", ["rounded_zero", "zero", "steps"], ["real_zero"]),
        helper.make_node("Div", ["groups", "scales"], ["x_units"]),
        helper.make_node("Round", ["x_units"], ["x_rounded"]),
        helper.make_node("Add", ["x_rounded", "real_zero"], ["x_shifted"]),
        helper.make_node("Clip", ["x_shifted", "zero", "steps"], ["x_saturated"]),
        helper.make_node("Cast", ["x_saturated"], ["x_quantized"], to=TensorProto.UINT8),
        helper.make_node("Concat", ["row_count", "in_dim"], ["rows_shape"], axis=0),
        helper.make_node("Reshape", ["x_quantized", "rows_shape"], ["x_rows"], allowzero=1),
        helper.make_node("Cast", ["real_zero"], ["zero_points"], to=TensorProto.INT32),
    ]


def _row_sums() -> list[NodeProto]:
    """Build the nodes that give ``row_sums``, int32 ``[out_features]``, of the weight."""
    return [
        helper.make_node("Cast", ["integers"], ["integers_wide"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["integers_wide", "columns_axis"], ["row_sums"], keepdims=0),
    ]
