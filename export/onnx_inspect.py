"""What an ONNX file holds of our ops, without running it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from .._base.tables import Printed, Sheet
from ..ort_ops.contract import COMPUTE_BFLOAT16, DOMAIN, INPUTS, renamed_op
from ..ort_ops.format.condensed import CondensedWeight
from .errors import ExportError
from .layer_sheet import layer_sheet
from .mask_summary import MaskSummary
from .onnx_function import clip_is_open
from .onnx_reading import read_model
from .passes.access import label_of
from .passes.nodes import (
    clip_of,
    compute_of,
    condensed_nodes,
    is_convolution,
    our_nodes,
    read_constant_weight,
    read_geometry,
    weight_arrays,
)
from .report import LayerReport

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Inspection(Printed):
    """The condensed layers of a file.

    Attributes:
        path: the file.
        ir_version: of the file.
        opset: version of the standard operators.
        runs_without_library: whether the file carries the functions of our ops that it uses.
        layers: one for each condensed node, in the order of the graph.
        altered: what other tools did to ops of ours, which run dense now; empty for nothing.

    """

    path: str
    ir_version: int
    opset: int
    runs_without_library: bool
    layers: tuple[LayerReport, ...]
    altered: str = ""

    def to_rich_table(self, width: int | None = None) -> Table:
        """Lay out the layers as a table for a terminal of that width; None: all columns."""
        return self.sheet().to_rich(width)

    def sheet(self) -> Sheet:
        """Lay out the layers, with the versions of the file below."""
        without = "runs" if self.runs_without_library else "does not run"
        nodes = "node" if len(self.layers) == 1 else "nodes"
        notes = [
            f"{len(self.layers) or 'no'} condensed {nodes}, opset {self.opset}, "
            f"ir_version {self.ir_version}; {without} without fanin's library"
        ]
        if self.altered:
            notes.append(self.altered)
        return layer_sheet(self.layers, self.path, notes)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        return asdict(self) | {"layers": [layer.to_dict() for layer in self.layers]}

    def to_json(self) -> str:
        """Write all fields as a JSON object."""
        return json.dumps(self.to_dict(), indent=2)


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """List the condensed nodes of an ONNX file and validate the weights that they hold.

    Raises:
        FileNotFoundError: there is no such file.
        ExportError: the file is no ONNX model, its data file is missing, or a node breaks the
            format; names node and place.

    """
    path = Path(path)
    model = read_model(path)
    nodes = our_nodes(model)
    carried = {(domain, name) for domain, name, _ in model.functions}
    with _naming(path):
        layers = tuple(map(_layer, nodes))
    return Inspection(
        path=str(path),
        ir_version=model.ir_version,
        opset=model.opset_imports.get("", 0),
        runs_without_library={(node.domain, node.op_type) for node in nodes} <= carried,
        layers=layers,
        altered=_altered(model, bool(nodes)),
    )


def _altered(model: ir.Model, has_ours: bool) -> str:
    renamed = Counter(
        node.op_type
        for node in model.graph.all_nodes()
        if node.op_identifier() in model.functions and renamed_op(node.domain, node.op_type)
    )
    if renamed:
        names = ", ".join(f"{count} {name}" for name, count in renamed.items())
        return f"{names}: ops of fanin that another tool renamed, which run dense; export the file"
    if DOMAIN in model.opset_imports and not has_ours:
        return (
            f"it imports {DOMAIN} without an op of it: another tool made them dense "
            "(quant_pre_process needs skip_optimization=True)"
        )
    return ""


def condensed_weights(path: str | os.PathLike[str]) -> dict[str, CondensedWeight]:
    """Read the weights of the condensed nodes on floats of an ONNX file, by node name.

    A convolution's is flattened to ``[out_channels, in_channels / group * kernel]``.

    Raises:
        FileNotFoundError, ExportError: as :func:`inspect` does.

    """
    path = Path(path)
    nodes = condensed_nodes(read_model(path))
    with _naming(path):
        return {label_of(node): read_constant_weight(node) for node in nodes}


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say which file an error is about."""
    try:
        yield
    except (ExportError, TypeError, ValueError) as error:
        raise ExportError(f"{path}: {error}") from error


def _layer(node: ir.Node) -> LayerReport:
    weight, name = read_constant_weight(node), label_of(node)
    arrays = weight_arrays(node) or {}
    shape: tuple[int, ...] = (weight.out_features, weight.in_features)
    return LayerReport(
        name=name,
        kind=node.op_type,
        nodes=(name,),
        shape=read_geometry(node).weight_shape if is_convolution(node) else shape,
        sparsity=1 - weight.density,
        active=weight.active,
        fan_in=weight.fan_in,
        padding=weight.padding,
        bytes_dense=4 * weight.out_features * (weight.in_features + 1),
        bytes_condensed=sum(array.nbytes for array in arrays.values()),
        decision="condensed",
        stored=weight.values.size,
        reason=_epilogue(node),
        values_dtype=arrays["values"].dtype.name,
        compute="bfloat16" if compute_of(node) == COMPUTE_BFLOAT16 else "float32",
        mask=MaskSummary.of_condensed(weight),
    )


def _epilogue(node: ir.Node) -> str:
    """Say what the node does to its sums: adds a residual, clips."""
    residual = dict(zip(INPUTS[node.op_type], node.inputs, strict=False)).get("residual")
    steps = [f"adds {residual.name}"] if residual and not residual.is_initializer() else []
    low, high = clip_of(node)
    if not clip_is_open(low, high):
        steps.append(f"clip [{low:g}, {high:g}]")
    return ", ".join(steps)
