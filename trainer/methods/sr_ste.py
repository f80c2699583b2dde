"""SR-STE (arXiv 2102.04010): N:M masks of dense weights that keep training behind them."""

from dataclasses import dataclass
from typing import ClassVar

from ..structures import NM, parse_structure
from .base import check_sparsity


@dataclass(frozen=True)
class SRSTE:
    """N:M sparsity, dense to sparse: the forward pass uses the N largest of every M weights.

    Gradients go straight through to the dense weights, and ``decay`` · (masked weights) is added to
    them (section 3.2). Between steps the model holds the sparse weights; the dense ones are in the
    sparsifier's state. Optimizer closures are refused because they would see the dense weights.

    Attributes:
        structure: "N:M".
        decay: λ_W, weight of the sparse-refined regularization.

    Raises:
        ValueError: the structure is not N:M, or ``decay`` is negative or infinite.

    """

    name: ClassVar[str] = "sr-ste"
    updates: ClassVar[bool] = False
    redistributes: ClassVar[bool] = False
    dense_to_sparse: ClassVar[bool] = True
    uses_gradient: ClassVar[bool] = False
    gradient_momentum: ClassVar[None] = None
    structure: str = "2:4"
    decay: float = 2e-4

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)
        if not 0 <= self.decay < float("inf"):
            raise ValueError(f"decay must be 0 or more and finite, got {self.decay}")

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
