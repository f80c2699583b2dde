"""Methods that replace weights within each layer: Static, SET, RigL, SRigL."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ..structures import Ablation, ConstantFanIn, Structure
from .base import LayerInputs, SparseMethod


@dataclass(frozen=True)
class Static(SparseMethod):
    """A random mask that never changes."""

    name: ClassVar[str] = "static"
    updates: ClassVar[bool] = False
    uses_gradient: ClassVar[bool] = False
    structure: str = "unstructured"


@dataclass(frozen=True)
class SET(SparseMethod):
    """Sparse evolutionary training (arXiv 1707.04780): drop by magnitude, grow at random.

    The fraction that is replaced follows the schedule's cosine; the original's is constant.
    """

    name: ClassVar[str] = "set"
    uses_gradient: ClassVar[bool] = False
    structure: str = "unstructured"

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Uniform noise."""
        return layer.random()


@dataclass(frozen=True)
class RigL(SparseMethod):
    """RigL (arXiv 1911.11134): drop by magnitude, grow by dense gradient."""

    name: ClassVar[str] = "rigl"
    structure: str = "unstructured"

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Magnitude of the dense gradient."""
        return layer.dense_gradient.abs()


@dataclass(frozen=True)
class SRigL(SparseMethod):
    """Structured RigL (arXiv 2305.02299): constant fan-in, grown by gradient, with ablation.

    ``gamma_sal``: salient share of the fan-in that keeps a neuron alive (from 1 on: salient
    weights; 0: no ablation, which is RigL with structure "constant-fan-in").
    ``reversible``: an ablated neuron may return when its gradients are among the largest.
    ``salient_growth``: "all" counts the largest gradients of all positions, "inactive" those of
    pruned positions only. ``salience``: of K weights being dropped, "practical" takes the
    (active − K) largest weights for salient, "literal" the K largest (the paper's text).
    Raises ValueError for values out of range.
    """

    name: ClassVar[str] = "srigl"
    gamma_sal: float = 0.3
    reversible: bool = True
    salient_growth: Literal["all", "inactive"] = "all"
    salience: Literal["practical", "literal"] = "practical"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma_sal < float("inf"):
            raise ValueError(f"gamma_sal must be 0 or more and finite, got {self.gamma_sal}")
        if self.gamma_sal > 1 and self.gamma_sal != int(self.gamma_sal):
            raise ValueError(
                f"gamma_sal {self.gamma_sal} is neither a share (below 1) nor a whole number"
            )
        for option, allowed in (
            ("salient_growth", ("all", "inactive")),
            ("salience", ("practical", "literal")),
        ):
            if getattr(self, option) not in allowed:
                raise ValueError(
                    f"{option} must be {allowed[0]!r} or {allowed[1]!r}, "
                    f"got {getattr(self, option)!r}"
                )

    def layout(self) -> Structure:
        """Constant fan-in with this ablation."""
        return ConstantFanIn(
            Ablation(self.gamma_sal, self.reversible, self.salient_growth, self.salience)
        )

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Magnitude of the dense gradient."""
        return layer.dense_gradient.abs()
