"""One sparse weight and its state.

Of a weight that FSDP2 shards, all tensors here but ``weight`` are the parts of this process.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

import torch
from torch import Tensor, nn

from .gradient_window import GradientWindow, WindowState
from .masking import apply_bits_, mask_bits, memory_format
from .sharding import Sharding, local_part, part_like


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
        sharding: how FSDP2 shards the weight; None: it does not.

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
    sharding: Sharding | None = field(init=False)

    def __post_init__(self) -> None:
        self.sharding = Sharding.of(self.weight)
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

    @property
    def local_weight(self) -> Tensor:
        """The weight, or the part of it that this process holds, in the same memory."""
        return local_part(self.weight)

    @property
    def local_gradient(self) -> Tensor | None:
        """The gradient, or the part of it that this process holds, in the same memory."""
        return None if self.weight.grad is None else local_part(self.weight.grad)

    def whole(self, part: Tensor) -> Tensor:
        """Gather a tensor of the layer from all processes, which must all call it."""
        return part if self.sharding is None else self.sharding.whole(part)

    def part(self, whole: Tensor) -> Tensor:
        """Return this process's part of a tensor of the whole layer."""
        return whole if self.sharding is None else self.sharding.part(whole)

    def distributed(self, part: Tensor) -> Tensor:
        """Return a tensor of the layer as a DTensor if the weight is one, without copying it."""
        return part if self.sharding is None else self.sharding.distributed(part)

    def turned(self, tensor: Tensor) -> Tensor:
        """Put the neurons of a tensor in the weight's layout into dimension 0, or the reverse."""
        return tensor.t() if self.input_first else tensor

    def set_mask(self, mask: Tensor) -> None:
        """Replace the mask and mark its positions as explored."""
        bits = mask_bits(mask, self.weight.dtype)
        self.mask, self.bits = mask, bits.contiguous(memory_format=memory_format(self.local_weight))
        self.explored |= mask

    def mask_weight(self) -> None:
        """Zero the weight off the mask.

        Raises:
            RuntimeError: the model has been moved or converted.

        """
        self._zero(self.local_weight)

    def mask_gradient(self) -> None:
        """Zero the gradient off the mask, if there is one.

        Raises:
            RuntimeError: the model has been moved or converted.

        """
        gradient = self.local_gradient
        if gradient is not None:
            width = self.bits.dtype.itemsize
            if self.weight.dtype.itemsize == width != gradient.dtype.itemsize:
                raise RuntimeError(
                    f"the gradient of {self.name!r} is {gradient.dtype}, but its weight "
                    f"{self.weight.dtype}, and one mask serves both; let gradients have their "
                    "weights' type (grad_dtype)"
                )
            self._zero(gradient)

    @torch.no_grad()
    def mask_copy(self, other: Tensor) -> None:
        """Zero a copy of the weight off the mask, whether the copy is sharded or not."""
        mask = self.mask
        if Sharding.of(other) != self.sharding:
            mask = part_like(other, self.whole(mask))
        part = local_part(other)
        part.masked_fill_(~mask.to(part.device), 0)

    def mask_dense_gradient(self) -> None:
        """Zero the gradient of dense weights that do not train, if there is one."""
        gradient = self.local_gradient
        if self.trained is not None and gradient is not None:
            gradient.masked_fill_(~self.trained, 0)

    def _zero(self, tensor: Tensor) -> None:
        bits = self.bits
        if tensor.device != bits.device or tensor.dtype.itemsize != bits.dtype.itemsize:
            raise RuntimeError(
                f"{self.name!r} is now {tensor.dtype} on {tensor.device}, but its mask was made "
                f"for {8 * bits.dtype.itemsize} bits on {bits.device}; move and convert the model "
                "before creating its Sparsifier"
            )
        apply_bits_(tensor, bits)

    def state_dict(self) -> LayerState:
        """Return copies of everything but the weight.

        Those of a sharded layer are whole and on the CPU, so that any number of processes can load
        them; every process must call this.
        """
        state: LayerState = {
            "budget": self.budget,
            "mask": self._saved(self.mask),
            "explored": self._saved(self.explored),
            "window": self.window.state_dict(self._saved),
        }
        if self.dense is not None:
            state["dense"] = self._saved(self.dense)
        if self.trained is not None:
            state["trained"] = self._saved(self.trained)
        return state

    def load_state_dict(self, state: LayerState) -> None:
        """Restore what ``state_dict`` returned, and mask the weight."""
        self.budget = state["budget"]
        self.explored = self._loaded(state["explored"])
        self.set_mask(self._loaded(state["mask"]))
        self.window.load_state_dict(state["window"], self._loaded)
        if self.dense is not None:
            self.dense = self._loaded(state["dense"])
        if self.trained is not None:
            self.trained = self._loaded(state["trained"])
        self.mask_weight()

    def _saved(self, part: Tensor) -> Tensor:
        return part.clone() if self.sharding is None else self.sharding.whole(part).cpu()

    def _loaded(self, whole: Tensor) -> Tensor:
        if self.sharding is None:
            return whole.to(self.weight.device, copy=True)
        return self.sharding.part(whole)


def check_present(model: nn.Module | None, layers: Iterable[SparseLayer]) -> None:
    """Refuse to go on if the model no longer has a layer's weight, so that another one trains.

    Args:
        model: the model; None if it no longer exists.
        layers: its sparse layers.

    Raises:
        RuntimeError: names the weight.

    """
    if model is None:
        return
    present = {id(weight) for weight in model.parameters()}
    for layer in layers:
        # FSDP2 may still show a gathered weight instead of the sharded one.
        if layer.sharding is None and id(layer.weight) not in present:
            raise RuntimeError(
                f"the model's {layer.name!r} is another parameter than when its Sparsifier was "
                "made. fully_shard and load_state_dict(assign=True) replace parameters: shard and "
                "load the model first, then make the optimizer, then the Sparsifier"
            )
