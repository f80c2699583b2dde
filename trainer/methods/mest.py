"""MEST (arXiv 2110.14032): elastic mutation within a soft memory bound."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..structures import Change
from .base import LayerInputs, Moment, SparseMethod


@dataclass(frozen=True)
class MEST(SparseMethod):
    """Drop by |w| + λ·|gradient|, grow at random.

    ``gradient_weight``: λ. ``soft_bound``: train the grown weights beside the old ones until the
    next update decides which go (the layer then holds up to alpha more weights than asked, fewer
    with every update, and exactly its budget after the last one); without it, as many weights go
    as come. Loss scaling changes λ's meaning: give the sparsifier its ``grad_scaler``.
    Raises ValueError for a negative λ.
    """

    name: ClassVar[str] = "mest"
    gradient_weight: float = 1.0
    soft_bound: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gradient_weight < float("inf"):
            raise ValueError(
                f"gradient_weight must be 0 or more and finite, got {self.gradient_weight}"
            )

    def drop_score(self, layer: LayerInputs) -> Tensor:
        """Magnitude and gradient together."""
        return layer.weight.detach().abs() + self.gradient_weight * layer.dense_gradient.abs()

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Uniform noise."""
        return layer.random()

    def plan(self, layers: Mapping[str, LayerInputs], moment: Moment) -> dict[str, Change]:
        """Back to the budget, then up to the soft bound of the next interval."""
        if not self.soft_bound:
            return super().plan(layers, moment)
        changes = {}
        for name, layer in layers.items():
            active = int(layer.mask.count_nonzero())
            room = layer.mask.numel() - layer.budget
            # The first update finds the plain budget and nothing to take back.
            extra = min(int(moment.next_fraction * layer.budget), room)
            drop_count = max(0, active - layer.budget)
            changes[name] = Change(
                layer.budget + extra, moment.fraction, drop_count, layer.may_ablate
            )
        return changes
