"""Training methods: how a layer's topology starts and how it changes.

A method is a small frozen dataclass. The sparsifier asks it for each layer's first mask and for
each update; both are pure functions. A method is composed of a drop score, a grow score, a
structure and an ablation rule: another method is another composition of the same functions.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from .initialization import initial_mask
from .update import LayerRule, LayerUpdate, srigl_update


@dataclass(frozen=True)
class LayerInputs:
    """What a method sees of one layer at one update.

    ``gradient`` is the dense gradient averaged over the window, of the weight's shape.
    """

    weight: Tensor
    mask: Tensor
    gradient: Tensor
    budget: int
    drop_fraction: float
    may_ablate: bool


class Method(Protocol):
    """What the sparsifier needs of a method."""

    name: ClassVar[str]
    sparsity: float

    def initial_mask(
        self, shape: tuple[int, ...], budget: int, generator: torch.Generator
    ) -> Tensor:
        """Bool mask of ``shape`` holding at most ``budget`` weights."""

    def update(self, layer: LayerInputs) -> LayerUpdate:
        """Topology and weight after an update of one layer."""


@dataclass(frozen=True)
class Dense:
    """Ordinary dense training: no layer gets a mask."""

    name: ClassVar[str] = "dense"


@dataclass(frozen=True)
class SRigL:
    """Structured RigL (arXiv 2305.02299): constant fan-in, grown by gradient, with ablation.

    ``sparsity``: asked share of zero weights, in (0, 1). ``gamma_sal``: salient share of the
    fan-in that keeps a neuron alive (from 1 on: salient weights; 0: no ablation).
    ``reversible``: an ablated neuron may return when its gradients are among the largest.
    ``salient_growth``: "all" counts the largest gradients of all positions, "inactive" those of
    pruned positions only. Raises ValueError for values out of range.
    """

    name: ClassVar[str] = "srigl"
    sparsity: float
    gamma_sal: float = 0.3
    reversible: bool = True
    salient_growth: Literal["all", "inactive"] = "all"

    def __post_init__(self) -> None:
        if not 0 < self.sparsity < 1:
            raise ValueError(
                f"sparsity must be in (0, 1), got {self.sparsity}; for dense training use Dense()"
            )
        if not 0 <= self.gamma_sal < float("inf"):
            raise ValueError(f"gamma_sal must be 0 or more and finite, got {self.gamma_sal}")
        if self.gamma_sal > 1 and self.gamma_sal != int(self.gamma_sal):
            raise ValueError(
                f"gamma_sal {self.gamma_sal} is neither a share (below 1) nor a whole number"
            )
        if self.salient_growth not in ("all", "inactive"):
            raise ValueError(
                f"salient_growth must be 'all' or 'inactive', got {self.salient_growth!r}"
            )

    def initial_mask(
        self, shape: tuple[int, ...], budget: int, generator: torch.Generator
    ) -> Tensor:
        """Random mask with the same fan-in for every neuron."""
        return initial_mask(shape, budget, generator)

    def update(self, layer: LayerInputs) -> LayerUpdate:
        """One SRigL update of one layer."""
        rule = LayerRule(
            budget=layer.budget,
            drop_fraction=layer.drop_fraction,
            gamma_sal=self.gamma_sal if layer.may_ablate else 0,
            reversible=self.reversible,
            salient_growth=self.salient_growth,
        )
        return srigl_update(layer.weight, layer.mask, layer.gradient, rule)


METHODS = {method.name: method for method in (Dense, SRigL)}
