"""What a quantization did, as values that print themselves."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..._base.tables import Column, Printed, Sheet
from ..layer_report import without_masks
from ..report import ExportReport
from .output_error import OutputError

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 20
"""Most layers of the table, the worst first."""


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer of the float model and what became of it.

    Attributes:
        name: of the layer.
        op_type: Gemm, MatMul or Conv.
        shape: of its dense weight, as the float model has it.
        sparsity: share of zeros in the float weight.
        error: relative error of the outputs where this layer alone computes in 8 bits; None where
            it was not measured.
        form: "condensed int8", "dense int8", "condensed float32" or "dense float32".
        reason: why it stayed in float32, or is dense in 8 bits; empty for a condensed one of these.

    """

    name: str
    op_type: str
    shape: tuple[int, ...]
    sparsity: float
    error: float | None
    form: str
    reason: str

    @property
    def is_float(self) -> bool:
        """Whether it stayed in float32."""
        return self.form.endswith("float32")


@dataclass(frozen=True)
class QuantizationReport(Printed):
    """The result of one quantization.

    Attributes:
        path: of the file.
        method: "dynamic", or how the ranges of activations were found: "min-max", "entropy",
            "percentile".
        calibrated_on: samples that they were found on; None for dynamic.
        compared_on: samples that the two models were compared on.
        layers: the one that hurts most first, then those that were not measured.
        error: of the outputs, all quantized layers together.
        accuracy_before: of the float model, in [0, 1]; None without labels.
        accuracy_after: of the file.
        max_error: the limit that was asked for; None for none.
        file_bytes: of the file, its data file included.
        float_bytes: of the constants of the dense float32 model.
        export: the conversion of the quantized graph.
        notes: what else a user should know.

    """

    path: str
    method: str
    calibrated_on: str | None
    compared_on: str
    layers: tuple[QuantizedLayer, ...]
    error: OutputError
    accuracy_before: float | None
    accuracy_after: float | None
    max_error: float | None
    file_bytes: int
    float_bytes: int
    export: ExportReport
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[QuantizedLayer, ...]:
        """The layers that stayed in float32."""
        return tuple(layer for layer in self.layers if layer.is_float)

    def to_rich_table(self, width: int | None = None) -> Table:
        """Lay out the layers as a table for a terminal of that width; None: all columns."""
        return self.sheet().to_rich(width)

    def sheet(self) -> Sheet:
        """Lay out the layers, the worst first, with the summary below."""
        columns = (
            Column("layer", words=True),
            Column("shape", right=True, drop=0),
            Column("sparsity", right=True),
            Column("error alone", right=True),
            Column("form", words=True),
        )
        shown = [*self.layers[:_SHOWN], *(x for x in self.layers[_SHOWN:] if x.is_float)]
        rows = [
            (
                layer.name,
                "×".join(map(str, layer.shape)),
                f"{layer.sparsity:.1%}",
                "" if layer.error is None else f"{layer.error:.2%}",
                ": ".join(filter(None, (layer.form, layer.reason))),
            )
            for layer in shown
        ]
        left = len(self.layers) - len(shown)
        if left:
            rows.append((f"and {left} more", "", "", "", ""))
        return Sheet(f"Quantization to {self.path}", columns, tuple(rows), self.summary())

    def summary(self) -> tuple[str, ...]:
        """Say in lines of text what changed: accuracy, outputs, size."""
        lines = []
        if self.accuracy_before is not None and self.accuracy_after is not None:
            change = 100 * (self.accuracy_after - self.accuracy_before)
            lines.append(
                f"accuracy {self.accuracy_before:.2%} in float32, {self.accuracy_after:.2%} in "
                f"8 bits ({change:+.2f} points)"
            )
        limit = f", at most {self.max_error:.2%} asked for" if self.max_error is not None else ""
        if self.error.is_share:
            lines.append(f"{self.error.relative:.2%} of the labels in an output change{limit}")
        else:
            lines.append(
                f"outputs differ by {self.error.relative:.2%} (root mean square{limit}), cosine "
                f"{self.error.cosine:.5f}"
            )
        lines.append(f"compared on {self.compared_on}")
        if self.calibrated_on is not None:
            lines.append(f"ranges of activations: {self.method} of {self.calibrated_on}")
        lines.append(
            f"file {self.file_bytes / 1e6:.3g} MB, dense float32 weights "
            f"{self.float_bytes / 1e6:.3g} MB, ratio {self.file_bytes / self.float_bytes:.3f}"
        )
        return (*lines, *self.notes)

    def to_json(self) -> str:
        """Write all fields as a JSON object."""
        return json.dumps(asdict(self, dict_factory=without_masks), indent=2)
