"""One sparse weight and everything that belongs to it."""

from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from torch import Tensor, nn

from .gradient_window import GradientWindow, WindowState
from .masking import apply_bits_, mask_bits


class LayerState(TypedDict):
    """Everything of a layer but its weight; ``dense`` for dense-to-sparse methods."""

    budget: int
    mask: Tensor
    explored: Tensor
    window: WindowState
    dense: NotRequired[Tensor]


@dataclass
class SparseLayer:
    """A weight, its mask and its history.

    ``density``: asked by the distribution. ``budget``: weights that it is meant to hold now.
    ``explored``: positions that were ever active. ``dense``: the weights that train on behind the
    mask, for dense-to-sparse methods.
    """

    name: str
    weight: nn.Parameter
    density: float
    budget: int
    may_ablate: bool
    mask: Tensor
    window: GradientWindow
    dense: Tensor | None = None
    explored: Tensor = field(init=False)
    bits: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.explored = self.mask.clone()
        self.set_mask(self.mask)

    @property
    def dense_weight(self) -> Tensor:
        """``dense``, of a layer that has it."""
        if self.dense is None:
            raise RuntimeError(f"{self.name!r} has no dense weights behind its mask")
        return self.dense

    def set_mask(self, mask: Tensor) -> None:
        """Take another mask, and remember what it explores."""
        self.mask, self.bits = mask, mask_bits(mask, self.weight.dtype)
        self.explored |= mask

    def mask_weight(self) -> None:
        """Zero the weight off the mask. Raises RuntimeError when the model has been moved."""
        self._zero(self.weight)

    def mask_gradient(self) -> None:
        """Zero the gradient off the mask, if there is one."""
        if self.weight.grad is not None:
            self._zero(self.weight.grad)

    def _zero(self, tensor: Tensor) -> None:
        bits = self.bits
        if tensor.device != bits.device or tensor.dtype.itemsize != bits.dtype.itemsize:
            raise RuntimeError(
                f"{self.name!r} is now {tensor.dtype} on {tensor.device}, but its mask was made on "
                f"{bits.device} for {8 * bits.dtype.itemsize} bits: move and convert the model "
                "before its Sparsifier is made"
            )
        apply_bits_(tensor, bits)

    def state_dict(self) -> LayerState:
        """Copy everything but the weight."""
        state: LayerState = {
            "budget": self.budget,
            "mask": self.mask.clone(),
            "explored": self.explored.clone(),
            "window": self.window.state_dict(),
        }
        if self.dense is not None:
            state["dense"] = self.dense.clone()
        return state

    def load_state_dict(self, state: LayerState) -> None:
        """Restore what ``state_dict`` returned and mask the weight."""
        device = self.weight.device
        self.budget = state["budget"]
        self.explored = state["explored"].to(device, copy=True)
        self.set_mask(state["mask"].to(device, copy=True))
        self.window.load_state_dict(state["window"], device)
        if self.dense is not None:
            self.dense = state["dense"].to(device, copy=True)
        self.mask_weight()
