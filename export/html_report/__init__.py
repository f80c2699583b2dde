"""One self-contained HTML page about the layers of a model: no script, nothing loaded from afar."""

from __future__ import annotations

from .gather import Asked, describe_export, describe_file, describe_inspection, describe_plan
from .page import write_page

__all__ = [
    "Asked",
    "describe_export",
    "describe_file",
    "describe_inspection",
    "describe_plan",
    "write_page",
]
