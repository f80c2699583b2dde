"""What a sparse training starts from: each layer's first mask and first weights."""

import torch
from torch.optim import Optimizer

from .distributions import weight_budget
from .gradient_window import GradientMomentum, GradientWindow
from .initialization import MaskSource, WeightStd, initial_mask, sparse_init
from .layer_choice import LayerChoice
from .methods import SRSTE, SparseMethod
from .optimizer_state import reset_optimizer_state
from .processes import Processes
from .seeds import derived_generator
from .sparse_layer import SparseLayer
from .straight_through import hide_dense, mask_of_largest


def first_layer(
    name: str,
    choice: LayerChoice,
    method: SparseMethod | SRSTE,
    *,
    mask_source: MaskSource,
    seed: int,
    processes: Processes,
) -> SparseLayer:
    """Layer ``name`` of ``choice`` with its first mask, the same in all processes.

    ``mask_source``: "random", or "magnitude" for the positions of the largest weights.
    """
    weight, density = choice.weights[name], choice.densities[name]
    structure, shape = method.layout(), tuple(weight.shape)
    budget = weight_budget(shape, density)
    if mask_source == "magnitude":
        mask = mask_of_largest(weight, structure, budget)
    else:
        generator = derived_generator(seed, name, "mask")
        mask = initial_mask(shape, budget, generator, structure).to(weight.device)
    processes.from_first_(mask)
    decay = method.gradient_momentum
    window = GradientWindow() if decay is None else GradientMomentum(decay)
    dense = torch.empty_like(weight.detach()) if method.dense_to_sparse else None
    return SparseLayer(
        name, weight, density, budget, name not in choice.unablated, mask, window, dense
    )


@torch.no_grad()
def fill_layer(
    layer: SparseLayer,
    method: SparseMethod | SRSTE,
    optimizer: Optimizer,
    *,
    weight_std: WeightStd | None,
    seed: int,
    processes: Processes,
) -> None:
    """Draw the layer's weights with this standard deviation (None: keep them), and mask them.

    All processes then hold the first one's. The optimizer forgets what it knew of masked weights.
    """
    weight = layer.weight
    if weight_std is not None:
        mask = torch.ones_like(layer.mask) if method.dense_to_sparse else layer.mask
        weight.copy_(sparse_init(mask, derived_generator(seed, layer.name, "weight"), weight_std))
    processes.from_first_(weight)
    if method.dense_to_sparse:
        hide_dense(layer, method.layout())
        return
    layer.mask_weight()
    reset_optimizer_state(optimizer, weight, ~layer.mask)
