"""The HTML pages of fanin inspect and fanin export."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .._base.atomic import output_path
from .common import readable, requires, say

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..export import ExportReport, Inspection, LayerReport
    from ..export.html_report import Asked, Measured


def require_page(
    page: Path | None, option: str, source: Path, *written: Path, measure: bool
) -> None:
    """Refuse a page that cannot be written, or would replace a model, before the work is done."""
    if page is None:
        if measure:
            raise typer.BadParameter(f"it goes with {option}", param_hint="--measure")
        return
    if measure:
        requires("bench", "onnxruntime")
    with readable(OSError):
        target = output_path(page).resolve()
    if any(target == model.resolve() for model in (source, *written)):
        raise typer.BadParameter(f"{page} is the model; name another file", param_hint=option)
    if target in _weights_of(source):
        message = f"{page} holds weights of {source}; name another file"
        raise typer.BadParameter(message, param_hint=option)


def _weights_of(source: Path) -> frozenset[Path]:
    """List the data files of a model; none of what is no model: it is refused later."""
    if not os.path.isfile(source):
        return frozenset()
    requires("export", "onnx", "onnx_ir")
    from ..export import ExportError
    from ..export.onnx_source import data_files

    try:
        return data_files(source)
    except (ExportError, OSError, ValueError):
        return frozenset()


def write_export_page(
    path: Path, report: ExportReport, source: Path, options: dict[str, Any], *, measure: bool
) -> None:
    """Write the page about an export that was asked for with ``options``."""
    from ..export import ExportError
    from ..export.html_report import Asked, DenseFile, describe_export, write_page

    asked = Asked.of(options)
    baseline = report.dense_path or (source if os.path.isfile(source) else None)
    own = dense = None
    if measure:
        own = _measure(Path(report.path), asked, library=True)
    if measure and baseline is not None:
        file = Path(baseline)
        dense = DenseFile(file, _measure(file, asked, library=False))
    with readable(ExportError, OSError):
        write_page(describe_export(report, source, asked, dense=dense, measured=own), path)
    typer.echo(f"Wrote {path}", err=True)


def write_inspection_page(
    path: Path,
    inspection: Inspection,
    plan: Sequence[LayerReport],
    model: ir.Model,
    options: dict[str, Any],
    *,
    measure: bool,
) -> None:
    """Write the page about a file, or about what an export would make of it."""
    from ..export import ExportError
    from ..export.html_report import Asked, describe_inspection, describe_plan, write_page

    asked, ours = Asked.of(options), bool(inspection.layers)
    measured = _measure(Path(inspection.path), asked, library=ours) if measure else None
    with readable(ExportError, OSError):
        if ours:
            page = describe_inspection(inspection, plan, asked, measured)
        else:
            page = describe_plan(inspection, plan, model, asked, measured)
        write_page(page, path)
    typer.echo(f"Wrote {path}", err=True)


def _measure(model: Path, asked: Asked, *, library: bool) -> Measured:
    from ..deploy import SessionError
    from ..deploy.bench.suites.node_times import measure_nodes

    say(f"measuring {model}", 0)
    with readable(SessionError, OSError):
        return measure_nodes(model, asked.batch, asked.threads, library=library, dims=asked.dims)
