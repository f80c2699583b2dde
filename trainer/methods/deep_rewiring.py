"""DeepR (arXiv 1711.05136): connections of fixed sign that die at zero, and random new ones."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..structures import LayerPlan
from .base import DropFractions, LayerInputs, SparseMethod


@dataclass(frozen=True)
class DeepR(SparseMethod):
    """Deep rewiring (arXiv 1711.05136, algorithm 1).

    An active weight is s·θ with a fixed sign s and θ ≥ 0. After each optimizer step, θ loses
    lr · ``l1`` and gains noise of variance 2 · lr · ``temperature``; where it falls below zero, the
    connection is dormant. An update replaces dormant connections by random ones, which start at 0
    with a random sign.

    The paper rewires after every step until the end: ``update_every=1, end_fraction=1``. With
    longer intervals, dormant connections wait for the update as zeros, and may come back with a
    random sign. The schedule's α has no effect.

    Attributes:
        l1: α of the paper, weight of the L1 prior.
        temperature: T of the paper.

    Raises:
        ValueError: a value is negative or infinite.

    """

    name: ClassVar[str] = "deepr"
    uses_gradient: ClassVar[bool] = False
    moves_weights: ClassVar[bool] = True
    l1: float = 1e-5
    temperature: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("l1", "temperature"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be 0 or more and finite, got {getattr(self, name)}")

    def moved(
        self, weight: Tensor, before: Tensor, learning_rate: float, generator: torch.Generator
    ) -> Tensor:
        """Apply prior and noise to θ; 0 where θ became negative."""

        def normal() -> Tensor:
            return torch.randn(weight.shape, generator=generator).to(weight)

        sign = torch.where(before == 0, normal().sign(), before.sign())
        theta = weight * sign - learning_rate * self.l1
        if self.temperature:
            theta = theta + math.sqrt(2 * learning_rate * self.temperature) * normal()
        return theta.clamp(min=0) * sign

    def plan(
        self,
        layers: Mapping[str, LayerInputs],
        fractions: DropFractions,
    ) -> dict[str, LayerPlan]:
        """Replace the connections that are dormant, except the last one of a protected neuron."""
        plans = {}
        for name, layer in layers.items():
            living = layer.mask & (layer.weight != 0)
            dormant = int(layer.mask.count_nonzero() - living.count_nonzero())
            if not layer.may_ablate:
                held, alive = layer.mask.flatten(1).any(1), living.flatten(1).any(1)
                dormant -= int((held & ~alive).count_nonzero())
            plans[name] = LayerPlan(layer.budget, fractions.current, dormant, layer.may_ablate)
        return plans

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Return uniform noise."""
        return layer.random()
