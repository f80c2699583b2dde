"""Dense-to-sparse training: dense weights behind the sparse ones of the model.

The parameter holds the sparse weights during forward and backward passes and the dense ones during
an optimizer step, so that any optimizer trains those, weight decay included (SR-STE, arXiv
2102.04010, section 3.2; Top-KAST, arXiv 2106.03517, section 2).
"""

from collections.abc import Collection

import torch
from torch import Tensor
from torch.optim import Optimizer

from .methods import DenseToSparse
from .sparse_layer import SparseLayer
from .structures import Structure


@torch.no_grad()
def expose_dense_weights(
    layer: SparseLayer, optimizer: Optimizer, method: DenseToSparse, *, penalize: bool
) -> None:
    """Write the dense weights to the parameter, for the optimizer's step.

    Args:
        layer: the layer.
        optimizer: the optimizer.
        method: the method.
        penalize: add the weights' regularization to the gradient, multiplied by the loss scale if a
            gradient scaler leaves the division to a fused optimizer.

    """
    take_weight(layer)
    gradient = layer.local_gradient
    if penalize and gradient is not None:
        scale = getattr(optimizer, "grad_scale", None)
        trained = None if layer.trained is None else layer.whole(layer.trained)
        penalty = method.penalty_gradient(
            layer.whole(layer.dense_weight), layer.whole(layer.mask), trained
        )
        gradient.add_(layer.part(penalty), alpha=1 if scale is None else scale.item())
    layer.local_weight.copy_(layer.dense_weight)


@torch.no_grad()
def take_weight(layer: SparseLayer) -> None:
    """Let the dense weights have the model's values on the mask, which may have been changed.

    Lookahead does so after the optimizer's step, and whoever clips or loads weights.
    """
    dense = layer.dense_weight
    dense.copy_(torch.where(layer.mask, layer.local_weight, dense))


@torch.no_grad()
def check_finite(layers: Collection[SparseLayer], step: int) -> None:
    """Refuse dense weights of which no largest can be chosen, after an optimizer step.

    Raises:
        ValueError: weights are not finite; names their layer.

    """
    sums = [layer.local_weight.sum(dtype=torch.float32) for layer in layers]
    if torch.stack([total.to(sums[0].device) for total in sums]).isfinite().all():
        return  # waits for the device only once
    for layer in layers:
        if not layer.local_weight.isfinite().all():
            raise ValueError(
                f"step {step}: the mask of {layer.name!r} cannot be chosen: its weights are not "
                "finite, so training has diverged; try a smaller learning rate"
            )


@torch.no_grad()
def project_to_mask(layer: SparseLayer, method: DenseToSparse, *, choose: bool = True) -> None:
    """Store the parameter as dense weights, and keep only the mask's in the parameter.

    Called after an optimizer step. Weights that are not trained are as they were before it.

    Args:
        layer: the layer, its parameter holding the dense weights.
        method: the method.
        choose: choose the mask anew, and the weights that are trained.

    """
    dense, parameter = layer.dense_weight, layer.local_weight
    if layer.trained is None:
        dense.copy_(parameter)
    else:
        dense.copy_(torch.where(layer.trained, parameter, dense))
        parameter.copy_(dense)
    if choose:
        weight, structure = layer.turned(layer.whole(dense)), method.mask_structure()
        every_neuron = not layer.may_ablate
        mask = magnitude_mask(weight, structure, layer.budget, every_neuron=every_neuron)
        budget = method.trained_budget(layer.budget, weight.numel())
        if budget < weight.numel():
            trained = magnitude_mask(weight, structure, budget, every_neuron=every_neuron)
            layer.trained = layer.part(layer.turned(trained)).contiguous()
        layer.set_mask(layer.part(layer.turned(mask)).contiguous())
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
