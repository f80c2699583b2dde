"""Gradual magnitude pruning (arXiv 1710.01878), for models that are trained already."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..structures import LayerPlan
from .base import DropFractions, LayerInputs, SparseMethod


@dataclass(frozen=True)
class GMP(SparseMethod):
    """Gradual magnitude pruning (arXiv 1710.01878, section 2): dense at first, then ever sparser.

    The density of a layer falls from 1 to its target d by d + (1 − d) · (1 − t)³, where t is the
    elapsed part of the schedule. Each update drops its smallest weights; nothing grows. Meant for
    pretrained models, whose weights a ``Sparsifier`` keeps. The schedule's α has no effect.

    Attributes:
        structure: "unstructured", "constant-fan-in" or "block-16" (see ``parse_structure``).

    Raises:
        ValueError: the structure has one density only.

    """

    name: ClassVar[str] = "gmp"
    uses_gradient: ClassVar[bool] = False
    starts_dense: ClassVar[bool] = True
    structure: str = "constant-fan-in"

    def __post_init__(self) -> None:
        if self.mask_structure().density is not None:
            raise ValueError(
                f"gradual pruning passes through all densities, and structure {self.structure!r} "
                "has only one"
            )
        super().__post_init__()

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Return zeros: what is dropped does not come back."""
        return torch.zeros_like(layer.weight)

    def plan(
        self, layers: Mapping[str, LayerInputs], fractions: DropFractions
    ) -> dict[str, LayerPlan]:
        """Lower the number of weights to that of the elapsed schedule."""
        plans = {}
        for name, layer in layers.items():
            held = int(layer.mask.count_nonzero())
            budget = min(held, scheduled_budget(layer, fractions))
            plans[name] = LayerPlan(budget, 0.0, held - budget, layer.may_ablate)
        return plans


def scheduled_budget(layer: LayerInputs, fractions: DropFractions) -> int:
    """Return how many weights a layer holds by the cubic schedule, from all to its budget."""
    excess = (layer.mask.numel() - layer.budget) * (1 - fractions.progress) ** 3
    return layer.budget + int(excess)
