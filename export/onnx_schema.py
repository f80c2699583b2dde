"""Schemas of the operators of ``ai.fanin`` for onnx, made from their contract."""

from __future__ import annotations

import atexit
from collections.abc import Mapping

from onnx import defs, helper

from ..ort_ops.contract import (
    ATTRIBUTES_CONV,
    ATTRIBUTES_GEMM,
    CONDENSED_CONV,
    CONDENSED_GEMM,
    DOMAIN,
    DOMAIN_VERSION,
    INPUTS_CONV,
    INPUTS_GEMM,
    INTEGER_LISTS,
    OUTPUT,
    TYPES,
)
from .onnx_inference import infer_conv, infer_gemm


def register_schemas() -> None:
    """Make our operators known to onnx: checker, shape inference, and tools built on them.

    Without it onnx takes the function in the file, which gives the same shapes but cannot refuse
    a wrong number of inputs. Registering twice does nothing.
    """
    for name, build in (
        (CONDENSED_GEMM, condensed_gemm_schema),
        (CONDENSED_CONV, condensed_conv_schema),
    ):
        if defs.has(name, domain=DOMAIN):
            continue
        defs.register_schema(build())
        # The registry outlives the interpreter, the Python function in the schema does not:
        # without this a process with onnx 1.19 hangs when it ends.
        atexit.register(defs.deregister_schema, name, DOMAIN_VERSION, DOMAIN)


def condensed_gemm_schema() -> defs.OpSchema:
    """Build a schema of ``CondensedGemm`` with its type-and-shape inference."""
    schema = _schema(
        CONDENSED_GEMM,
        INPUTS_GEMM,
        ATTRIBUTES_GEMM,
        "Y[..., rows[i]] = clip(bias[rows[i]] + residual + "
        "sum_j values[i, j] * X[..., indices[i, j]]); rows not listed are clip(bias + residual).",
    )
    schema.set_type_and_shape_inference_function(infer_gemm)
    return schema


def condensed_conv_schema() -> defs.OpSchema:
    """Build a schema of ``CondensedConv`` with its type-and-shape inference."""
    schema = _schema(
        CONDENSED_CONV,
        INPUTS_CONV,
        ATTRIBUTES_CONV,
        "Y[n, rows[i], p] = gate(clip(bias[rows[i]] + residual + sum_j values[i, j] * "
        "window[indices[i, j]])), where gate(v) = v * min(max(gate_scale * v + gate_shift, 0), 1) "
        "and window is that of output pixel p over the channels of the "
        "row's group, flattened from [in_channels / group, *kernel_shape]; rows not listed are "
        "gate(clip(bias + residual)).",
    )
    schema.set_type_and_shape_inference_function(infer_conv)
    return schema


def _schema(
    name: str, inputs: Mapping[str, str], attributes: Mapping[str, float | None], doc: str
) -> defs.OpSchema:
    return defs.OpSchema(
        name,
        DOMAIN,
        DOMAIN_VERSION,
        doc=doc,
        inputs=[defs.OpSchema.FormalParameter(*item) for item in inputs.items()],
        outputs=[defs.OpSchema.FormalParameter(OUTPUT, "T")],
        type_constraints=[(name, list(types), "") for name, types in TYPES.items()],
        attributes=[_schema_attribute(*item) for item in attributes.items()],
    )


def _schema_attribute(name: str, default: float | None) -> defs.OpSchema.Attribute:
    kinds = defs.OpSchema.AttrType
    if default is None:
        kind = kinds.INTS if name in INTEGER_LISTS else kinds.INT
        return defs.OpSchema.Attribute(name, kind, "", required=True)
    return defs.OpSchema.Attribute(name, helper.make_attribute(name, default), "")
