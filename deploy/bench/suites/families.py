"""The best engine of each kind in a case: what figures draw a bar for."""

from __future__ import annotations

from ..results.case import Case, EngineResult
from .layer_engines import FAMILIES, engine_option

KINDS = {
    "ONNX Runtime dense": ("dense",),
    "structured": ("structured",),
    "OpenVINO": FAMILIES["OpenVINO"],
    "torch dense": ("torch", "torch-compile"),
    "CSR": FAMILIES["CSR"],
    "paper's condensed form": ("torch-gather",),
    "DeepSparse": FAMILIES["DeepSparse"],
    "fanin": ("condensed",),
}
"""Names of kinds, and the options of the engines that belong to each."""


def best_of(case: Case, kind: str) -> EngineResult | None:
    """Return the kind's engine of the least median run time; None when none counts."""
    options = KINDS[kind]
    found = [
        one for one in case.engines if one.excluded is None and engine_option(one.name) in options
    ]
    return min(found, key=lambda one: one.run.median, default=None)
