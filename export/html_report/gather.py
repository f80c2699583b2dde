"""Collect what a page says from a file, and from the report of an export."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ..dimensions import Dims
from ..forms import Chooser, Policy
from ..layer_sheet import note_on_padding
from ..onnx_convert import plan_model
from ..onnx_inspect import Inspection, inspect
from ..onnx_reading import read_model
from ..report import SPARSE, ExportReport, LayerReport, note_on_sparsity
from .facts import Layer, Measured, Page
from .times import ProductNode, find_products, measured_seconds

_PACKAGES = ("fanin", "onnxruntime", "onnx", "onnx-ir", "torch")


@dataclass(frozen=True)
class Asked:
    """What an export or an inspection was asked for; see :func:`fanin.export.convert`."""

    policy: Policy = "auto"
    batch: int = 1
    threads: int = 1
    device: str = "cpu"
    precision: str = "float32"
    values_dtype: str = "float32"
    dims: Dims = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Asked:
        """Take what it has of the options of an export."""
        names = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in options.items() if name in names})

    def chooser(self) -> Chooser:
        """Load the costs that times are predicted with."""
        return Chooser.of(
            "auto", self.batch, False, self.threads, self.device, self.precision, self.dims
        )


@dataclass(frozen=True)
class DenseFile:
    """The dense model of an export: its file and its times."""

    path: Path
    measured: Measured


def describe_export(
    report: ExportReport,
    source: str | os.PathLike[str],
    asked: Asked,
    *,
    dense: DenseFile | None = None,
    measured: Measured | None = None,
) -> Page:
    """Describe an export whose file is there.

    Args:
        report: of the export.
        source: what was exported.
        asked: for what.
        dense: the dense model, if it was measured.
        measured: times of the file, if it was.

    Raises:
        ExportError, OSError: the file cannot be read.

    """
    chooser = asked.chooser()
    products = find_products(read_model(Path(report.path)), chooser)
    lead = f"Written from {source}."
    checks = [str(check) for check in report.layer_checks]
    missing = [f"Not checked: {line}" for line in report.not_checked]
    folded = [f"Folded: {line}" for line in report.folded]
    kept = [f"Not folded: {line}" for line in report.unfolded]
    fused = [f"Fused: {line}" for line in report.fused]
    return Page(
        title=Path(report.path).name,
        kind="Export report",
        lead=lead,
        after="exported",
        layers=_with_dense(
            report.layers, _layers(report.layers, products, measured), dense, chooser
        ),
        file_bytes=(report.dense_file_bytes, report.file_bytes),
        error=report.parity_error,
        verification=(*report.parity_lines(), *checks, *missing),
        changes=(*folded, *kept, *fused),
        notes=(*report.notes, *note_on_padding(report.layers)),
        summary=(
            ("Source", os.fspath(source)),
            ("File", report.path),
            *_asked(asked, report.opset),
            *_versions(),
        ),
        conditions=_conditions(asked),
        times=_times(chooser, report.layers),
        runs=(dense.measured.run if dense else None, measured.run if measured else None),
    )


def describe_file(path: str | os.PathLike[str], asked: Asked) -> Page:
    """Describe a file with condensed layers, or what an export would make of one without.

    Raises:
        FileNotFoundError, ExportError, ValueError: as :func:`fanin.export.inspect` does.

    """
    inspection = inspect(path)
    plan, model = plan_model(
        path,
        batch=asked.batch,
        threads=asked.threads,
        device=asked.device,
        dims=asked.dims,
    )
    if inspection.layers:
        return describe_inspection(inspection, plan, asked)
    return describe_plan(inspection, plan, model, asked)


def describe_plan(
    inspection: Inspection,
    plan: Sequence[LayerReport],
    model: ir.Model,
    asked: Asked,
    measured: Measured | None = None,
) -> Page:
    """Describe what an export would make of a file without condensed layers.

    Args:
        inspection: of the file.
        plan: from :func:`fanin.export.onnx_convert.plan_model`.
        model: the same.
        asked: for what it was planned.
        measured: times of the file, if it was measured.

    """
    chooser = asked.chooser()
    path = Path(inspection.path)
    dense = None if measured is None else DenseFile(path, measured)
    return Page(
        title=Path(inspection.path).name,
        kind="Planned export",
        lead="What fanin export would make of this file; nothing was written.",
        after="planned",
        layers=_with_dense(plan, _layers(plan, find_products(model, chooser)), dense, chooser),
        file_bytes=None,
        error=None,
        verification=(),
        changes=(),
        notes=(
            *filter(None, (inspection.altered,)),
            *note_on_sparsity(plan, None, SPARSE),
            *note_on_padding(plan),
        ),
        summary=(("File", inspection.path), *_asked(asked, inspection.opset), *_versions()),
        conditions=_conditions(asked),
        times=_times(chooser, plan),
        runs=(measured.run if measured else None, None),
    )


def describe_inspection(
    inspection: Inspection,
    plan: Iterable[LayerReport],
    asked: Asked,
    measured: Measured | None = None,
) -> Page:
    """Describe a file with condensed layers.

    Args:
        inspection: of the file.
        plan: what an export would make of the layers that it has beside them.
        asked: for what times are predicted.
        measured: times of the file, if it was measured.

    Raises:
        ExportError, OSError: the file cannot be read.

    """
    chooser = asked.chooser()
    left = [layer if layer.decision == "dense" else _still_dense(layer) for layer in plan]
    layers = (*inspection.layers, *left)
    without = "runs" if inspection.runs_without_library else "does not run"
    count = len(inspection.layers)
    products = find_products(read_model(Path(inspection.path)), chooser)
    return Page(
        title=Path(inspection.path).name,
        kind="Inspection",
        lead=f"A file with {count} condensed node{'s' * (count != 1)}; it {without} without "
        "fanin’s library.",
        after="in the file",
        layers=tuple(_layers(layers, products, measured)),
        file_bytes=None,
        error=None,
        verification=(),
        changes=(),
        notes=tuple(filter(None, (inspection.altered,))),
        summary=(("File", inspection.path), *_asked(asked, inspection.opset), *_versions()),
        conditions=_conditions(asked),
        times=_times(chooser, layers),
        runs=(None, measured.run if measured else None),
    )


def _still_dense(layer: LayerReport) -> LayerReport:
    """Describe a dense layer of a file that holds condensed ones, which an export would change."""
    reason = f"dense in this file; an export would make it {layer.decision} ({layer.reason})"
    return replace(
        layer, decision="dense", reason=reason, bytes_condensed=None, nodes=(), padding=0
    )


def _layers(
    reports: Sequence[LayerReport],
    products: Sequence[ProductNode],
    measured: Measured | None = None,
) -> Iterator[Layer]:
    by_label = {product.label: product for product in products}
    by_constant = _by_constant(products, {report.name for report in reports})
    for report in reports:
        nodes = [by_label[name] for name in report.nodes if name in by_label]
        nodes = nodes or by_constant.get(report.name, [])
        if not nodes and report.node in by_label:
            nodes = [by_label[report.node]]
        yield _layer(report, nodes, measured)


def _by_constant(
    products: Iterable[ProductNode], known: Container[str]
) -> dict[str, list[ProductNode]]:
    found: dict[str, list[ProductNode]] = {}
    for product in products:
        for name in product.constants:
            found.setdefault(name if name in known else _MADE_OF.sub("", name), []).append(product)
    return found


def _with_dense(
    reports: Sequence[LayerReport],
    layers: Iterable[Layer],
    dense: DenseFile | None,
    chooser: Chooser,
) -> tuple[Layer, ...]:
    """Add measured times of the dense model, whose weights have the names of the layers."""
    if dense is None:
        return tuple(layers)
    products = find_products(read_model(dense.path), chooser)
    by_constant = _by_constant(products, {report.name for report in reports})
    return tuple(
        replace(
            layer,
            measured_dense=_sum(
                measured_seconds(product, dense.measured)
                for product in by_constant.get(report.name, [])
            ),
        )
        for report, layer in zip(reports, layers, strict=True)
    )


_MADE_OF = re.compile(r"(\.active(_\d+)?|\.\d+)+$")
"""What the passes add to the name of a dense weight: where its columns are folded, and for each
part of a packed projection."""


def _layer(report: LayerReport, nodes: Sequence[ProductNode], measured: Measured | None) -> Layer:
    seconds = _sum(node.seconds for node in nodes)
    dense = _sum(node.dense_seconds for node in nodes)
    if report.decision == "structured" and report.speedup is not None and seconds is not None:
        dense = seconds * report.speedup
    stored = sum(node.stored for node in nodes) or report.active * report.fan_in
    condensed = report.decision == "condensed"
    return Layer(
        name=report.label,
        kind=report.kind,
        shape=report.shape,
        sparsity=report.sparsity,
        active=report.active,
        form=report.decision,
        reason=report.reason,
        padding=report.padding / stored if condensed and stored else None,
        bytes_dense=report.bytes_dense,
        bytes_stored=report.bytes_in_file,
        seconds_dense=dense,
        seconds=seconds,
        measured=_sum(measured_seconds(n, measured) for n in nodes) if measured else None,
        mask=report.mask,
    )


def _sum(seconds: Iterable[float | None]) -> float | None:
    """Add up times; None where one is not known or there is none."""
    known = list(seconds)
    return None if not known or None in known else sum(filter(None, known))


def _asked(asked: Asked, opset: int) -> tuple[tuple[str, str], ...]:
    device = asked.device if asked.device != "cpu" else f"cpu, {_threads(asked.threads)}"
    values = () if asked.values_dtype == "float32" else (("Values", asked.values_dtype),)
    return (
        ("Policy", asked.policy),
        ("Batch", str(asked.batch)),
        *((name, str(size)) for name, size in asked.dims.items()),
        ("Device", device),
        ("Precision", asked.precision),
        *values,
        ("Opset", str(opset)),
    )


def _conditions(asked: Asked) -> str:
    where = asked.device if asked.device != "cpu" else _threads(asked.threads)
    sizes = "".join(f", {name} {size}" for name, size in asked.dims.items())
    return f"batch {asked.batch}{sizes} on {where}"


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def _versions() -> tuple[tuple[str, str], ...]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return (("Versions", ", ".join((*found, f"Python {platform.python_version()}"))),)


def _times(chooser: Chooser, layers: Iterable[LayerReport]) -> str:
    """Say where the predicted times come from."""
    lines = filter(None, (chooser.costs.origin, chooser.quantized_times(layers)))
    text = "".join(f"Predictions: {line}. " for line in lines)
    other = chooser.other_cpu
    return f"{text}{other[:1].upper()}{other[1:]}{'.' if other else ''}".strip()
