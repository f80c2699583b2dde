"""What an export did, layer by layer, as values that print themselves."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from .._base.tables import Printed, Sheet
from .errors import ExportError
from .layer_report import Decision as Decision  # part of a report, which others take from here
from .layer_report import LayerReport as LayerReport
from .layer_report import PredictedTimes as PredictedTimes
from .layer_sheet import layer_sheet, size_text

if TYPE_CHECKING:
    from rich.table import Table

NOT_VERIFIED = "outputs: the verification was switched off"

UNCHANGED = "outputs: no node or constant of the source has changed"

SPARSE = 0.5
"""Share of zeros from which a weight counts as sparse."""


@dataclass(frozen=True)
class ParityCheck:
    """The file's outputs against the model's.

    Attributes:
        engine: what ran the file, with its version.
        batches: batch sizes that were compared.
        max_error: largest absolute difference.
        relative_error: largest difference as a share of the largest output of its batch.
        tolerance: the share that was allowed.
        units: of a quantized model, the largest difference in units of the output: steps of its
            quantization, or where it is not quantized 255ths of its range. None for others.
        unit_tolerance: how many were allowed: 2, or four times what the model differs from itself
            by where the runtime optimizes it, if that is more.

    """

    engine: str
    batches: tuple[int, ...]
    max_error: float
    relative_error: float
    tolerance: float
    units: float | None = None
    unit_tolerance: float = 0.0


@dataclass(frozen=True)
class LayerCheck:
    """Quantized layers against the original, each by itself on the original's own values.

    Attributes:
        engine: what ran them, with its version.
        layers: how many there are.
        checked: how many could be compared; the others read or write values that the original does
            not have under that name, or stand in a branch or loop.
        integers: entries of 8-bit outputs that were compared.
        differing: how many of them are off by one, the most that is allowed.
        float_error: largest difference of a float32 output, as a share of its largest entry.

    """

    engine: str
    layers: int
    checked: int = 0
    integers: int = 0
    differing: int = 0
    float_error: float = 0.0

    def with_integers(self, count: int, differing: int) -> LayerCheck:
        """Count a layer of 8-bit outputs."""
        return replace(
            self,
            checked=self.checked + 1,
            integers=self.integers + count,
            differing=self.differing + differing,
        )

    def with_floats(self, error: float) -> LayerCheck:
        """Count a layer of float32 outputs."""
        return replace(self, checked=self.checked + 1, float_error=max(self.float_error, error))

    def __str__(self) -> str:
        line = f"{self.engine}: {self.checked} of {self.layers} quantized layers one by one"
        if self.integers:
            line += f", {self.differing} of {self.integers} integers off by 1"
        if self.float_error or not self.integers:
            line += f", floats by {self.float_error:.1e}"
        return line


@dataclass(frozen=True)
class ExportReport(Printed):
    """The result of one export.

    Attributes:
        path: the model file.
        data_path: the file beside it that holds its weights; None for a single file.
        dense_path: the dense baseline; None when it was not asked for.
        opset: version of the standard operators.
        layers: every weight of two or more dimensions, in the order of the model.
        fused: one line for every activation that a condensed node took over.
        parity: one check for every engine that ran the file.
        not_checked: engines that did not run, each with the reason.
        file_bytes: bytes of the model with its data file.
        dense_file_bytes: the same for the dense export; computed from ``file_bytes`` and the
            layers when no baseline was written.
        dense_file_measured: whether ``dense_file_bytes`` is the size of a file.
        notes: whatever else the user should know.
        output_rounding_error: the largest change of an output by the rounding of weights, as a
            share of the largest output of its batch; 0 for float32 values, None where it was not
            measured.
        folded: one line for every layer whose ablated neurons left the graph.
        unfolded: one line for every layer that keeps ablated neurons, with the reason.
        cost_model: the machine whose times decided the forms.
        threads: of a session, which they are predicted for.
        measured_threads: with which they were measured; where it is 1 and ``threads`` is more, the
            times on several threads were predicted from those on one.
        layer_checks: one for every engine that ran the quantized layers one by one.
        quantized_times: where the times of layers in 8 bits come from; empty where none decided.
        device: that the forms were chosen for, "cpu" or "cuda".
        counted_on: for a GPU, one line for every kernel that condensed layers were counted with:
            whether its times are measured or an estimate, and where they come from.
        precision: what the graph computes in, where it was asked for; else float32, or what the
            source computes in.
        dense_precision_error: how far the dense model in that precision is from float32, as a share
            of the largest output; None where that was not measured.
        other_cpu: what to do about times of another CPU than this one; empty for times of this one.

    """

    path: str
    data_path: str | None
    dense_path: str | None
    opset: int
    layers: tuple[LayerReport, ...]
    fused: tuple[str, ...]
    parity: tuple[ParityCheck, ...]
    not_checked: tuple[str, ...]
    file_bytes: int
    dense_file_bytes: int
    dense_file_measured: bool
    notes: tuple[str, ...]
    output_rounding_error: float | None = 0.0
    folded: tuple[str, ...] = ()
    unfolded: tuple[str, ...] = ()
    cost_model: str = ""
    threads: int = 1
    measured_threads: int = 1
    layer_checks: tuple[LayerCheck, ...] = ()
    quantized_times: str = ""
    device: str = "cpu"
    counted_on: tuple[str, ...] = ()
    precision: str = "float32"
    dense_precision_error: float | None = None
    other_cpu: str = ""

    @property
    def condensed_layers(self) -> tuple[LayerReport, ...]:
        """The layers that became condensed nodes."""
        return tuple(layer for layer in self.layers if layer.decision == "condensed")

    @property
    def parity_error(self) -> float | None:
        """The largest relative error over all engines; None where no outputs were compared."""
        return max((check.relative_error for check in self.parity), default=None)

    @property
    def weight_rounding_error(self) -> float:
        """The largest relative rounding error of a layer's weight."""
        return max((layer.rounding_error for layer in self.layers), default=0.0)

    @property
    def size_ratio(self) -> float:
        """Bytes of the file as a share of the dense export's."""
        return self.file_bytes / self.dense_file_bytes

    def parity_lines(self) -> list[str]:
        """Say how far the outputs of each engine are from the model's."""
        return [_parity_line(check) for check in self.parity]

    def to_rich_table(self, width: int | None = None) -> Table:
        """Lay out the layers as a table for a terminal of that width; None: all columns."""
        return self.sheet().to_rich(width)

    def sheet(self) -> Sheet:
        """Lay out the layers, with parity and file sizes below."""
        measured = "" if self.dense_file_measured else " (computed)"
        caption = self.parity_lines()
        caption += [str(check) for check in self.layer_checks]
        rounded = {layer.values_dtype for layer in self.layers} - {"float32", "int8"}
        if self.precision != "float32":
            rounded = set()
            caption.append(self._precision_line())
        change = self.output_rounding_error
        caption += [
            f"values rounded to {dtype}: weights by {self.weight_rounding_error:.1e} of their "
            + (f"norm, outputs by {change:.1e}; " if change is not None else "norm; ")
            + "parity is with the rounded weights"
            for dtype in rounded
        ]
        if any(layer.compute == "bfloat16" for layer in self.layers):
            allowed = max((check.tolerance for check in self.parity), default=None)
            caption.append(
                "inputs rounded to bfloat16 in the layers marked so"
                + ("" if allowed is None else f": parity is with float32, {allowed:.0e} allowed")
            )
        caption += [f"not checked: {line}" for line in self.not_checked]
        caption.append(
            f"file {size_text(self.file_bytes)}, dense {size_text(self.dense_file_bytes)}"
            f"{measured}, ratio {self.size_ratio:.3f}"
        )
        caption += [f"fused: {line}" for line in self.fused]
        caption += [f"folded: {line}" for line in self.folded]
        caption += [f"not folded: {line}" for line in self.unfolded]
        if self.cost_model and self.device != "cpu":
            caption.append(f"chosen for {self.device} by {self.cost_model}")
            caption += self.counted_on
        elif self.cost_model:
            caption.append(origin_of_times(self.cost_model, self.threads, self.measured_threads))
            caption += filter(None, (self.other_cpu,))
        caption += filter(None, (self.quantized_times,))
        caption += self.notes
        return layer_sheet(self.layers, f"Export to {self.path}", caption)

    def _precision_line(self) -> str:
        line = f"{self.precision} throughout"
        if self.condensed_layers:
            line += f"; values rounded by {self.weight_rounding_error:.1e} of their weight's norm"
        if self.dense_precision_error is None:
            return line
        return f"{line}; the dense model differs from float32 by {self.dense_precision_error:.1e}"

    def to_json(self) -> str:
        """Write all fields, with the derived ratios, as a JSON object."""
        derived = {
            "parity_error": self.parity_error,
            "weight_rounding_error": self.weight_rounding_error,
            "size_ratio": self.size_ratio,
            "layers": [layer.to_dict() for layer in self.layers],
        }
        return json.dumps(asdict(self) | derived, indent=2)


def _parity_line(check: ParityCheck) -> str:
    batches = f"at batch {', '.join(map(str, check.batches))}"
    if check.units is None:
        return f"{check.engine}: relative error {check.relative_error:.1e} {batches}"
    return (
        f"{check.engine}: outputs differ by up to {check.units:.2g} quantization units "
        f"(allowed {check.unit_tolerance:.2g}) {batches}"
    )


def origin_of_times(machine: str, threads: int, measured_threads: int) -> str:
    """Say whether times on ``threads`` threads of a machine were measured there or predicted."""
    count = "1 thread" if measured_threads == 1 else f"{measured_threads} threads"
    measured = f"measured with {count} of {machine}"
    if threads == measured_threads:
        return f"times {measured}"
    return f"times predicted for {threads} threads from those {measured}"


def note_on_sparsity(
    layers: Iterable[LayerReport], other: tuple[str, float] | None, min_sparsity: float
) -> tuple[str, ...]:
    """Say that a model has no sparse weight, and which one comes closest.

    Args:
        layers: of the report.
        other: name and sparsity of a weight that is not among them.
        min_sparsity: from which a weight counts as sparse.

    """
    layers = tuple(layers)
    weights = [(layer.name, layer.sparsity) for layer in layers if layer.counted]
    if other is not None:
        weights.append(other)
    if not weights:
        return () if layers else ("no weights found",)
    name, most = max(weights, key=lambda weight: weight[1])
    if most >= min_sparsity:
        return ()
    wanted = "" if min_sparsity == SPARSE else f" of at least {min_sparsity:.0%} zeros"
    return (f"no sparse weights{wanted} found; the sparsest is {name} at {most:.0%}",)


def note_on_held(held: int, dense: Mapping[str, str]) -> str:
    """Tell how many condensed nodes a source held, and which of them are dense now, and why."""
    note = f"the source holds {held} condensed node{'s' * (held > 1)} already"
    if not dense:
        return note
    shown = [f"{name}: {reason}" for name, reason in list(dense.items())[:3]]
    more = [f"{len(dense) - 3} more"] if len(dense) > 3 else []
    return f"{note}, of which {len(dense)} became dense ({'; '.join([*shown, *more])})"


def require_sparse_layers(layers: Sequence[LayerReport], notes: Sequence[str]) -> None:
    """Require that a sparse layer is in the file.

    Raises:
        ExportError: all are dense, with the reasons of the sparsest ones.

    """
    if any(layer.decision != "dense" for layer in layers):
        return
    sparsest = sorted(layers, key=lambda layer: -layer.sparsity)[:3]
    reasons = [
        f"{layer.name} ({f'{layer.sparsity:.0%}' if layer.counted else 'not computed'}): "
        f"{layer.reason}"
        for layer in sparsest
    ]
    raise ExportError(
        "every layer stays dense, although sparse ones are required: "
        f"{'; '.join(reasons or notes) or 'no weights found'}; nothing was written"
    )


def bytes_saved(layers: Iterable[LayerReport], kept: Collection[str] = ()) -> int:
    """Return how much smaller the layers are in the file than dense.

    Those of the names in ``kept`` have their dense weight in the file as well.
    """
    return sum(
        (0 if layer.name in kept and layer.bytes_condensed else layer.bytes_dense)
        - layer.bytes_in_file
        for layer in layers
    )
