"""Structures of masks: unstructured, constant fan-in, blocks of neurons, and N:M.

A structure turns scores into masks, the initial one and that of each update. All are built on two
pure functions, ``unstructured_update`` and ``constant_fan_in_update``: N:M sparsity is constant
fan-in N of the rows that result from cutting a weight into groups of M, and blocks of neurons are
constant fan-in of their means.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .selection import top_k, top_k_per_row
from .unstructured import prefer_one_per_neuron, unstructured_update
from .update import LayerRule, LayerUpdate, check_layer, constant_fan_in_update, updated_layer


@dataclass(frozen=True)
class Ablation:
    """When neurons are ablated; the fields are those of ``LayerRule``."""

    gamma_sal: float = 0.0
    reversible: bool = True
    salient_growth: Literal["all", "inactive"] = "all"
    salience: Literal["practical", "literal"] = "practical"


@dataclass(frozen=True)
class LayerPlan:
    """What one update should do to one layer.

    Attributes:
        budget: weights that the layer should hold afterwards.
        drop_fraction: fraction of the active weights to drop, for structures that drop by fraction.
        drop_count: number of active weights to drop, for structures that drop by count.
        may_ablate: whether neurons may lose all their weights.
        removed: bool [n], neurons that must hold no weights afterwards, for methods that choose
            them; None: none.

    """

    budget: int
    drop_fraction: float
    drop_count: int
    may_ablate: bool
    removed: Tensor | None = None


class Structure:
    """The constraints on a layer's mask, as methods and sparsifier use them."""

    @property
    def density(self) -> float | None:
        """The only density that a layer can have, or None if any is possible."""
        return None

    @property
    def loses_neurons(self) -> bool:
        """Whether an update may leave an unprotected neuron without weights."""
        return False

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError if a layer of this shape cannot have the structure."""

    def allows(self, mask: Tensor) -> bool:  # noqa: ARG002
        """Return whether a mask, bool [n, …], can be one of this structure's after updates."""
        return True

    def least_budget(self, shape: tuple[int, ...]) -> int:
        """Return the fewest weights that a layer of this shape can hold."""
        raise NotImplementedError

    def mask_from_score(self, score: Tensor, budget: int, *, every_neuron: bool = False) -> Tensor:
        """Return the mask of the highest scores that the structure allows.

        Args:
            score: float [n, …].
            budget: largest number of true entries.
            every_neuron: no neuron is left without a weight, which some structures imply.

        Returns:
            bool, same shape.

        """
        raise NotImplementedError

    def update(
        self, weight: Tensor, mask: Tensor, drop: Tensor, grow: Tensor, plan: LayerPlan
    ) -> LayerUpdate:
        """Drop the lowest ``drop`` scores of active weights and grow the highest ``grow`` scores.

        All tensors have the shape [n, …] of the weight; the mask is bool, the scores are float.

        Raises:
            ValueError: shapes differ, a score is not finite, or the plan does not fit the layer.

        """
        raise NotImplementedError


@dataclass(frozen=True)
class Unstructured(Structure):
    """No constraint: any position may be active."""

    @property
    def loses_neurons(self) -> bool:
        """Return True."""
        return True

    def least_budget(self, shape: tuple[int, ...]) -> int:  # noqa: ARG002
        """Return 1: a layer without weights would output its bias only."""
        return 1

    def mask_from_score(self, score: Tensor, budget: int, *, every_neuron: bool = False) -> Tensor:
        """Select the ``budget`` highest scores of the layer, those of neurons' best first."""
        if every_neuron:
            score = prefer_one_per_neuron(score, torch.ones_like(score, dtype=torch.bool))
        return top_k(score, budget)

    def update(
        self, weight: Tensor, mask: Tensor, drop: Tensor, grow: Tensor, plan: LayerPlan
    ) -> LayerUpdate:
        """Drop and grow over the whole layer."""
        return unstructured_update(
            weight,
            mask,
            drop,
            grow,
            drop_count=plan.drop_count,
            budget=plan.budget,
            every_neuron=not plan.may_ablate,
        )


@dataclass(frozen=True)
class ConstantFanIn(Structure):
    """Every neuron that is not ablated holds the same number of weights."""

    ablation: Ablation = Ablation()

    @property
    def loses_neurons(self) -> bool:
        """Return whether there is ablation."""
        return self.ablation.gamma_sal > 0

    def allows(self, mask: Tensor) -> bool:
        """Return whether all neurons with weights have equally many; others may be ablated."""
        return len(set(mask.flatten(1).sum(1).tolist()) - {0}) == 1

    def least_budget(self, shape: tuple[int, ...]) -> int:
        """Return one weight per neuron."""
        return shape[0]

    def mask_from_score(self, score: Tensor, budget: int, *, every_neuron: bool = False) -> Tensor:  # noqa: ARG002
        """Select the floor(budget/n) highest scores of each of the n neurons."""
        neurons, rows = score.shape[0], score.flatten(1)
        fan_in = budget // neurons
        if not 1 <= fan_in <= rows.shape[1]:
            raise ValueError(
                f"a budget of {budget} weights gives {neurons} neurons a fan-in of {fan_in}, which "
                f"must be between 1 and {rows.shape[1]}"
            )
        return _top_per_row(rows, fan_in).view(score.shape)

    def update(
        self, weight: Tensor, mask: Tensor, drop: Tensor, grow: Tensor, plan: LayerPlan
    ) -> LayerUpdate:
        """Apply SRigL's update (arXiv 2305.02299, section 3.1) to any two scores."""
        rule = LayerRule(
            budget=plan.budget,
            drop_fraction=plan.drop_fraction,
            gamma_sal=self.ablation.gamma_sal if plan.may_ablate else 0,
            reversible=self.ablation.reversible,
            salient_growth=self.ablation.salient_growth,
            salience=self.ablation.salience,
        )
        return constant_fan_in_update(weight, mask, drop, grow, rule)


@dataclass(frozen=True)
class Blocks(Structure):
    """Constant fan-in, with the same inputs for all neurons of a block.

    A block are ``size`` consecutive neurons, the last one those that are left. DSB (Jiang et al.,
    NeurIPS 2022) also shuffles neurons between blocks during the training; here they stay.

    Attributes:
        size: neurons of a block.

    Raises:
        ValueError: the size is below 2.

    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ValueError(f"a block needs at least 2 neurons, got {self.size}")

    def allows(self, mask: Tensor) -> bool:
        """Return whether fan-ins are equal, and inputs the same for all neurons of a block."""
        means = self._means(mask.float())
        same = bool(((means == 0) | (means == 1)).all())
        return same and ConstantFanIn().allows(mask)

    def least_budget(self, shape: tuple[int, ...]) -> int:
        """Return one weight per neuron."""
        return shape[0]

    def mask_from_score(self, score: Tensor, budget: int, *, every_neuron: bool = False) -> Tensor:
        """Select the inputs of each block with the highest mean scores, floor(budget/n) of them."""
        means = self._means(score)
        fan_in = ConstantFanIn().mask_from_score(
            means, budget // score.shape[0] * len(means), every_neuron=every_neuron
        )
        return self._spread(fan_in, score.shape)

    def update(
        self, weight: Tensor, mask: Tensor, drop: Tensor, grow: Tensor, plan: LayerPlan
    ) -> LayerUpdate:
        """Drop the inputs with the lowest mean score of a block, then grow those with the highest.

        A neuron of a mask that is not in blocks counts where most of its block's neurons agree.
        """
        check_layer(weight, mask, drop, grow)
        before = self._means(mask.float()) > 0.5
        rule = LayerRule(
            plan.budget // weight.shape[0] * len(before), plan.drop_fraction, gamma_sal=0
        )
        drops, grows = self._means(drop.detach()), self._means(grow.detach())
        blocks = constant_fan_in_update(torch.zeros_like(drops), before, drops, grows, rule)
        return updated_layer(weight, mask, self._spread(blocks.mask, weight.shape))

    def _means(self, tensor: Tensor) -> Tensor:
        """Average [n, …] over the neurons of each block: [blocks, d]."""
        return torch.stack([part.mean(0) for part in torch.split(tensor.flatten(1), self.size)])

    def _spread(self, blocks: Tensor, shape: torch.Size) -> Tensor:
        """Give each neuron the row of its block."""
        return blocks.repeat_interleave(self.size, 0)[: shape[0]].reshape(shape)


@dataclass(frozen=True)
class NM(Structure):
    """``n`` weights in every group of ``m`` consecutive inputs, such as 2:4.

    A group of a convolution are m consecutive input channels at one position of the window, as the
    hardware and the authors of SR-STE have it.

    Attributes:
        n: weights in each group.
        m: inputs of a group.
        flat: count inputs in the memory order of the weight, all dimensions after the first
            flattened, so that groups of a convolution run over its window; for masks from states of
            version 1.

    Raises:
        ValueError: unless 1 ≤ n < m.

    """

    n: int
    m: int
    flat: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.n < self.m:
            raise ValueError(f"N:M needs 1 ≤ N < M, got {self.n}:{self.m}")

    @property
    def density(self) -> float:
        """N/M."""
        return self.n / self.m

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Accept shapes whose inputs M divides."""
        inputs = math.prod(shape[1:]) if self.flat else shape[1]
        if inputs % self.m:
            kind = "fan-in" if self.flat or len(shape) == 2 else "number of input channels"
            raise ValueError(
                f"{name!r} cannot be {self.n}:{self.m} sparse, since its {kind} of {inputs} is not "
                f"a multiple of {self.m}. Add it to dense_layers."
            )

    def allows(self, mask: Tensor) -> bool:
        """Return whether each group holds N weights."""
        return bool((self._groups(mask).sum(1) == self.n).all())

    def least_budget(self, shape: tuple[int, ...]) -> int:
        """Return the only possible budget."""
        return math.prod(shape) * self.n // self.m

    def mask_from_score(self, score: Tensor, budget: int, *, every_neuron: bool = False) -> Tensor:  # noqa: ARG002
        """Select the N highest scores of each group; the budget follows from N and M."""
        return self._restored(_top_per_row(self._groups(score), self.n), score.shape)

    def update(
        self, weight: Tensor, mask: Tensor, drop: Tensor, grow: Tensor, plan: LayerPlan
    ) -> LayerUpdate:
        """Drop over the whole layer, then grow each group to N weights again."""
        weights, masks, drops, grows = (
            self._groups(tensor.detach()) for tensor in (weight, mask, drop, grow)
        )
        rule = LayerRule(len(weights) * self.n, plan.drop_fraction, gamma_sal=0)
        grouped = constant_fan_in_update(weights, masks, drops, grows, rule)
        return updated_layer(weight, mask, self._restored(grouped.mask, weight.shape))

    def _groups(self, tensor: Tensor) -> Tensor:
        """Cut [n, …] into rows of one group each."""
        return (tensor if self.flat else tensor.movedim(1, -1)).reshape(-1, self.m)

    def _restored(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """Undo ``_groups``."""
        if self.flat:
            return rows.view(shape)
        return rows.view(shape[0], *shape[2:], shape[1]).movedim(-1, 1).contiguous()


def _top_per_row(score: Tensor, k: int) -> Tensor:
    """Select the ``k`` highest scores of each row: float [n, d] to bool [n, d]."""
    counts = torch.full((len(score),), k, device=score.device)
    return top_k_per_row(score, counts, torch.ones_like(score, dtype=torch.bool))


def parse_structure(text: str, ablation: Ablation | None = None) -> Structure:
    """Return the structure with this name.

    Args:
        text: "unstructured", "constant-fan-in", "block-16" or another size (see ``Blocks``), or
            "N:M" such as "2:4" ("2:4-flat": see ``NM``).
        ablation: when neurons are ablated; only for constant fan-in.

    Raises:
        ValueError: the name is none of these.

    """
    if text == "unstructured":
        return Unstructured()
    if text == "constant-fan-in":
        return ConstantFanIn(ablation or Ablation())
    if block := re.fullmatch(r"block-(\d+)", text):
        return Blocks(int(block[1]))
    match = re.fullmatch(r"(\d+):(\d+)(-flat)?", text)
    if match is None:
        raise ValueError(
            f"structure must be 'unstructured', 'constant-fan-in', a block such as 'block-16' or "
            f"'N:M' such as '2:4', got {text!r}"
        )
    return NM(int(match[1]), int(match[2]), flat=match[3] is not None)
