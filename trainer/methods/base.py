"""The base of training methods: two scores, a plan for each update, and a structure.

The sparsifier asks a method for each layer's initial mask, for the plan of each update (how many
weights each layer drops and holds), and for the update itself. All of these are pure functions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..structures import LayerPlan, Structure, parse_structure
from ..update import LayerUpdate


@dataclass(frozen=True)
class LayerInputs:
    """What a method sees of one layer at one update; tensors have the shape of the weight.

    Attributes:
        weight: the weight, 0 off the mask.
        mask: bool.
        gradient: dense gradient, averaged over the schedule's window or (with
            ``gradient_momentum``) over all steps; None for methods that use no gradient.
        budget: weights that the layer should hold.
        may_ablate: whether neurons may be ablated.
        random: draws uniform numbers in [0, 1) that depend on seed, layer and step only.

    """

    weight: Tensor
    mask: Tensor
    gradient: Tensor | None
    budget: int
    may_ablate: bool
    random: Callable[[], Tensor]

    @property
    def dense_gradient(self) -> Tensor:
        """``gradient`` of a layer that has one.

        Raises:
            RuntimeError: the method does not declare ``uses_gradient``.

        """
        if self.gradient is None:
            raise RuntimeError("a method reads gradients although its uses_gradient is False")
        return self.gradient


@dataclass(frozen=True)
class DropFractions:
    """Drop fractions of the current and of the following update; 0 after the last one.

    Attributes:
        current: of this update.
        following: of the next one.
        progress: elapsed part of the schedule, in (0, 1].

    """

    current: float
    following: float
    progress: float = 1.0


def check_sparsity(sparsity: float) -> None:
    """Validate a sparsity.

    Raises:
        TypeError: it is not a number.
        ValueError: it is not in (0, 1).

    """
    if not isinstance(sparsity, int | float):
        raise TypeError(f"sparsity must be a number in (0, 1), got {sparsity!r}")
    if not 0 < sparsity < 1:
        raise ValueError(
            f"sparsity must be in (0, 1), got {sparsity}; for dense training use Dense()"
        )


@dataclass(frozen=True)
class SparseMethod:
    """Base of the methods that train sparse: override a score, or the plan.

    Attributes:
        sparsity: target fraction of weights that are zero, in (0, 1).

    """

    name: ClassVar[str]
    # Whether the topology changes; whether weights move between layers; whether weights off the
    # mask keep training behind it; whether growth or drop use the dense gradient; whether the
    # method moves weights itself after each step of the optimizer; whether all weights are active
    # at first.
    updates: ClassVar[bool] = True
    redistributes: ClassVar[bool] = False
    dense_to_sparse: ClassVar[bool] = False
    uses_gradient: ClassVar[bool] = True
    moves_weights: ClassVar[bool] = False
    starts_dense: ClassVar[bool] = False

    sparsity: float

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)
        density = self.mask_structure().density
        if density is not None and abs(1 - density - self.sparsity) > 1e-9:
            raise ValueError(
                f"structure {self._structure_name!r} has sparsity {1 - density:g}, "
                f"not {self.sparsity}"
            )

    def mask_structure(self) -> Structure:
        """Return the structure of every sparse layer."""
        return parse_structure(self._structure_name)

    @property
    def _structure_name(self) -> str:
        """Value of the field ``structure``, which some methods have."""
        return str(getattr(self, "structure", "unstructured"))

    @property
    def turns(self) -> int:
        """Steps after which every weight of the method has had a turn; more than 1 for AST."""
        return 1

    @property
    def gradient_momentum(self) -> float | None:
        """Decay of a running average of dense gradients; None: the schedule's window is used."""
        return None

    def drop_score(self, layer: LayerInputs) -> Tensor:
        """Return the score whose lowest values are dropped; magnitude unless overridden."""
        return layer.weight.detach().abs()

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Return the score whose highest values are grown."""
        raise NotImplementedError

    def moved(
        self, weight: Tensor, before: Tensor, learning_rate: float, generator: torch.Generator
    ) -> Tensor:
        """Return the weight after a step of the optimizer and this method's own move.

        Called if ``moves_weights``; the mask is applied afterwards.

        Args:
            weight: float, after the optimizer's step.
            before: float, same shape, before it.
            learning_rate: the optimizer's for this weight.
            generator: of the move's random numbers; depends on seed, layer and step only.

        """
        raise NotImplementedError

    def plan(
        self, layers: Mapping[str, LayerInputs], fractions: DropFractions
    ) -> dict[str, LayerPlan]:
        """Plan the update of each layer: replace int(fraction · active) weights."""
        return {name: plan_same_budget(layer, fractions.current) for name, layer in layers.items()}

    def update(self, layer: LayerInputs, plan: LayerPlan) -> LayerUpdate:
        """Compute the new mask and weight of one layer."""
        scores = self.drop_score(layer), self.grow_score(layer)
        return self.mask_structure().update(layer.weight, layer.mask, *scores, plan)


def least_weights(layer: LayerInputs) -> int:
    """Return the fewest weights that a layer may keep: one, or one for each protected neuron."""
    return 1 if layer.may_ablate else len(layer.mask)


def plan_same_budget(layer: LayerInputs, fraction: float) -> LayerPlan:
    """Plan to replace a fraction of the active weights and keep the budget."""
    drop_count = int(fraction * int(layer.mask.count_nonzero()))
    return LayerPlan(layer.budget, fraction, drop_count, layer.may_ablate)
