"""Schemas of the operators of ``ai.fanin`` for onnx, made from their contract."""

from __future__ import annotations

import atexit

from onnx import defs, helper

from ..ort_ops.contract import (
    ATTRIBUTES,
    CONDENSED_CONV,
    CONDENSED_GEMM,
    CONDENSED_GEMM_INTEGER_TO_FLOAT,
    DOMAIN,
    DOMAIN_VERSION,
    DYNAMIC_QUANTIZE_CONDENSED_GEMM,
    INPUTS,
    INTEGER_LISTS,
    OPS,
    OUTPUT,
    OUTPUT_TYPES,
    QLINEAR_CONDENSED_CONV,
    QLINEAR_CONDENSED_GEMM,
    TYPES,
)
from .contrib_schemas import register_contrib_schemas
from .onnx_inference import (
    infer_conv,
    infer_dynamic_quantize_gemm,
    infer_gemm,
    infer_gemm_integer_to_float,
    infer_qlinear_conv,
    infer_qlinear_gemm,
)

_FORMULAS = {
    CONDENSED_GEMM: "Y[..., rows[i]] = clip(bias[rows[i]] + residual + "
    "sum_j values[i, j] * X[..., indices[i, j]]), where X is rounded to the type number compute: "
    "1 (float32) or 16 (bfloat16); rows not listed are clip(bias + residual).",
    CONDENSED_CONV: "Y[n, rows[i], p] = gate(clip(bias[rows[i]] + residual + sum_j values[i, j] * "
    "window[indices[i, j]])), where gate(v) = v * min(max(gate_scale * v + gate_shift, 0), 1) "
    "and window is that of output pixel p over the channels of the "
    "row's group, flattened from [in_channels / group, *kernel_shape]; rows not listed are "
    "gate(clip(bias + residual)).",
    QLINEAR_CONDENSED_GEMM: "Y = saturate(round(clip(v)) + y_zero_point) with v = "
    "sum * (x_scale * values_scale / y_scale) + (residual - residual_zero_point) * "
    "(residual_scale / y_scale), where sum[..., rows[i]] = bias[rows[i]] + "
    "sum_j values[i, j] * (X[..., indices[i, j]] - x_zero_point) and the clip is of real values.",
    QLINEAR_CONDENSED_CONV: "As QLinearCondensedGemm, with the sums of CondensedConv over "
    "X - x_zero_point; with channels_last, X, residual and Y have their channels as the last axis.",
    CONDENSED_GEMM_INTEGER_TO_FLOAT: "Y = clip(sum * (x_scale * values_scale) + bias + residual), "
    "where sum[..., rows[i]] = sum_j values[i, j] * (X[..., indices[i, j]] - x_zero_point).",
    DYNAMIC_QUANTIZE_CONDENSED_GEMM: "CondensedGemmIntegerToFloat of X quantized as by "
    "DynamicQuantizeLinear, with per_row each row [..., :] for itself.",
}

_INFERENCES = {
    CONDENSED_GEMM: infer_gemm,
    CONDENSED_CONV: infer_conv,
    QLINEAR_CONDENSED_GEMM: infer_qlinear_gemm,
    QLINEAR_CONDENSED_CONV: infer_qlinear_conv,
    CONDENSED_GEMM_INTEGER_TO_FLOAT: infer_gemm_integer_to_float,
    DYNAMIC_QUANTIZE_CONDENSED_GEMM: infer_dynamic_quantize_gemm,
}


def register_schemas() -> None:
    """Make our operators known to onnx: checker, shape inference, and tools built on them.

    Without it onnx takes the function in the file, which gives the same shapes but cannot refuse
    a wrong number of inputs. Registering twice does nothing.
    """
    register_contrib_schemas()
    for name in OPS:
        if defs.has(name, domain=DOMAIN):
            continue
        defs.register_schema(schema_of(name))
        # The registry outlives the interpreter, the Python function in the schema does not:
        # without this a process with onnx 1.19 hangs when it ends.
        atexit.register(defs.deregister_schema, name, DOMAIN_VERSION, DOMAIN)


def schema_of(op: str) -> defs.OpSchema:
    """Build the schema of one of our ops with its type-and-shape inference."""
    inputs, output = INPUTS[op], OUTPUT_TYPES[op]
    used = {*inputs.values(), output}
    schema = defs.OpSchema(
        op,
        DOMAIN,
        DOMAIN_VERSION,
        doc=_FORMULAS[op],
        inputs=[defs.OpSchema.FormalParameter(*item) for item in inputs.items()],
        outputs=[defs.OpSchema.FormalParameter(OUTPUT, output)],
        type_constraints=[(name, list(types), "") for name, types in TYPES.items() if name in used],
        attributes=[_schema_attribute(*item) for item in ATTRIBUTES[op].items()],
    )
    schema.set_type_and_shape_inference_function(_INFERENCES[op])
    return schema


def _schema_attribute(name: str, default: float | None) -> defs.OpSchema.Attribute:
    kinds = defs.OpSchema.AttrType
    if default is None:
        kind = kinds.INTS if name in INTEGER_LISTS else kinds.INT
        return defs.OpSchema.Attribute(name, kind, "", required=True)
    return defs.OpSchema.Attribute(name, helper.make_attribute(name, default), "")
