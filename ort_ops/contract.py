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
OPS = (CONDENSED_CONV, CONDENSED_GEMM)
OUTPUT = "Y"

TYPES = {
    "T": ("tensor(float)", "tensor(float16)", "tensor(bfloat16)"),
    "TV": ("tensor(float)", "tensor(float16)", "tensor(bfloat16)"),
    "TI": ("tensor(uint16)", "tensor(int32)"),
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

ATTRIBUTES: Mapping[str, Mapping[str, float | None]] = {
    CONDENSED_GEMM: ATTRIBUTES_GEMM,
    CONDENSED_CONV: ATTRIBUTES_CONV,
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
