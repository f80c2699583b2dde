"""Layers that compute in bfloat16: the option, the change of a model, and what the report says."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import onnx_ir as ir

from .passes.attach_functions import AttachFunctionsPass
from .passes.compute_bfloat16 import ComputeBfloat16Pass
from .report import LayerReport

COMPUTE_TYPES = ("float32", "bfloat16")
"""What the products of linear layers can be computed in; sums are float32."""

BFLOAT16_TOLERANCE = 4e-2
"""Largest difference from float32, as a share of the largest output, of a model that computes in
bfloat16: ten times the most that rounding changes a number by."""


def values_for(
    compute: str, values_dtype: str, precision: str, *, portable: bool, device: str
) -> str:
    """Return the type that values are rounded to, which computing in bfloat16 implies.

    Raises:
        ValueError: another ``compute``, or one that contradicts the other options.

    """
    if compute not in COMPUTE_TYPES:
        raise ValueError(f"compute is {compute!r}, it must be {' or '.join(COMPUTE_TYPES)}")
    if compute == "float32":
        return values_dtype
    if values_dtype == "float16":
        raise ValueError(
            "compute bfloat16 rounds values to bfloat16, values_dtype is 'float16'; leave one out"
        )
    if precision != "float32":
        raise ValueError(
            f"compute bfloat16 is for graphs of float32, precision is {precision!r}; leave one out"
        )
    if portable:
        raise ValueError(
            "compute bfloat16 is done by CondensedGemm, and a portable file has none; leave one out"
        )
    if device != "cpu":
        raise ValueError(
            f"compute bfloat16 is for CPUs, device is {device!r}; leave one out, or take precision "
            "bfloat16"
        )
    return compute


def compute_in_bfloat16(model: ir.Model) -> None:
    """Let a lowered model with rounded values compute in bfloat16, in place."""
    ComputeBfloat16Pass()(model)
    AttachFunctionsPass()(model)


def with_compute(layers: Iterable[LayerReport], nodes: Collection[str]) -> tuple[LayerReport, ...]:
    """Say which layers compute in bfloat16, given the nodes that do."""
    return tuple(
        replace(layer, compute="bfloat16")
        if layer.nodes and all(node in nodes for node in layer.nodes)
        else layer
        for layer in layers
    )


def compute_notes(layers: Iterable[LayerReport]) -> tuple[str, ...]:
    """Say which condensed layers do not compute in bfloat16 though that was asked for."""
    condensed = [layer for layer in layers if layer.decision == "condensed"]
    exact = [layer.name for layer in condensed if layer.compute != "bfloat16"]
    if len(exact) == len(condensed):
        return ("no layer computes in bfloat16: no linear layer is condensed with rounded values",)
    if not exact:
        return ()
    return (
        "these condensed layers compute in float32, being convolutions or of values that are not "
        f"bfloat16: {', '.join(exact)}",
    )
