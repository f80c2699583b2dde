"""Masks and weights before the first step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from .structures import ConstantFanIn, Structure

WeightStd = Literal["sqrt(2/k)", "2/k"]
MaskSource = Literal["random", "magnitude"]


@dataclass(frozen=True)
class InitializationOptions:
    """Which masks and weights a ``Sparsifier`` starts from.

    Attributes:
        mask: "random" positions, or "magnitude": the positions of the model's largest weights;
            None: the largest of weights that are kept, random positions for those that are drawn.
            Or masks of all sparse layers, bool by parameter name, such as those of a model that
            is already sparse and trained on; they must fit the method.
        keep_weights: keep the model's weights on the mask (True) or draw new ones (False). None:
            draw new ones where the weights are those that torch drew for a new layer, and keep all
            others with a warning, since they may be trained.
        weight_std: standard deviation of the drawn weights, with k the fan-in of a neuron; "2/k" is
            that of the authors' code.

    Raises:
        TypeError: a given mask is no bool tensor.
        ValueError: an unknown value, or "magnitude" without ``keep_weights``.

    """

    mask: MaskSource | Mapping[str, Tensor] | None = None
    keep_weights: bool | None = None
    weight_std: WeightStd = "sqrt(2/k)"

    def __post_init__(self) -> None:
        sources = (None, *get_args(MaskSource))
        for name, allowed in (("mask", sources), ("weight_std", get_args(WeightStd))):
            if name == "mask" and isinstance(self.mask, Mapping):
                _check_masks(self.mask)
                continue
            if getattr(self, name) not in allowed:
                names = ", ".join(map(str, allowed))
                raise ValueError(f"{name} must be one of {names}, got {getattr(self, name)!r}")
        if self.mask == "magnitude" and not self.keep_weights:
            raise ValueError("mask='magnitude' ranks the model's weights: add keep_weights=True")


def _check_masks(masks: Mapping[str, Tensor]) -> None:
    for name, mask in masks.items():
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise TypeError(
                f"mask must map parameter names to bool tensors, but that of {name!r} is {kind}; "
                "weights that are sparse already have the mask weight != 0"
            )


def initial_mask(
    shape: tuple[int, ...],
    budget: int,
    generator: torch.Generator,
    structure: Structure | None = None,
    *,
    every_neuron: bool = False,
) -> Tensor:
    """Draw a random mask.

    Drawn on the CPU, so that a seed gives the same mask on every device.

    Args:
        shape: shape of the weight, neurons first.
        budget: weights of the layer.
        generator: CPU generator.
        structure: None: constant fan-in, floor(budget/n) weights for each of n neurons.
        every_neuron: no neuron is left without a weight.

    Returns:
        bool, of this shape.

    Raises:
        ValueError: the budget gives a neuron less than one weight.

    """
    scores = torch.rand(shape, generator=generator)
    chosen = structure or ConstantFanIn()
    return chosen.mask_from_score(scores, budget, every_neuron=every_neuron)


def sparse_init(mask: Tensor, generator: torch.Generator, std: WeightStd = "sqrt(2/k)") -> Tensor:
    """Draw normal weights whose standard deviation depends on the fan-in k of each neuron.

    "sqrt(2/k)" is He initialization on the sparse fan-in (SRigL, arXiv 2305.02299, appendix A; Evci
    et al., arXiv 2010.03533): it keeps the expected norm of activations through ReLU layers. "2/k"
    is what the authors' code has instead.

    Args:
        mask: bool [n, …].
        generator: CPU generator.
        std: standard deviation.

    Returns:
        float32 of the mask's shape, on the CPU; 0 off the mask.

    """
    fan_in = mask.flatten(1).sum(1).clamp(min=1).float()
    variance = 2.0 / fan_in
    scale = variance.sqrt() if std == "sqrt(2/k)" else variance
    scale = scale.view(-1, *[1] * (mask.dim() - 1))
    values = torch.randn(mask.shape, generator=generator)
    return (values * scale.cpu()).masked_fill(~mask.cpu(), 0)
