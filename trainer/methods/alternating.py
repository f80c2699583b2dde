"""AST (Yang et al., NeurIPS 2022): sub-nets of several sparsities that train in turn."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..structures import LayerPlan
from ..update import LayerUpdate, updated_layer
from .base import DropFractions, LayerInputs, SparseMethod, check_sparsity
from .gradual import scheduled_budget


@dataclass(frozen=True)
class AST(SparseMethod):
    """Alternating sparse training with gradient correction (Yang et al., NeurIPS 2022).

    Several sub-nets share one set of weights, and each optimizer step trains the next of them,
    through its own mask. Their densities fall from 1 to their targets by a cubic schedule. An
    update keeps the largest weights of a layer, masked or not, then drops the smallest of these and
    grows those with the largest gradients. A step whose gradient opposes that of the sub-net before
    loses the opposing part.

    Outside of training passes, the model is the sub-net of ``sparsity``; ``Sparsifier.subnet``
    gives the others. Batch norms keep statistics for each sub-net.

    What the paper's abstract leaves open follows the authors' code (mengjian0502/AST), except that
    layers have target densities where the code prunes all layers by one threshold; that all
    sub-nets are updated together; that growth sees dense gradients, not those of positions that
    the sub-net held before; that batch norms share scale and shift; and that the correction looks
    at the step before, where the code compares a gradient with itself and so changes nothing.

    Attributes:
        sparsity: of the sparsest sub-net, in (0, 1).
        others: sparsities of the other sub-nets, in the order of their steps; each below
            ``sparsity``.
        gradient_correction: whether gradients are corrected.
        structure: "unstructured", "constant-fan-in" or "block-16" (see ``parse_structure``).

    Raises:
        ValueError: a sparsity is out of range, or the structure has one density only.

    """

    name: ClassVar[str] = "ast"
    dense_to_sparse: ClassVar[bool] = True
    starts_dense: ClassVar[bool] = True
    others: tuple[float, ...] = (0.5,)
    gradient_correction: bool = True
    structure: str = "unstructured"

    def __post_init__(self) -> None:
        if self.mask_structure().density is not None:
            raise ValueError(
                f"sub-nets differ in density, and structure {self.structure!r} has only one"
            )
        super().__post_init__()
        if not isinstance(self.others, Iterable):
            raise TypeError(f"others must be a list of sparsities, got {self.others!r}")
        object.__setattr__(self, "others", tuple(self.others))
        for other in self.others:
            check_sparsity(other)
        if len(set(self.others)) < len(self.others):
            raise ValueError(f"others must name each sparsity once, got {list(self.others)}")
        if not self.others or max(self.others) >= self.sparsity:
            raise ValueError(
                f"others must be sparsities of denser sub-nets, at least one and each below "
                f"sparsity ({self.sparsity}), got {list(self.others)}"
            )

    @property
    def turns(self) -> int:
        """Number of sub-nets, that is, of steps in which each of them trains once."""
        return len(self.others) + 1

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Return the magnitude of the dense gradient."""
        return layer.dense_gradient.abs()

    def plan(
        self, layers: Mapping[str, LayerInputs], fractions: DropFractions
    ) -> dict[str, LayerPlan]:
        """Lower the number of weights to that of the elapsed schedule, and replace a fraction."""
        plans = {}
        for name, layer in layers.items():
            budget = scheduled_budget(layer, fractions)
            drop_count = int(fractions.current * budget)
            plans[name] = LayerPlan(budget, fractions.current, drop_count, layer.may_ablate)
        return plans

    def update(self, layer: LayerInputs, plan: LayerPlan) -> LayerUpdate:
        """Prune, drop and grow; the layer's weight is dense."""
        structure, size = self.mask_structure(), self.drop_score(layer)
        pruned = structure.mask_from_score(size, plan.budget, every_neuron=not plan.may_ablate)
        grown = structure.update(layer.weight, pruned, size, self.grow_score(layer), plan)
        return updated_layer(layer.weight, layer.mask, grown.mask)


def corrected(gradient: Tensor, previous: Tensor) -> Tensor:
    """Project a gradient off the previous sub-net's, if the two point in opposite directions.

    Args:
        gradient: float, any shape.
        previous: float, same shape, of the step before.

    """
    g, p = gradient.float(), previous.float()
    if gradient.dtype == torch.float64:
        g, p = gradient, previous
    dot = (g * p).sum()
    share = torch.where(dot < 0, dot / p.square().sum(), 0)
    return (g - share * p).to(gradient.dtype)
