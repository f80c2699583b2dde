"""Dense-to-sparse training: dense weights behind the sparse ones that the model shows.

The parameter holds the sparse weights while forward and backward run. Around an optimizer step it
holds the dense ones, so that any optimizer, with its weight decay, trains those (SR-STE,
arXiv 2102.04010, section 3.2).
"""

import torch
from torch import Tensor
from torch.optim import Optimizer

from .sparse_layer import SparseLayer
from .structures import Structure


@torch.no_grad()
def show_dense(layer: SparseLayer, optimizer: Optimizer, decay: float) -> None:
    """Before an optimizer step: gradient of the dense weights, and the weights themselves.

    Adds ``decay`` · (weights off the mask), multiplied by the scale that a gradient scaler lets a
    fused optimizer divide by.
    """
    if layer.weight.grad is not None and decay:
        scale = getattr(optimizer, "grad_scale", None)
        factor = decay if scale is None else decay * scale.item()
        layer.weight.grad.add_(layer.dense_weight.masked_fill(layer.mask, 0), alpha=factor)
    layer.weight.copy_(layer.dense_weight)


@torch.no_grad()
def hide_dense(layer: SparseLayer, structure: Structure) -> None:
    """After an optimizer step: keep the dense weights, and show the structure's largest."""
    layer.dense_weight.copy_(layer.weight)
    layer.set_mask(mask_of_largest(layer.dense_weight, structure, layer.budget))
    layer.mask_weight()


def mask_of_largest(weight: Tensor, structure: Structure, budget: int) -> Tensor:
    """Take the structure's mask of the largest weights."""
    return structure.mask_from_score(weight.detach().abs(), budget)
