"""The operators of the domain ``ai.fanin``: names, inputs, attributes and limits.

docs/op.md describes the same in prose. The C++ library has its own copy in ``csrc/ort``, which the
tests of the op compare with this one. No other part of the product repeats these definitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

DOMAIN = "ai.fanin"
DOMAIN_VERSION = 1
CONDENSED_GEMM = "CondensedGemm"
CONDENSED_CONV = "CondensedConv"
QLINEAR_CONDENSED_GEMM = "QLinearCondensedGemm"
QLINEAR_CONDENSED_CONV = "QLinearCondensedConv"
CONDENSED_GEMM_INTEGER_TO_FLOAT = "CondensedGemmIntegerToFloat"
DYNAMIC_QUANTIZE_CONDENSED_GEMM = "DynamicQuantizeCondensedGemm"
QUANTIZED_OPS = (
    CONDENSED_GEMM_INTEGER_TO_FLOAT,
    DYNAMIC_QUANTIZE_CONDENSED_GEMM,
    QLINEAR_CONDENSED_CONV,
    QLINEAR_CONDENSED_GEMM,
)
"""The ops on 8-bit integers."""

DEVICE_KEY = "fanin.device"
"""Metadata of a file: the device that the forms of its layers were chosen for, "cpu" or "cuda"."""
BATCH_KEY = "fanin.batch"
"""Metadata of a file: the batch that they were chosen for; absent where the file fixes its own."""
PRECISION_KEY = "fanin.precision"
"""Metadata of a file: what the graph computed in that they were chosen for."""
GPU_KEY = "fanin.gpu"
"""Metadata of a file: name of the GPU that they were chosen for."""

OPS = (CONDENSED_CONV, CONDENSED_GEMM, *QUANTIZED_OPS)
OUTPUT = "Y"


def renamed_op(domain: str, name: str) -> str | None:
    """Return the op of ours that another tool has renamed to this; None for any other operator.

    onnx.compose prefixes ("a_CondensedGemm"), and functions can be moved to another domain.
    """
    if domain == DOMAIN and name in OPS:
        return None
    return max((op for op in OPS if name.endswith(op)), key=len, default=None)


TYPES = {
    "T": ("tensor(float)", "tensor(float16)", "tensor(bfloat16)"),
    "TV": ("tensor(float)", "tensor(float16)", "tensor(bfloat16)"),
    "TI": ("tensor(uint16)", "tensor(int32)"),
    "TX": ("tensor(uint8)", "tensor(int8)"),
    "TY": ("tensor(uint8)", "tensor(int8)"),
}
"""Type variables and their types; ``T`` can be bfloat16 on CUDA only."""

INPUTS_GEMM = {
    "X": "T",
    "values": "TV",
    "indices": "TI",
    "bias": "tensor(float)",
    "rows": "tensor(int32)",
    "residual": "T",
}
"""Inputs in order, with their types; all six are always present."""

INPUTS_CONV = INPUTS_GEMM
"""The inputs of ``CondensedConv`` have the same names and types in the same order."""

INPUTS_QLINEAR = {
    "X": "TX",
    "x_scale": "tensor(float)",
    "x_zero_point": "TX",
    "values": "tensor(int8)",
    "values_scale": "tensor(float)",
    "indices": "TI",
    "bias": "tensor(int32)",
    "rows": "tensor(int32)",
    "y_scale": "tensor(float)",
    "y_zero_point": "TY",
    "residual": "TY",
    "residual_scale": "tensor(float)",
    "residual_zero_point": "TY",
}
"""Inputs of both QLinear ops."""

INPUTS: Mapping[str, Mapping[str, str]] = {
    CONDENSED_GEMM: INPUTS_GEMM,
    CONDENSED_CONV: INPUTS_CONV,
    QLINEAR_CONDENSED_GEMM: INPUTS_QLINEAR,
    QLINEAR_CONDENSED_CONV: INPUTS_QLINEAR,
    CONDENSED_GEMM_INTEGER_TO_FLOAT: {
        "X": "TX",
        "x_scale": "tensor(float)",
        "x_zero_point": "TX",
        "values": "tensor(int8)",
        "values_scale": "tensor(float)",
        "indices": "TI",
        "bias": "tensor(float)",
        "rows": "tensor(int32)",
        "residual": "tensor(float)",
    },
    DYNAMIC_QUANTIZE_CONDENSED_GEMM: {
        "X": "tensor(float)",
        "values": "tensor(int8)",
        "values_scale": "tensor(float)",
        "indices": "TI",
        "bias": "tensor(float)",
        "rows": "tensor(int32)",
        "residual": "tensor(float)",
    },
}
"""The inputs of each op in order, with their types, by its name; all are always present."""

OUTPUT_TYPES = {
    CONDENSED_GEMM: "T",
    CONDENSED_CONV: "T",
    QLINEAR_CONDENSED_GEMM: "TY",
    QLINEAR_CONDENSED_CONV: "TY",
    CONDENSED_GEMM_INTEGER_TO_FLOAT: "tensor(float)",
    DYNAMIC_QUANTIZE_CONDENSED_GEMM: "tensor(float)",
}
"""The type of Y of each op, by its name."""

COMPUTE_FLOAT32 = 1
COMPUTE_BFLOAT16 = 16
"""Values of the attribute compute, numbered as types of tensors are in ONNX."""

ATTRIBUTES_GEMM: Mapping[str, float | None] = {
    "in_features": None,
    "out_features": None,
    "clip_min": -math.inf,
    "clip_max": math.inf,
}
"""Attributes with their defaults; None means required (and an integer)."""

ATTRIBUTES_CONV: Mapping[str, float | None] = {
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

_GATE = ("gate_scale", "gate_shift")

ATTRIBUTES: Mapping[str, Mapping[str, float | None]] = {
    CONDENSED_GEMM: {**ATTRIBUTES_GEMM, "compute": COMPUTE_FLOAT32},
    CONDENSED_CONV: ATTRIBUTES_CONV,
    QLINEAR_CONDENSED_GEMM: ATTRIBUTES_GEMM,
    QLINEAR_CONDENSED_CONV: {
        **{name: default for name, default in ATTRIBUTES_CONV.items() if name not in _GATE},
        "channels_last": 0,
    },
    CONDENSED_GEMM_INTEGER_TO_FLOAT: ATTRIBUTES_GEMM,
    DYNAMIC_QUANTIZE_CONDENSED_GEMM: {**ATTRIBUTES_GEMM, "per_row": 0},
}
"""The attributes of each op, by its name."""

INTEGER_LISTS = ("kernel_shape", "strides", "pads", "dilations")
"""Attributes with one number for each spatial axis (two in ``pads``)."""

OPEN_GATE = (0.0, 1.0)
"""gate_scale and gate_shift of a gate that returns its input unchanged."""

HARD_SWISH = (1 / 6, 0.5)
"""gate_scale and gate_shift of HardSwish, v * min(max(v / 6 + 1 / 2, 0), 1)."""

UINT16_COLUMNS = 1 << 16
"""Layers with at most this many input features index them with uint16, wider ones with int32."""

MAX_QUANTIZED_FAN_IN = (1 << 31) // (255 * 128)
"""Most weights of a row of 8-bit integers: no sum of products leaves int32."""

MAX_MULTIPLIER = 2.0**96
"""Upper limit, excluded, of the factors that requantize: no product with a sum overflows."""
