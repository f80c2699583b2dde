"""MEST (arXiv 2110.14032): elastic mutation within a soft memory bound."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..structures import LayerPlan
from .base import DropFractions, LayerInputs, SparseMethod


@dataclass(frozen=True)
class MEST(SparseMethod):
    """Drop by ``|w| + λ·|gradient|``, grow at random.

    The gradient must be unscaled for λ to mean the same at every step: give the sparsifier its
    ``grad_scaler``.

    Attributes:
        gradient_weight: λ.
        soft_bound: train the grown weights beside the old ones until the next update decides which
            to drop. The layer then holds more weights than its budget, by the next update's drop
            fraction, and exactly its budget after the last update. False: drop as many weights as
            are grown.

    Raises:
        ValueError: ``gradient_weight`` is negative or infinite.

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
        """Return ``|w| + λ·|gradient|``."""
        return layer.weight.detach().abs() + self.gradient_weight * layer.dense_gradient.abs()

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Return uniform noise."""
        return layer.random()

    def plan(
        self, layers: Mapping[str, LayerInputs], fractions: DropFractions
    ) -> dict[str, LayerPlan]:
        """Return to the budget, then grow to the soft bound of the next interval."""
        if not self.soft_bound:
            return super().plan(layers, fractions)
        plans = {}
        for name, layer in layers.items():
            active = int(layer.mask.count_nonzero())
            room = layer.mask.numel() - layer.budget
            # Before the first update the layer holds its budget, so nothing is dropped.
            extra = min(int(fractions.following * layer.budget), room)
            drop_count = max(0, active - layer.budget)
            plans[name] = LayerPlan(
                layer.budget + extra, fractions.current, drop_count, layer.may_ablate
            )
        return plans
