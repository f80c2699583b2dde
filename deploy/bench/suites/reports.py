"""Reports of results by their kind, and reading and writing both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..report.document import Document
from ..report.files import write_report
from ..results.case import Case
from ..results.result import Result, read_result
from .cases_report import cases_document
from .crossover import CrossoverPoint
from .crossover_report import crossover_document
from .cuda import cuda_document
from .decoder import DecoderCase
from .decoder_report import decoder_document
from .kernels import KernelCase
from .kernels_report import kernels_document
from .memory import EngineMemory, memory_document
from .scaling_report import scaling_document
from .server import ServerCase, server_document
from .serving import ServingRow
from .serving_report import serving_document

_KINDS: dict[str, tuple[type, Callable[[Result[Any]], Document]]] = {
    "layer": (Case, cases_document),
    "model": (Case, cases_document),
    "scaling": (Case, scaling_document),
    "kernels": (KernelCase, kernels_document),
    "cuda": (Case, cuda_document),
    "crossover": (CrossoverPoint, crossover_document),
    "decoder": (DecoderCase, decoder_document),
    "memory": (EngineMemory, memory_document),
    "server": (ServerCase, server_document),
    "serving": (ServingRow, serving_document),
}
"""Type of the cases of each kind, and its report."""


def report_of(result: Result[Any]) -> Document:
    """Return the report of a result; raises ResultFileError when its timing is missing."""
    return _KINDS[result.kind][1](result)


def load_result(path: str | Path) -> Result[Any]:
    """Read a ``results.json``, or that of a folder.

    Raises:
        ResultFileError: the file is damaged, or not a result that has a report.
        OSError: it cannot be read.

    """
    file = Path(path)
    file = file / "results.json" if file.is_dir() else file
    return read_result(file, {kind: cases for kind, (cases, _) in _KINDS.items()})


def save_result(result: Result[Any], folder: str | Path, *, raw: bool = False) -> list[Path]:
    """Write a result and its report; see write_report."""
    return write_report(result, report_of(result), folder, raw=raw)
