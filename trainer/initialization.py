"""Masks and weights before the first step."""

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
        mask: "random" positions, or "magnitude": those of the model's largest weights.
        keep_weights: keep the model's weights at the mask's positions instead of drawing new ones.
        weight_std: standard deviation of the drawn weights, k being a neuron's fan-in; "2/k" is
            what the authors' code has.

    Raises:
        ValueError: a value is not one of these, or the masks of largest weights are asked for
            without keeping the weights.

    """

    mask: MaskSource = "random"
    keep_weights: bool = False
    weight_std: WeightStd = "sqrt(2/k)"

    def __post_init__(self) -> None:
        for name, allowed in (("mask", get_args(MaskSource)), ("weight_std", get_args(WeightStd))):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        if self.mask == "magnitude" and not self.keep_weights:
            raise ValueError("mask='magnitude' ranks the model's weights: add keep_weights=True")


def initial_mask(
    shape: tuple[int, ...],
    budget: int,
    generator: torch.Generator,
    structure: Structure | None = None,
) -> Tensor:
    """Bool mask [n, ...] of random positions; by default floor(budget/n) for each neuron.

    Drawn on the CPU, so that a seed means the same mask on every device.
    Raises ValueError when the budget gives a neuron less than one weight.
    """
    scores = torch.rand(shape, generator=generator)
    return (structure or ConstantFanIn()).mask_from_score(scores, budget)


def sparse_init(mask: Tensor, generator: torch.Generator, std: WeightStd = "sqrt(2/k)") -> Tensor:
    """Draw normal float32 weights whose deviation depends on each neuron's own fan-in k.

    "sqrt(2/k)" is He initialisation on the sparse fan-in (SRigL, appendix on output-norm
    variance): the norm of the activations keeps its expectation through ReLU layers. "2/k" is
    what the authors' code has in its place.
    """
    fan_in = mask.flatten(1).sum(1).clamp(min=1).float()
    variance = 2.0 / fan_in
    scale = variance.sqrt() if std == "sqrt(2/k)" else variance
    scale = scale.view(-1, *[1] * (mask.dim() - 1))
    values = torch.randn(mask.shape, generator=generator)
    return (values * scale.cpu()).masked_fill(~mask.cpu(), 0)
