"""Masks and weights before the first step."""

import torch
from torch import Tensor


def initial_mask(shape: tuple[int, ...], budget: int, generator: torch.Generator) -> Tensor:
    """Bool mask [n, ...] in which each neuron has floor(budget/n) random positions.

    Drawn on the CPU, so that a seed means the same mask on every device.
    Raises ValueError when the budget gives a neuron less than one weight.
    """
    neurons = shape[0]
    fan_in = budget // neurons
    scores = torch.rand(neurons, int(torch.Size(shape[1:]).numel()), generator=generator)
    if not 1 <= fan_in <= scores.shape[1]:
        raise ValueError(
            f"a budget of {budget} weights for {neurons} neurons is a fan-in of {fan_in}; it must "
            f"be between 1 and {scores.shape[1]}"
        )
    positions = scores.topk(fan_in, dim=1).indices
    mask = torch.zeros(scores.shape, dtype=torch.bool)
    return mask.scatter_(1, positions, True).view(shape)


def sparse_init(mask: Tensor, generator: torch.Generator) -> Tensor:
    """Draw normal float32 weights of deviation √(2/k) from each neuron's own fan-in k.

    He initialisation on the sparse fan-in (SRigL, appendix on output-norm variance): the norm
    of the activations keeps its expectation through ReLU layers.
    """
    fan_in = mask.flatten(1).sum(1).clamp(min=1).float()
    std = (2.0 / fan_in).sqrt().view(-1, *[1] * (mask.dim() - 1))
    values = torch.randn(mask.shape, generator=generator)
    return (values * std.cpu()).masked_fill(~mask.cpu(), 0)
