"""The state that sparse training starts from: each layer's initial mask and weights."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._base.distributions import weight_budget
from .fresh_weights import layers_to_keep
from .given_masks import misfit
from .gradient_window import GradientMomentum, GradientWindow
from .initialization import (
    InitializationOptions,
    MaskSource,
    WeightStd,
    initial_mask,
    sparse_init,
)
from .layer_choice import LayerChoice
from .methods import DenseToSparse, SparseMethod
from .optimizer_state import reset_optimizer_state
from .processes import Processes
from .seeds import derived_generator
from .sharding import local_part, part_like, whole_tensor
from .sparse_layer import SparseLayer
from .straight_through import magnitude_mask, project_to_mask


def initial_layers(
    model: nn.Module,
    choice: LayerChoice,
    method: SparseMethod | DenseToSparse,
    optimizers: Sequence[Optimizer],
    options: InitializationOptions,
    *,
    restored: bool,
    seed: int,
    processes: Processes,
    stacklevel: int,
) -> dict[str, SparseLayer]:
    """Make the sparse layers of a model, with their masks and weights.

    Args:
        model: the model.
        choice: its weights, densities and protected layers.
        method: the training method.
        optimizers: the optimizer of the weights and its wrappers.
        options: where masks and weights come from.
        restored: masks, weights and optimizers are those of a checkpoint; leave the latter alone.
        seed: seed of the training.
        processes: the data-parallel processes.
        stacklevel: of the warning that weights are kept.

    Raises:
        ValueError: a mask is asked for that the method does not have, or given masks do not fit.

    """
    if isinstance(options.mask, Mapping) and (reason := misfit(options.mask, choice, method)):
        raise ValueError(f"the masks in InitializationOptions(mask=…) do not fit: {reason}")
    if method.starts_dense and options.mask is not None:
        raise ValueError(
            f"method {method.name!r} starts with all weights, so it has no initial mask to choose; "
            "leave out InitializationOptions(mask=…)"
        )
    kept: frozenset[str] = frozenset()
    if not restored:
        kept = layers_to_keep(
            model, choice, options.keep_weights, processes, stacklevel=stacklevel + 1
        )
    layers = {}
    for name in choice.sparse:
        given = options.mask or ("magnitude" if name in kept else "random")
        source = given[name] if isinstance(given, Mapping) else given
        layers[name] = layer = initial_layer(
            name, choice, method, mask_source=source, seed=seed, processes=processes
        )
        if not restored:
            initialize_weights(
                layer,
                method,
                optimizers,
                weight_std=None if name in kept else options.weight_std,
                seed=seed,
                processes=processes,
            )
    return layers


def initial_layer(
    name: str,
    choice: LayerChoice,
    method: SparseMethod | DenseToSparse,
    *,
    mask_source: MaskSource | Tensor,
    seed: int,
    processes: Processes,
) -> SparseLayer:
    """Make a layer with its initial mask, the same in all processes.

    Args:
        name: parameter name of the layer.
        choice: weights, densities and protected layers of the model.
        method: the training method.
        mask_source: where the mask comes from, or the mask in the layout of the weight; unused by
            methods that start dense.
        seed: seed of the training.
        processes: the data-parallel processes.

    """
    weight, density = choice.weights[name], choice.densities[name]
    structure, shape = method.mask_structure(), choice.shapes[name]
    budget = weight_budget(shape, density)
    if method.starts_dense:
        mask = torch.ones(shape, dtype=torch.bool, device=weight.device)
    elif isinstance(mask_source, Tensor):
        mask = choice.turned(name, mask_source.to(weight.device, torch.bool, copy=True))
    elif mask_source == "magnitude":
        mask = magnitude_mask(
            choice.turned(name, whole_tensor(weight)),
            structure,
            budget,
            every_neuron=name in choice.protected,
        )
    else:
        generator = derived_generator(seed, name, "mask")
        mask = initial_mask(
            shape, budget, generator, structure, every_neuron=name in choice.protected
        ).to(weight.device)
    mask = choice.turned(name, mask).contiguous()
    processes.broadcast_(mask)
    decay = method.gradient_momentum
    window = GradientWindow() if decay is None else GradientMomentum(decay)
    dense = torch.empty_like(local_part(weight)) if method.dense_to_sparse else None
    return SparseLayer(
        name,
        weight,
        density,
        budget,
        name not in choice.protected,
        part_like(weight, mask),
        window,
        dense,
        name in choice.input_first,
    )


@torch.no_grad()
def initialize_weights(
    layer: SparseLayer,
    method: SparseMethod | DenseToSparse,
    optimizers: Sequence[Optimizer],
    *,
    weight_std: WeightStd | None,
    seed: int,
    processes: Processes,
) -> None:
    """Draw the layer's weights, and mask them.

    Afterwards all processes hold the weights of rank 0 (of a sharded layer, their parts of those
    that rank 0 drew), and optimizer state of masked weights is zero.

    Args:
        layer: the layer, with its mask.
        method: the training method.
        optimizers: the optimizer of the layer's weight and its wrappers.
        weight_std: standard deviation of the drawn weights; None: keep the present weights.
        seed: seed of the training.
        processes: the data-parallel processes.

    """
    weight = layer.local_weight
    if weight_std is not None:
        mask = layer.turned(layer.whole(layer.mask))
        mask = torch.ones_like(mask) if method.dense_to_sparse else mask
        generator = derived_generator(seed, layer.name, "weight")
        drawn = layer.turned(sparse_init(mask, generator, weight_std))
        drawn = drawn.to(layer.weight.device, layer.weight.dtype)
        if layer.sharding is not None:
            processes.broadcast_(drawn)
        weight.copy_(layer.part(drawn))
    if layer.sharding is None:
        processes.broadcast_(weight)
    if isinstance(method, DenseToSparse):
        project_to_mask(layer, method)
        return
    if layer.dense is not None:
        layer.dense.copy_(weight)
    layer.mask_weight()
    for optimizer in optimizers:
        reset_optimizer_state(optimizer, layer.weight, ~layer.mask)
