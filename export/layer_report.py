"""One weight of a model and what became of it, as reports have it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from .layer_names import name_in_reports
from .mask_summary import MaskSummary

Decision = Literal["condensed", "structured", "dense"]


@dataclass(frozen=True)
class PredictedTimes:
    """Seconds that a layer is predicted to take, which its form was chosen by.

    Attributes:
        dense: as a dense layer.
        chosen: in the form that it has.
        equal_rows: condensed, if all rows had equally many of the weights; None where they have.

    """

    dense: float
    chosen: float
    equal_rows: float | None = None


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
        times: that the form was chosen by; None where nothing was predicted.
        stored: entries of the form, padding included; None for a dense layer.
        kernel: that its time was predicted with, where it was chosen for a GPU.
        node: name of a node that reads the weight in the source; empty where none was found.
        counted: whether the weight was computed, so that its zeros are known. Sparsity, active and
            fan_in mean nothing where it was not.
        mask: where the source has weights, for pictures of it; no part of the JSON.

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
    times: PredictedTimes | None = None
    stored: int | None = None
    kernel: str = ""
    node: str = ""
    counted: bool = True
    mask: MaskSummary | None = field(default=None, repr=False, compare=False)

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
            mask=MaskSummary.of(kept, counts),
        )

    @property
    def bytes_in_file(self) -> int:
        """Bytes of the form that the layer has in the file."""
        return self.bytes_dense if self.bytes_condensed is None else self.bytes_condensed

    @property
    def label(self) -> str:
        """The name of the weight, or of its node where that of the weight is made up."""
        return name_in_reports(self.name, self.node)

    @property
    def padding_share(self) -> float:
        """Padding as a share of the stored entries."""
        return self.padding / self.stored if self.stored else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, and what follows from them, for JSON."""
        derived = {"label": self.label, "padding_share": self.padding_share}
        return asdict(self, dict_factory=without_masks) | derived


def without_masks(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of a dataclass for JSON, for ``asdict``: pictures of masks are none of it."""
    return {name: value for name, value in fields if name != "mask"}
