"""Methods that replace weights within each layer: Static, SET, RigL, SRigL."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..structures import Ablation, ConstantFanIn, Structure
from .base import LayerInputs, SparseMethod


@dataclass(frozen=True)
class Static(SparseMethod):
    """A random mask that never changes.

    Attributes:
        structure: "unstructured", "constant-fan-in", "block-16" or "N:M" (see ``parse_structure``).

    """

    name: ClassVar[str] = "static"
    updates: ClassVar[bool] = False
    uses_gradient: ClassVar[bool] = False
    structure: str = "unstructured"


@dataclass(frozen=True)
class SET(SparseMethod):
    """Sparse evolutionary training (arXiv 1707.04780): drop by magnitude, grow at random.

    The drop fraction follows the schedule's cosine; the original keeps it constant.

    Attributes:
        structure: "unstructured", "constant-fan-in", "block-16" or "N:M" (see ``parse_structure``).

    """

    name: ClassVar[str] = "set"
    uses_gradient: ClassVar[bool] = False
    structure: str = "unstructured"

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Return uniform noise."""
        return layer.random()


@dataclass(frozen=True)
class RigL(SparseMethod):
    """RigL (arXiv 1911.11134): drop by magnitude, grow by dense gradient.

    Attributes:
        structure: "unstructured", "constant-fan-in", "block-16" or "N:M" (see ``parse_structure``).

    """

    name: ClassVar[str] = "rigl"
    structure: str = "unstructured"

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Return the magnitude of the dense gradient."""
        return layer.dense_gradient.abs()


@dataclass(frozen=True)
class SRigL(SparseMethod):
    """Structured RigL (arXiv 2305.02299): constant fan-in, grown by gradient, with neuron ablation.

    Attributes:
        gamma_sal: fraction of a neuron's fan-in that must be salient for it to survive; from 1 on,
            the number of weights; 0: no ablation, the same as RigL with structure
            "constant-fan-in".
        reversible: whether an ablated neuron becomes active again when its gradients are among the
            largest.
        salient_growth: count the largest gradients of "all" positions, or only of "inactive" ones.
        ablated_gradients: "raw", as in the authors' code, or "capped": where the gradients of an
            ablated neuron are larger on average than those of the median live neuron, they are
            scaled down to it. A batch norm multiplies the gradients of an ablated filter, whose
            output is constant, by up to 1/√ε ≈ 300, so that they crowd out all others.
        salience: with K the number of dropped weights, "practical" counts the (active − K) largest
            weights as salient, "literal" the K largest (the paper's text).

    Raises:
        ValueError: a value is out of range.

    """

    name: ClassVar[str] = "srigl"
    gamma_sal: float = 0.3
    reversible: bool = True
    salient_growth: Literal["all", "inactive"] = "all"
    salience: Literal["practical", "literal"] = "practical"
    ablated_gradients: Literal["raw", "capped"] = "raw"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma_sal < float("inf"):
            raise ValueError(f"gamma_sal must be 0 or more and finite, got {self.gamma_sal}")
        if self.gamma_sal > 1 and self.gamma_sal != int(self.gamma_sal):
            raise ValueError(
                f"gamma_sal must be a fraction below 1 or a whole number, got {self.gamma_sal}"
            )
        for option, allowed in (
            ("salient_growth", ("all", "inactive")),
            ("salience", ("practical", "literal")),
            ("ablated_gradients", ("raw", "capped")),
        ):
            if getattr(self, option) not in allowed:
                raise ValueError(
                    f"{option} must be {allowed[0]!r} or {allowed[1]!r}, "
                    f"got {getattr(self, option)!r}"
                )

    def mask_structure(self) -> Structure:
        """Return constant fan-in with this method's ablation."""
        return ConstantFanIn(
            Ablation(self.gamma_sal, self.reversible, self.salient_growth, self.salience)
        )

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Return the magnitude of the dense gradient."""
        score = layer.dense_gradient.abs()
        return score if self.ablated_gradients == "raw" else _capped(score, layer.mask)


def _capped(score: Tensor, mask: Tensor) -> Tensor:
    """Scale the scores of neurons without weights down to the mean of the median live neuron."""
    live, means = mask.flatten(1).any(1), score.flatten(1).mean(1)
    if not live.any():
        return score
    # The mean is 0 where all scores are, and any factor does.
    factor = (means[live].median() / means.clamp(min=torch.finfo(means.dtype).tiny)).clamp(max=1)
    return score * factor.masked_fill(live, 1).view(-1, *[1] * (score.dim() - 1))
