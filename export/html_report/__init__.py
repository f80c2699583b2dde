"""One self-contained HTML page about the layers of a model: no script, nothing loaded from afar."""

from __future__ import annotations

from .facts import Measured
from .gather import (
    Asked,
    DenseFile,
    describe_export,
    describe_file,
    describe_inspection,
    describe_plan,
)
from .page import write_page

__all__ = [
    "Asked",
    "DenseFile",
    "Measured",
    "describe_export",
    "describe_file",
    "describe_inspection",
    "describe_plan",
    "write_page",
]
