"""Where weights may stand: anywhere, equally many per neuron, or N of every M.

A structure turns scores into masks: the first one, and each update's. All of it is made of the
two pure updates, ``unstructured_update`` and ``constant_fan_in_update``: N:M sparsity is constant
fan-in N of the rows that a weight has when it is cut into groups of M.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from .selection import top_k, top_k_per_row
from .unstructured import unstructured_update
from .update import LayerRule, LayerUpdate, constant_fan_in_update, updated_layer


@dataclass(frozen=True)
class Ablation:
    """When neurons are removed; the fields are those of ``LayerRule``."""

    gamma_sal: float = 0.0
    reversible: bool = True
    salient_growth: Literal["all", "inactive"] = "all"
    salience: Literal["practical", "literal"] = "practical"


@dataclass(frozen=True)
class Change:
    """How much of a layer an update may change.

    ``budget``: weights that the layer is meant to hold afterwards. ``drop_fraction`` of the
    active weights, or ``drop_count`` of them, are dropped (the second says the same as a number).
    """

    budget: int
    drop_fraction: float
    drop_count: int
    may_ablate: bool


class Structure(Protocol):
    """What methods and sparsifier need of a structure."""

    @property
    def density(self) -> float | None:
        """The only density that a layer can have; None where any is possible."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError when a layer of this shape cannot have the structure."""

    def least_budget(self, shape: tuple[int, ...]) -> int:
        """Fewest weights that a layer of this shape can hold."""

    def mask_from_score(self, score: Tensor, budget: int) -> Tensor:
        """Bool mask of the highest scores that the structure allows, at most ``budget``."""

    def update(
        self, weight: Tensor, mask: Tensor, drop: Tensor, grow: Tensor, change: Change
    ) -> LayerUpdate:
        """Drop the lowest ``drop`` scores, grow the highest ``grow`` scores."""


@dataclass(frozen=True)
class Unstructured:
    """Any weight may exist."""

    @property
    def density(self) -> None:
        """Any."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Every layer can be unstructured."""

    def least_budget(self, shape: tuple[int, ...]) -> int:  # noqa: ARG002
        """One weight: without any, a layer would be silent."""
        return 1

    def mask_from_score(self, score: Tensor, budget: int) -> Tensor:
        """Choose the ``budget`` highest scores of the layer."""
        return top_k(score, budget)

    def update(
        self, weight: Tensor, mask: Tensor, drop: Tensor, grow: Tensor, change: Change
    ) -> LayerUpdate:
        """Layer-wide drop and growth."""
        return unstructured_update(
            weight, mask, drop, grow, drop_count=change.drop_count, budget=change.budget
        )


@dataclass(frozen=True)
class ConstantFanIn:
    """The same number of weights in every neuron that is not ablated."""

    ablation: Ablation = Ablation()

    @property
    def density(self) -> None:
        """Any."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Every layer can have constant fan-in."""

    def least_budget(self, shape: tuple[int, ...]) -> int:
        """One weight per neuron."""
        return shape[0]

    def mask_from_score(self, score: Tensor, budget: int) -> Tensor:
        """Choose the floor(budget/n) highest scores of each neuron."""
        neurons, rows = score.shape[0], score.flatten(1)
        fan_in = budget // neurons
        if not 1 <= fan_in <= rows.shape[1]:
            raise ValueError(
                f"a budget of {budget} weights for {neurons} neurons is a fan-in of {fan_in}; it "
                f"must be between 1 and {rows.shape[1]}"
            )
        counts = torch.full((neurons,), fan_in, device=score.device)
        return top_k_per_row(rows, counts, torch.ones_like(rows, dtype=torch.bool)).view(
            score.shape
        )

    def update(
        self, weight: Tensor, mask: Tensor, drop: Tensor, grow: Tensor, change: Change
    ) -> LayerUpdate:
        """SRigL's update (arXiv 2305.02299, section 3.1) with any two scores."""
        rule = LayerRule(
            budget=change.budget,
            drop_fraction=change.drop_fraction,
            gamma_sal=self.ablation.gamma_sal if change.may_ablate else 0,
            reversible=self.ablation.reversible,
            salient_growth=self.ablation.salient_growth,
            salience=self.ablation.salience,
        )
        return constant_fan_in_update(weight, mask, drop, grow, rule)


@dataclass(frozen=True)
class NM:
    """``n`` weights in every group of ``m`` consecutive inputs (2:4 and the like).

    Inputs are counted in the weight's own order, dimensions after the first flattened.
    Raises ValueError unless 1 ≤ n < m.
    """

    n: int
    m: int

    def __post_init__(self) -> None:
        if not 1 <= self.n < self.m:
            raise ValueError(f"N:M needs 1 ≤ N < M, got {self.n}:{self.m}")

    @property
    def density(self) -> float:
        """N/M."""
        return self.n / self.m

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Only fan-ins that M divides fall into whole groups."""
        fan_in = math.prod(shape[1:])
        if fan_in % self.m:
            raise ValueError(
                f"{name!r} has a fan-in of {fan_in}, which {self.m} does not divide, so it cannot "
                f"be {self.n}:{self.m} sparse. Name it in dense_layers."
            )

    def least_budget(self, shape: tuple[int, ...]) -> int:
        """Return the only budget that there is."""
        return math.prod(shape) * self.n // self.m

    def mask_from_score(self, score: Tensor, budget: int) -> Tensor:  # noqa: ARG002
        """Choose the N highest scores of each group; the budget follows from N and M."""
        groups = score.reshape(-1, self.m)
        counts = torch.full((len(groups),), self.n, device=score.device)
        chosen = top_k_per_row(groups, counts, torch.ones_like(groups, dtype=torch.bool))
        return chosen.view(score.shape)

    def update(
        self, weight: Tensor, mask: Tensor, drop: Tensor, grow: Tensor, change: Change
    ) -> LayerUpdate:
        """Drop over the whole layer; each group grows up to N weights again."""
        weights, masks, drops, grows = (
            tensor.detach().reshape(-1, self.m) for tensor in (weight, mask, drop, grow)
        )
        rule = LayerRule(len(weights) * self.n, change.drop_fraction, gamma_sal=0)
        grouped = constant_fan_in_update(weights, masks, drops, grows, rule)
        return updated_layer(weight, mask, grouped.mask)


def parse_structure(text: str, ablation: Ablation | None = None) -> Structure:
    """Structure by name: "unstructured", "constant-fan-in", or "N:M" such as "2:4".

    ``ablation`` goes with constant fan-in only. Raises ValueError for anything else.
    """
    if text == "unstructured":
        return Unstructured()
    if text == "constant-fan-in":
        return ConstantFanIn(ablation or Ablation())
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None:
        raise ValueError(
            f"structure must be 'unstructured', 'constant-fan-in' or 'N:M' such as '2:4', "
            f"got {text!r}"
        )
    return NM(int(match[1]), int(match[2]))
