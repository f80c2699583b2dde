"""What an export did, layer by layer, as values that print themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from .errors import ExportError

if TYPE_CHECKING:
    from rich.table import Table

NOT_VERIFIED = "outputs: the verification was switched off"

UNCHANGED = "outputs: no node or constant of the source has changed"

SPARSE = 0.5
"""Share of zeros from which a weight counts as sparse."""

Decision = Literal["condensed", "structured", "dense"]


@dataclass(frozen=True)
class LayerReport:
    """One weight of the model and what became of it.

    Attributes:
        name: qualified parameter name in the model; in an inspected file the node's name.
        kind: class of the module that owns it, such as "Linear".
        nodes: names of the graph nodes that hold it; empty for a layer that stayed dense.
        shape: shape of the dense weight.
        sparsity: share of weights that the mask leaves out (without a mask: that are 0).
        active: output neurons with at least one weight.
        fan_in: stored weights per active neuron; the largest count where they differ.
        padding: stored entries that only fill shorter rows; 0 for a dense layer.
        bytes_dense: bytes of weight and bias as dense float32, or in the precision of the export;
            of a quantized layer those of a dense weight in 8 bits, its scales and its bias.
        bytes_condensed: bytes of the arrays that the layer has in the file; None where it was left
            as it is.
        decision: the form in which the layer stands in the file.
        reason: why it stayed dense, or how a condensed layer was chosen or clips.
        values_dtype: type of the condensed values; of a dense layer float32 or the precision of
            the export, and of one that computes in 8 bits int8.
        compute: type that the layer's inputs are rounded to before they are multiplied: bfloat16,
            or float32 for all other layers.
        rounding_error: what rounding to that type changed, as a share of the weight's norm.
        speedup: predicted time of the dense layer over that of the chosen form; None where nothing
            was predicted.

    """

    name: str
    kind: str
    nodes: tuple[str, ...]
    shape: tuple[int, ...]
    sparsity: float
    active: int
    fan_in: int
    padding: int
    bytes_dense: int
    bytes_condensed: int | None
    decision: Decision
    reason: str
    values_dtype: str = "float32"
    compute: str = "float32"
    rounding_error: float = 0.0
    speedup: float | None = None

    @classmethod
    def of_dense(
        cls,
        name: str,
        kind: str,
        kept: np.ndarray,
        bytes_dense: int,
        reason: str,
        values_dtype: str = "float32",
    ) -> LayerReport:
        """Describe a weight that stays dense.

        Args:
            name: of the weight.
            kind: of what holds or reads it.
            kept: which entries are weights, bool ``[out_features, ...]``.
            bytes_dense: see above.
            reason: why it stays.
            values_dtype: see above.

        """
        counts = np.count_nonzero(kept.reshape(len(kept), -1), axis=1)
        return cls(
            name=name,
            kind=kind,
            nodes=(),
            shape=tuple(kept.shape),
            sparsity=1 - float(counts.sum()) / kept.size if kept.size else 0.0,
            active=int(np.count_nonzero(counts)),
            fan_in=int(counts.max(initial=0)),
            padding=0,
            bytes_dense=bytes_dense,
            bytes_condensed=None,
            decision="dense",
            reason=reason,
            values_dtype=values_dtype,
        )

    @property
    def bytes_in_file(self) -> int:
        """Bytes of the form that the layer has in the file."""
        return self.bytes_dense if self.bytes_condensed is None else self.bytes_condensed


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
class ExportReport:
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
        precision: what the graph computes in, where it was asked for; else float32, or what the
            source computes in.
        dense_precision_error: how far the dense model in that precision is from float32, as a share
            of the largest output; None where that was not measured.

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
    precision: str = "float32"
    dense_precision_error: float | None = None

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

    def to_rich_table(self) -> Table:
        """Lay out the layers as a table, with parity and file size in its caption."""
        measured = "" if self.dense_file_measured else " (computed)"
        caption = [_parity_line(check) for check in self.parity]
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
            f"file {_size(self.file_bytes)}, dense {_size(self.dense_file_bytes)}{measured}, "
            f"ratio {self.size_ratio:.3f}"
        )
        caption += [f"fused: {line}" for line in self.fused]
        caption += [f"folded: {line}" for line in self.folded]
        caption += [f"not folded: {line}" for line in self.unfolded]
        if self.cost_model and self.device != "cpu":
            caption.append(f"chosen for {self.device} by {self.cost_model}")
        elif self.cost_model:
            caption.append(origin_of_times(self.cost_model, self.threads, self.measured_threads))
        caption += filter(None, (self.quantized_times,))
        caption += self.notes
        return layer_table(self.layers, title=f"Export to {self.path}", caption="\n".join(caption))

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
    weights = [(layer.name, layer.sparsity) for layer in layers]
    if other is not None:
        weights.append(other)
    if not weights:
        return ("no weights found",)
    name, most = max(weights, key=lambda weight: weight[1])
    if most >= min_sparsity:
        return ()
    wanted = "" if min_sparsity == SPARSE else f" of at least {min_sparsity:.0%} zeros"
    return (f"no sparse weights{wanted} found; the sparsest is {name} at {most:.0%}",)


def require_sparse_layers(layers: Sequence[LayerReport], notes: Sequence[str]) -> None:
    """Require that a sparse layer is in the file.

    Raises:
        ExportError: all are dense, with the reasons of the sparsest ones.

    """
    if any(layer.decision != "dense" for layer in layers):
        return
    sparsest = sorted(layers, key=lambda layer: -layer.sparsity)[:3]
    reasons = [f"{layer.name} ({layer.sparsity:.0%}): {layer.reason}" for layer in sparsest]
    raise ExportError(
        "every layer stays dense, although sparse ones are required: "
        f"{'; '.join(reasons or notes) or 'no weights found'}; nothing was written"
    )


def bytes_saved(layers: Iterable[LayerReport]) -> int:
    """Return how much smaller the layers are in the file than dense."""
    return sum(layer.bytes_dense - layer.bytes_in_file for layer in layers)


def layer_table(layers: tuple[LayerReport, ...], *, title: str, caption: str = "") -> Table:
    """Lay out layers as a rich table that fits into 80 columns."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        caption=caption or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("layer", overflow="fold")
    # Padding matters where it exists, and then its column is worth the room.
    padded = any(layer.padding for layer in layers)
    for header in ("shape", "sparsity", "active", "fan-in", *["padding"] * padded, "bytes"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("form", min_width=16, overflow="fold")
    for layer in layers:
        separator = " " if layer.decision == "condensed" else ": "
        table.add_row(
            layer.name.removesuffix(".weight"),
            "×".join(map(str, layer.shape)),
            f"{layer.sparsity:.1%}",
            f"{layer.active}/{layer.shape[0]}",
            str(layer.fan_in),
            *[str(layer.padding)] * padded,
            _size(layer.bytes_in_file),
            separator.join(filter(None, (layer.decision, layer.reason)))
            + (", in bfloat16" if layer.compute == "bfloat16" else ""),
        )
    return table


def _size(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    size = count / 1000
    for unit in ("kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
