"""Dense-to-sparse training: dense weights behind the sparse ones of the model.

The parameter holds the sparse weights during forward and backward passes and the dense ones during
an optimizer step, so that any optimizer trains those, weight decay included (SR-STE, arXiv
2102.04010, section 3.2).
"""

import torch
from torch import Tensor
from torch.optim import Optimizer

from .sparse_layer import SparseLayer
from .structures import Structure


@torch.no_grad()
def expose_dense_weights(layer: SparseLayer, optimizer: Optimizer, decay: float) -> None:
    """Write the dense weights to the parameter, and add their regularization to the gradient.

    Called before an optimizer step. Adds ``decay`` · (weights off the mask), multiplied by the loss
    scale if a gradient scaler leaves the division to a fused optimizer.
    """
    if layer.weight.grad is not None and decay:
        scale = getattr(optimizer, "grad_scale", None)
        factor = decay if scale is None else decay * scale.item()
        layer.weight.grad.add_(layer.dense_weight.masked_fill(layer.mask, 0), alpha=factor)
    layer.weight.copy_(layer.dense_weight)


@torch.no_grad()
def project_to_mask(layer: SparseLayer, structure: Structure) -> None:
    """Store the parameter as dense weights, and keep only the structure's largest in the parameter.

    Called after an optimizer step.
    """
    layer.dense_weight.copy_(layer.weight)
    mask = magnitude_mask(layer.turned(layer.dense_weight), structure, layer.budget)
    layer.set_mask(layer.turned(mask).contiguous())
    layer.mask_weight()


def magnitude_mask(
    weight: Tensor, structure: Structure, budget: int, *, every_neuron: bool = False
) -> Tensor:
    """Return the structure's mask of the largest weights.

    Args:
        weight: float [n, …].
        structure: structure of the mask.
        budget: largest number of true entries.
        every_neuron: no neuron is left without a weight.

    Returns:
        bool, same shape.

    """
    return structure.mask_from_score(weight.detach().abs(), budget, every_neuron=every_neuron)
