"""Target and actual sparsity by layer."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from .._base.tables import Column, Sheet


@dataclass(frozen=True)
class LayerSummary:
    """One linear or convolution layer.

    Attributes:
        name: qualified parameter name.
        shape: shape of the weight, neurons first.
        asked_density: target density, from the distribution.
        density: actual density; slightly lower, because a fan-in is a whole number.
        active: neurons that hold weights, of ``shape[0]``.
        fan_in: largest number of weights of an active neuron.
        sparse: whether the layer has a mask.
        least_fan_in: smallest number of weights of an active neuron; None: all have ``fan_in``.

    """

    name: str
    shape: tuple[int, ...]
    asked_density: float
    density: float
    active: int
    fan_in: int
    sparse: bool
    least_fan_in: int | None = None


def dense_summary(name: str, shape: Sequence[int]) -> LayerSummary:
    """Summarize a layer without a mask."""
    return LayerSummary(name, tuple(shape), 1.0, 1.0, shape[0], math.prod(shape[1:]), False)


def mask_summary(name: str, mask: Tensor, asked_density: float) -> LayerSummary:
    """Summarize a layer with this mask, neurons in dimension 0."""
    counts = mask.flatten(1).sum(1)
    held = counts[counts > 0]
    least, most = (int(held.min()), int(held.max())) if len(held) else (0, 0)
    return LayerSummary(
        name=name,
        shape=tuple(mask.shape),
        asked_density=asked_density,
        density=int(counts.sum()) / mask.numel(),
        active=len(held),
        fan_in=most,
        sparse=True,
        least_fan_in=None if least == most else least,
    )


@dataclass(frozen=True)
class Summary:
    """Summary of all layers; iterate over it for the rows, print it for a table.

    Attributes:
        rows: one per linear or convolution layer, in module order.
        others: number of elements in other matrices, which stay dense, by type of module.

    """

    rows: tuple[LayerSummary, ...]
    others: Mapping[str, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[LayerSummary]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def density(self) -> float:
        """Fraction of all these layers' weights that is active."""
        sizes = [math.prod(row.shape) for row in self.rows]
        return sum(row.density * size for row, size in zip(self.rows, sizes, strict=True)) / sum(
            sizes
        )

    def sheet(self) -> Sheet:
        """Return the table of the layers."""
        columns = (
            Column("layer", words=True),
            Column("shape", drop=2),
            Column("target", right=True, drop=0),
            Column("density", right=True),
            Column("active", right=True, drop=1),
            Column("fan-in", right=True),
        )
        rows = tuple(
            (
                row.name,
                "×".join(map(str, row.shape)),
                f"{row.asked_density:.4f}",
                f"{row.density:.4f}",
                f"{row.active}/{row.shape[0]}",
                str(row.fan_in) if row.least_fan_in is None else f"{row.least_fan_in}–{row.fan_in}",
            )
            for row in self.rows
        )
        notes = [f"total density {self.density:.4f}"]
        if self.others:
            counts = ", ".join(f"{kind} {count:,}" for kind, count in self.others.items())
            notes.append(f"dense, not counted: {counts}")
        return Sheet("", columns, rows, tuple(notes))

    def __str__(self) -> str:
        return self.sheet().to_text()
