"""What a page says, as plain values; names and reasons in it are not escaped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..mask_summary import MaskSummary
from ..report import Decision


@dataclass(frozen=True)
class Layer:
    """A weight and what became of it.

    Attributes:
        name: of the weight, or of the node that holds it.
        kind: of the module or operator.
        shape: of the dense weight.
        sparsity: share of zeros.
        active: neurons with weights, as the file has them.
        form: in the file.
        reason: of the form.
        padding: share of the stored entries that are padding; None for a layer that stores none.
        bytes_dense: as dense weight and bias.
        bytes_stored: in the file.
        seconds_dense: predicted for its dense form; None where nothing is known.
        seconds: predicted for its form in the file.
        measured_dense: the same, measured.
        measured: the same, measured.
        mask: of the source.

    """

    name: str
    kind: str
    shape: tuple[int, ...]
    sparsity: float
    active: int
    form: Decision
    reason: str
    padding: float | None
    bytes_dense: int
    bytes_stored: int
    seconds_dense: float | None = None
    seconds: float | None = None
    measured_dense: float | None = None
    measured: float | None = None
    mask: MaskSummary | None = None

    @property
    def speedup(self) -> float | None:
        """Predicted time of the dense form over that of the one in the file."""
        if not self.seconds or self.seconds_dense is None:
            return None
        return self.seconds_dense / self.seconds


@dataclass(frozen=True)
class Measured:
    """Times of a model file on this machine.

    Attributes:
        seconds: of its nodes, by the names that ONNX Runtime's profiler gives them.
        run: seconds of a whole run.

    """

    seconds: Mapping[str, float]
    run: float


@dataclass(frozen=True)
class Page:
    """A model, before and after.

    Attributes:
        title: name of the model's file.
        kind: what the page is: "Export report" and so on.
        lead: a sentence about it.
        after: how the converted model is called: "exported", "planned", "in the file".
        layers: in the order of the report.
        file_bytes: of the file and of a dense one; None where only layers are known.
        error: largest relative error of the outputs; None where none were compared.
        verification: lines about what was compared.
        changes: lines about what was fused and folded.
        notes: what else a user should know.
        summary: terms with what they are.
        conditions: that times are of.
        times: where the predicted ones come from.
        runs: measured seconds of a run of the dense model and of the converted one; None for what
            was not measured.

    """

    title: str
    kind: str
    lead: str
    after: str
    layers: tuple[Layer, ...]
    file_bytes: tuple[int, int] | None
    error: float | None
    verification: tuple[str, ...]
    changes: tuple[str, ...]
    notes: tuple[str, ...]
    summary: tuple[tuple[str, str], ...]
    conditions: str
    times: str
    runs: tuple[float | None, float | None] = (None, None)
