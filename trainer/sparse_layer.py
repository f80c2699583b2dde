"""One sparse weight and its state."""

from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from torch import Tensor, nn

from .gradient_window import GradientWindow, WindowState
from .masking import apply_bits_, mask_bits, memory_format


class LayerState(TypedDict):
    """Everything of a layer but its weight; the last two for dense-to-sparse methods only."""

    budget: int
    mask: Tensor
    explored: Tensor
    window: WindowState
    dense: NotRequired[Tensor]
    trained: NotRequired[Tensor]


@dataclass
class SparseLayer:
    """A weight, its mask and its history.

    Attributes:
        name: qualified parameter name.
        weight: the parameter; neurons are in dimension 0 unless ``input_first``.
        density: target density, from the distribution.
        budget: weights that the layer should hold now.
        may_ablate: whether neurons may be ablated.
        mask: bool, the active positions.
        window: averages dense gradients.
        dense: the weights that keep training behind the mask, for dense-to-sparse methods.
        trained: bool, the dense weights that train; None: all.
        explored: bool, positions that have ever been active.
        bits: the mask as integers as wide as the weight's type.
        input_first: whether the weight is [in, out], with neurons in dimension 1.

    """

    name: str
    weight: nn.Parameter
    density: float
    budget: int
    may_ablate: bool
    mask: Tensor
    window: GradientWindow
    dense: Tensor | None = None
    input_first: bool = False
    trained: Tensor | None = None
    explored: Tensor = field(init=False)
    bits: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.explored = self.mask.clone()
        self.set_mask(self.mask)

    @property
    def dense_weight(self) -> Tensor:
        """``dense`` of a layer that has it.

        Raises:
            RuntimeError: the method is not dense-to-sparse.

        """
        if self.dense is None:
            raise RuntimeError(f"{self.name!r} has no dense weights behind its mask")
        return self.dense

    def turned(self, tensor: Tensor) -> Tensor:
        """Put the neurons of a tensor in the weight's layout into dimension 0, or the reverse."""
        return tensor.t() if self.input_first else tensor

    def set_mask(self, mask: Tensor) -> None:
        """Replace the mask and mark its positions as explored."""
        bits = mask_bits(mask, self.weight.dtype)
        self.mask, self.bits = mask, bits.contiguous(memory_format=memory_format(self.weight))
        self.explored |= mask

    def mask_weight(self) -> None:
        """Zero the weight off the mask.

        Raises:
            RuntimeError: the model has been moved or converted.

        """
        self._zero(self.weight)

    def mask_gradient(self) -> None:
        """Zero the gradient off the mask, if there is one.

        Raises:
            RuntimeError: the model has been moved or converted.

        """
        if self.weight.grad is not None:
            self._zero(self.weight.grad)

    def mask_dense_gradient(self) -> None:
        """Zero the gradient of dense weights that do not train, if there is one."""
        if self.trained is not None and self.weight.grad is not None:
            self.weight.grad.masked_fill_(~self.trained, 0)

    def _zero(self, tensor: Tensor) -> None:
        bits = self.bits
        weight = self.weight
        if tensor is not weight and weight.dtype.itemsize == bits.dtype.itemsize != tensor.itemsize:
            raise RuntimeError(
                f"the gradient of {self.name!r} is {tensor.dtype}, but its weight {weight.dtype}, "
                "and one mask serves both; let gradients have their weights' type (grad_dtype)"
            )
        if tensor.device != bits.device or tensor.dtype.itemsize != bits.dtype.itemsize:
            raise RuntimeError(
                f"{self.name!r} is now {tensor.dtype} on {tensor.device}, but its mask was made "
                f"for {8 * bits.dtype.itemsize} bits on {bits.device}; move and convert the model "
                "before creating its Sparsifier"
            )
        apply_bits_(tensor, bits)

    def state_dict(self) -> LayerState:
        """Return copies of everything but the weight."""
        state: LayerState = {
            "budget": self.budget,
            "mask": self.mask.clone(),
            "explored": self.explored.clone(),
            "window": self.window.state_dict(),
        }
        if self.dense is not None:
            state["dense"] = self.dense.clone()
        if self.trained is not None:
            state["trained"] = self.trained.clone()
        return state

    def load_state_dict(self, state: LayerState) -> None:
        """Restore what ``state_dict`` returned, and mask the weight."""
        device = self.weight.device
        self.budget = state["budget"]
        self.explored = state["explored"].to(device, copy=True)
        self.set_mask(state["mask"].to(device, copy=True))
        self.window.load_state_dict(state["window"], device)
        if self.dense is not None:
            self.dense = state["dense"].to(device, copy=True)
        if self.trained is not None:
            self.trained = state["trained"].to(device, copy=True)
        self.mask_weight()
