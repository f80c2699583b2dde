"""Methods whose dense weights keep training behind the mask: SR-STE and Top-KAST.

The mask is always that of the structure's largest dense weights. Between steps the model holds the
sparse weights; the dense ones are in the sparsifier's state.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..structures import NM, Structure, parse_structure
from .base import check_sparsity


class DenseToSparse:
    """Base of these methods: what is trained behind the mask, and what pulls it towards zero."""

    name: ClassVar[str]
    updates: ClassVar[bool] = False
    redistributes: ClassVar[bool] = False
    dense_to_sparse: ClassVar[bool] = True
    uses_gradient: ClassVar[bool] = False
    gradient_momentum: ClassVar[None] = None
    starts_dense: ClassVar[bool] = False

    @property
    def mask_every(self) -> int:
        """Optimizer steps between two choices of the mask."""
        return 1

    def mask_structure(self) -> Structure:
        """Return the structure of every sparse layer."""
        raise NotImplementedError

    def trained_budget(self, budget: int, size: int) -> int:  # noqa: ARG002
        """Return how many of the largest weights of a layer are trained; all unless overridden.

        Args:
            budget: weights of the layer's mask.
            size: weights of the layer.

        """
        return size

    def penalty_gradient(self, dense: Tensor, mask: Tensor, trained: Tensor | None) -> Tensor:
        """Return the gradient of the regularization of one layer.

        Args:
            dense: float, the weights behind the mask.
            mask: bool, same shape, the weights of the forward pass.
            trained: bool, same shape, the weights that the step may change; None: all.

        """
        raise NotImplementedError


@dataclass(frozen=True)
class SRSTE(DenseToSparse):
    """N:M sparsity (SR-STE, arXiv 2102.04010): the forward pass uses the N largest of M weights.

    Gradients go straight through to the dense weights, and ``decay`` · (masked weights) is added to
    them (section 3.2).

    Attributes:
        structure: "N:M".
        decay: λ_W, weight of the sparse-refined regularization.

    Raises:
        ValueError: the structure is not N:M, or ``decay`` is negative or infinite.

    """

    name: ClassVar[str] = "sr-ste"
    structure: str = "2:4"
    decay: float = 2e-4

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)
        _check_decay(self.decay)

    @property
    def sparsity(self) -> float:
        """1 − N/M."""
        return 1 - self.mask_structure().density

    def mask_structure(self) -> NM:
        """Return the N:M structure."""
        structure = parse_structure(self.structure)
        if not isinstance(structure, NM):
            raise ValueError(f"SR-STE trains N:M sparsity, got structure {self.structure!r}")
        return structure

    def penalty_gradient(self, dense: Tensor, mask: Tensor, trained: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return ``decay`` · (weights off the mask)."""
        return dense.masked_fill(mask, 0) * self.decay


@dataclass(frozen=True)
class TopKAST(DenseToSparse):
    """Top-KAST (arXiv 2106.03517): a large set is trained, its largest weights are used.

    The forward pass uses set A, the largest weights; gradients reach the larger set B; all others
    stay as they are (section 2.1). B explores: its weights outside A move until they displace
    others.

    Attributes:
        sparsity: fraction of weights outside A, in (0, 1).
        backward_sparsity: fraction of weights outside B, in [0, ``sparsity``]. A layer whose
            density differs from that of the model scales its B alike, up to all weights.
        decay: weight of the exploration loss (section 2.3): ½ · ``decay`` · w² for weights of A,
            divided by the density of A for the others of B.
        mask_every: optimizer steps between two choices of A and B (the paper's N, section 2.2).
        structure: "unstructured", "constant-fan-in" or blocks, such as "block-16".

    Raises:
        ValueError: a value is out of range, or the structure has one density only.

    """

    name: ClassVar[str] = "top-kast"
    sparsity: float
    backward_sparsity: float = 0.5
    decay: float = 1e-4
    mask_every: int = 1
    structure: str = "unstructured"

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)
        _check_decay(self.decay)
        if not 0 <= self.backward_sparsity <= self.sparsity:
            raise ValueError(
                f"backward_sparsity must be between 0 and sparsity ({self.sparsity}), "
                f"got {self.backward_sparsity}"
            )
        if not isinstance(self.mask_every, int) or self.mask_every < 1:
            raise ValueError(f"mask_every must be a whole number from 1, got {self.mask_every!r}")
        density = self.mask_structure().density
        if density is not None:
            raise ValueError(
                f"Top-KAST takes two densities, and structure {self.structure!r} has only one"
            )

    def mask_structure(self) -> Structure:
        """Return the structure of both sets."""
        return parse_structure(self.structure)

    def trained_density(self, density: float) -> float:
        """Return the density of B in a layer whose A has this density."""
        return min(1.0, density * (1 - self.backward_sparsity) / (1 - self.sparsity))

    def trained_budget(self, budget: int, size: int) -> int:
        """Return the size of B."""
        return round(self.trained_density(budget / size) * size)

    def penalty_gradient(self, dense: Tensor, mask: Tensor, trained: Tensor | None) -> Tensor:
        """Return ``decay`` · w on A, and that over the density of A on the rest of B."""
        density = max(1, int(mask.count_nonzero())) / mask.numel()
        exploring = torch.where(mask, dense, dense / density)
        if trained is not None:
            exploring = exploring.masked_fill(~trained, 0)
        return exploring * self.decay


def _check_decay(decay: float) -> None:
    if not 0 <= decay < float("inf"):
        raise ValueError(f"decay must be 0 or more and finite, got {decay}")
