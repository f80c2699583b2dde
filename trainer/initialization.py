"""Masks and weights before the first step."""

from typing import Literal

import torch
from torch import Tensor

from .structures import ConstantFanIn, Structure

Deviation = Literal["sqrt(2/k)", "2/k"]


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


def sparse_init(
    mask: Tensor, generator: torch.Generator, deviation: Deviation = "sqrt(2/k)"
) -> Tensor:
    """Draw normal float32 weights whose deviation depends on each neuron's own fan-in k.

    "sqrt(2/k)" is He initialisation on the sparse fan-in (SRigL, appendix on output-norm
    variance): the norm of the activations keeps its expectation through ReLU layers. "2/k" is
    what the authors' code has in its place.
    """
    fan_in = mask.flatten(1).sum(1).clamp(min=1).float()
    variance = 2.0 / fan_in
    std = variance.sqrt() if deviation == "sqrt(2/k)" else variance
    std = std.view(-1, *[1] * (mask.dim() - 1))
    values = torch.randn(mask.shape, generator=generator)
    return (values * std.cpu()).masked_fill(~mask.cpu(), 0)
