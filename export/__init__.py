"""From trained sparse networks to ONNX files with condensed layers.

Names load what they need on first use: the condensed format needs NumPy alone, the op and its
models need onnx, and only :func:`export` needs torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..ort_ops.format.condensed import CondensedWeight
    from ..ort_ops.format.files import load_condensed, save_condensed
    from .errors import ExportError
    from .onnx_convert import convert, plan_conversion
    from .onnx_inspect import Inspection, inspect
    from .onnx_op import register_schemas
    from .onnx_prune import prune
    from .prune_report import PrunedLayer, PruneReport
    from .quantizing.quantize import quantize
    from .quantizing.report import QuantizationReport
    from .report import ExportReport, LayerReport, ParityCheck
    from .torch_export import export

_HOMES = {
    "CondensedWeight": ".ort_ops.format.condensed",
    "ExportError": "errors",
    "ExportReport": "report",
    "LayerReport": "report",
    "ParityCheck": "report",
    "Inspection": "onnx_inspect",
    "convert": "onnx_convert",
    "export": "torch_export",
    "inspect": "onnx_inspect",
    "load_condensed": ".ort_ops.format.files",
    "plan_conversion": "onnx_convert",
    "PruneReport": "prune_report",
    "PrunedLayer": "prune_report",
    "QuantizationReport": "quantizing.report",
    "prune": "onnx_prune",
    "quantize": "quantizing.quantize",
    "register_schemas": "onnx_op",
    "save_condensed": ".ort_ops.format.files",
}

__all__ = [
    "CondensedWeight",
    "ExportError",
    "ExportReport",
    "Inspection",
    "LayerReport",
    "ParityCheck",
    "PruneReport",
    "PrunedLayer",
    "QuantizationReport",
    "convert",
    "export",
    "inspect",
    "load_condensed",
    "plan_conversion",
    "prune",
    "quantize",
    "register_schemas",
    "save_condensed",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f".{_HOMES[name]}", __name__)
    except ModuleNotFoundError as error:
        extra = "train" if error.name == "torch" else "export"
        raise ModuleNotFoundError(
            f"fanin.export.{name} needs {error.name}; run: pip install 'fanin[{extra}]'",
            name=error.name,
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
