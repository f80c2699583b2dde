"""The operators of domain ``ai.fanin``: names, inputs, attributes, and their schemas for onnx.

The contract in prose stands in docs/formats.md. The kernels of ``fanin.ort_ops`` hold their own
copy of it in C++; a file that both accept is a file of version 1.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Mapping

from onnx import defs, helper

from .onnx_inference import infer_conv, infer_gemm

DOMAIN = "ai.fanin"
DOMAIN_VERSION = 1
CONDENSED_GEMM = "CondensedGemm"
CONDENSED_CONV = "CondensedConv"
OUTPUT = "Y"

INPUTS_GEMM = {
    "X": "T",
    "values": "TV",
    "indices": "TI",
    "bias": "tensor(float)",
    "rows": "tensor(int32)",
    "residual": "T",
}
"""Inputs in order with their types; all six are always present."""

INPUTS_CONV = INPUTS_GEMM
"""The inputs of ``CondensedConv`` have the same names and types in the same order."""

ATTRIBUTES_GEMM: dict[str, float | None] = {
    "in_features": None,
    "out_features": None,
    "clip_min": -math.inf,
    "clip_max": math.inf,
}
"""Attributes with their defaults; None means required (and an integer)."""

ATTRIBUTES_CONV: dict[str, float | None] = {
    "kernel_shape": None,
    "strides": None,
    "pads": None,
    "dilations": None,
    "group": None,
    "in_channels": None,
    "out_channels": None,
    "clip_min": -math.inf,
    "clip_max": math.inf,
    "gate_scale": 0.0,
    "gate_shift": 1.0,
}
"""Attributes with their defaults; None means required (and an integer, or several of them)."""

OPEN_GATE = (0.0, 1.0)
"""gate_scale and gate_shift that let everything pass."""

HARD_SWISH = (1 / 6, 0.5)
"""gate_scale and gate_shift of HardSwish, v * min(max(v / 6 + 1 / 2, 0), 1)."""

INTEGER_LISTS = ("kernel_shape", "strides", "pads", "dilations")
"""Attributes that hold one number, for pads two, for each spatial axis."""

_TYPES = {
    "T": ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"],
    "TV": ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"],
    "TI": ["tensor(uint16)", "tensor(int32)"],
}


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
        type_constraints=[(name, types, "") for name, types in _TYPES.items()],
        attributes=[_schema_attribute(*item) for item in attributes.items()],
    )


def _schema_attribute(name: str, default: float | None) -> defs.OpSchema.Attribute:
    kinds = defs.OpSchema.AttrType
    if default is None:
        kind = kinds.INTS if name in INTEGER_LISTS else kinds.INT
        return defs.OpSchema.Attribute(name, kind, "", required=True)
    return defs.OpSchema.Attribute(name, helper.make_attribute(name, default), "")
