"""Asked and achieved sparsity, layer by layer."""

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerSummary:
    """One linear or convolution layer.

    ``asked_density`` comes from the distribution, ``density`` is what the mask holds (fan-in is
    a whole number, so it is slightly below). ``active`` of ``shape[0]`` neurons have weights,
    at most ``fan_in`` and at least ``least_fan_in`` each; None: all have ``fan_in``. ``sparse``:
    whether the layer has a mask.
    """

    name: str
    shape: tuple[int, ...]
    asked_density: float
    density: float
    active: int
    fan_in: int
    sparse: bool
    least_fan_in: int | None = None


@dataclass(frozen=True)
class Summary:
    """All layers; iterate over it for the rows, print it for a table."""

    rows: tuple[LayerSummary, ...]

    def __iter__(self) -> Iterator[LayerSummary]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def density(self) -> float:
        """Share of all these layers' weights that are active."""
        sizes = [math.prod(row.shape) for row in self.rows]
        return sum(row.density * size for row, size in zip(self.rows, sizes, strict=True)) / sum(
            sizes
        )

    def __str__(self) -> str:
        head = ("layer", "shape", "asked", "density", "active", "fan-in")
        lines = [head] + [
            (
                row.name,
                "×".join(map(str, row.shape)),
                f"{row.asked_density:.4f}",
                f"{row.density:.4f}",
                f"{row.active}/{row.shape[0]}",
                str(row.fan_in) if row.least_fan_in is None else f"{row.least_fan_in}–{row.fan_in}",
            )
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        text = "\n".join(
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )
        return f"{text}\ntotal density {self.density:.4f}"
