"""The operators of domain ``ai.fanin``: names, inputs, attributes, and their schemas for onnx.

The contract in prose stands in docs/formats.md. The kernels of ``fanin.ort_ops`` hold their own
copy of it in C++; a file that both accept is a file of version 1.
"""

from __future__ import annotations

import atexit
import math

import onnx
from onnx import defs, helper
from onnx.shape_inference import InferenceError

DOMAIN = "ai.fanin"
DOMAIN_VERSION = 1
CONDENSED_GEMM = "CondensedGemm"
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

ATTRIBUTES_GEMM: dict[str, float | None] = {
    "in_features": None,
    "out_features": None,
    "clip_min": -math.inf,
    "clip_max": math.inf,
}
"""Attributes with their defaults; None means required (and an integer)."""

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
    if defs.has(CONDENSED_GEMM, domain=DOMAIN):
        return
    defs.register_schema(condensed_gemm_schema())
    # The registry outlives the interpreter, the Python function in the schema does not: without
    # this a process with onnx 1.19 hangs when it ends.
    atexit.register(defs.deregister_schema, CONDENSED_GEMM, DOMAIN_VERSION, DOMAIN)


def condensed_gemm_schema() -> defs.OpSchema:
    """Build a schema of ``CondensedGemm`` with its type-and-shape inference."""
    schema = defs.OpSchema(
        CONDENSED_GEMM,
        DOMAIN,
        DOMAIN_VERSION,
        doc="Y[..., rows[i]] = clip(bias[rows[i]] + residual + "
        "sum_j values[i, j] * X[..., indices[i, j]]); rows not listed are clip(bias + residual).",
        inputs=[defs.OpSchema.FormalParameter(name, kind) for name, kind in INPUTS_GEMM.items()],
        outputs=[defs.OpSchema.FormalParameter(OUTPUT, "T")],
        type_constraints=[(name, types, "") for name, types in _TYPES.items()],
        attributes=[_schema_attribute(*item) for item in ATTRIBUTES_GEMM.items()],
    )
    schema.set_type_and_shape_inference_function(_infer_gemm)
    return schema


def _schema_attribute(name: str, default: float | None) -> defs.OpSchema.Attribute:
    if default is None:
        return defs.OpSchema.Attribute(name, defs.OpSchema.AttrType.INT, "", required=True)
    return defs.OpSchema.Attribute(name, helper.make_attribute(name, default), "")


def _infer_gemm(ctx: onnx.shape_inference.InferenceContext) -> None:
    """Give Y the type of X and its shape with out_features as the last dimension."""
    x = ctx.get_input_type(0)
    if not x.HasField("tensor_type"):
        return
    in_features = ctx.get_attribute("in_features").i
    out_features = ctx.get_attribute("out_features").i
    dims = _dims(x)
    if dims is not None and (not dims or dims[-1] not in (None, in_features)):
        last = dims[-1] if dims else "missing"
        raise _refusal(ctx, f"the last dimension of X is {last}, in_features is {in_features}")
    values, indices = _dims(ctx.get_input_type(1)), _dims(ctx.get_input_type(2))
    bias, rows = _dims(ctx.get_input_type(3)), _dims(ctx.get_input_type(4))
    if _conflict(values, (None, None)):
        raise _refusal(ctx, f"values has the shape {values}, it must be [active, fan_in]")
    if values is not None and _conflict(indices, values):
        raise _refusal(ctx, f"indices has the shape {indices}, values has {values}")
    if _conflict(bias, (out_features,)):
        raise _refusal(ctx, f"bias has the shape {bias}, it must be [{out_features}]")
    if _conflict(rows, (values[0] if values is not None else None,)):
        raise _refusal(ctx, f"rows has the shape {rows}, values has {values}")

    y = onnx.TypeProto()
    y.tensor_type.elem_type = x.tensor_type.elem_type
    if dims is not None:
        shape = y.tensor_type.shape
        for dim in x.tensor_type.shape.dim[:-1]:
            shape.dim.add().CopyFrom(dim)
        shape.dim.add().dim_value = out_features
    ctx.set_output_type(0, y)


def _dims(kind: onnx.TypeProto) -> list[int | None] | None:
    """Read the dimensions, None where unknown; None when not even the rank is known."""
    if not kind.tensor_type.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim]


def _conflict(dims: list[int | None] | None, wanted: tuple[int | None, ...] | list) -> bool:
    if dims is None:
        return False
    if len(dims) != len(wanted):
        return True
    return any(None not in (d, w) and d != w for d, w in zip(dims, wanted, strict=True))


def _refusal(ctx: onnx.shape_inference.InferenceContext, why: str) -> InferenceError:
    return InferenceError(f"{ctx.get_display_name()}: {why}")
