"""Pruning of a trained model in one step: the largest weights stay, equally many in each neuron."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._base.distributions import Distribution, weight_budget
from .initialization import InitializationOptions
from .layer_choice import LayerOptions, choose_layers
from .layers import (
    IN_PROJECTIONS,
    MASKABLE_TYPES,
    ComputedWeight,
    count_other_weights,
    input_first_weights,
    keeps_zeros,
    parameter_aliases,
    prunable_weights,
    resolve_names,
    unwrap,
)
from .methods import Static
from .methods.base import check_sparsity
from .sharding import is_distributed, whole_tensor
from .sparsifier import Sparsifier
from .straight_through import magnitude_mask
from .structures import ConstantFanIn
from .summary import Summary, dense_summary, mask_summary

LEAST_INPUTS = 32
"""Neurons of fewer inputs stay dense: a depthwise filter has 9, a first filter of an image 27."""


@dataclass(frozen=True)
class Pruned:
    """What :func:`prune_` did.

    :meth:`keep_masks` fine-tunes with its masks. For a method that also moves weights, such as
    ``SRigL``, pass ``layers=pruned.layers, initialization=pruned.initialization`` to a
    ``Sparsifier`` of the same sparsity.

    Attributes:
        masks: bool masks by qualified parameter name, for ``fanin.export.export``.
        sparsity: that was asked for.
        summary: density and fan-in of every layer.
        left: reason by parameter name, of layers that stay dense.
        layers: the choice of layers, for a ``Sparsifier``.
        initialization: makes a ``Sparsifier`` start from these masks and weights.

    """

    masks: dict[str, Tensor]
    sparsity: float
    summary: Summary
    left: dict[str, str]
    layers: LayerOptions
    initialization: InitializationOptions = InitializationOptions(  # noqa: RUF009  # frozen
        mask="magnitude", keep_weights=True
    )

    def keep_masks(self, model: nn.Module, optimizer: Optimizer) -> Sparsifier:
        """Keep the pruned weights at zero while an optimizer trains the others.

        Call it after :func:`prune_` (and then ``fully_shard``, if the model is to be sharded) and
        before the first step; masks and weights stay as they are.

        Raises:
            ValueError: a pruned weight is frozen or not the optimizer's, the model is another one,
                or its weights have moved off the masks.

        """
        weights = prunable_weights(unwrap(model), in_proj=self.layers.in_proj)
        for name, mask in self.masks.items():
            weight = weights.get(name)
            if weight is None or weight.shape != mask.shape:
                raise ValueError(f"the pruned model has a weight {name!r} of another shape")
            if bool(whole_tensor(weight).masked_select(~mask.to(weight.device)).any()):
                raise ValueError(
                    f"{name!r} has weights off its mask: it was trained or loaded since it was "
                    "pruned; call keep_masks before the first step, or prune the model again"
                )
        return Sparsifier(
            model,
            optimizer,
            method=Static(self.sparsity, structure="constant-fan-in"),
            total_steps=1,  # that of no update
            layers=self.layers,
            initialization=self.initialization,
        )

    def __str__(self) -> str:
        lines = [str(self.summary)]
        lines += [f"{name} stays dense: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


@torch.no_grad()
def prune_(
    model: nn.Module,
    sparsity: float,
    *,
    distribution: Distribution = "uniform",
    dense_layers: Sequence[str] = (),
) -> Pruned:
    """Zero the smallest weights of a model in place, equally many in each neuron of a layer.

    Accuracy falls, the more the sparser: fine-tune the model afterwards
    (:meth:`Pruned.keep_masks`). Linear layers (Hugging Face's Conv1D too), convolutions and the
    input projections of ``MultiheadAttention`` are pruned. Weights that several modules share, such
    as tied embeddings, and neurons of fewer than 32 inputs stay dense.

    Args:
        model: the model, or a wrapper of it; its weights may have any float type.
        sparsity: fraction of the weights of the pruned layers to zero, in (0, 1).
        distribution: "uniform" gives each pruned layer this sparsity; "erk" makes large layers
            sparser than small ones, with this sparsity overall.
        dense_layers: names of layers to leave as they are, or patterns with ``*``.

    Returns:
        Masks, densities, and what stays dense.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a layer name is unknown, no layer can be pruned, a value is out of range, or a
            weight is not finite, sharded or without values (device meta); nothing is changed then.
        InfeasibleSparsityError: the layers cannot have the sparsity.

    """
    check_sparsity(sparsity)
    if isinstance(dense_layers, str):
        raise TypeError(f"dense_layers must be a list of layer names; write [{dense_layers!r}]")
    model = unwrap(model)
    weights = prunable_weights(model, in_proj=True)
    in_proj = any(name.endswith(IN_PROJECTIONS) for name in weights)
    left = _unfit(model, weights)
    options = LayerOptions(
        distribution=distribution,
        dense_layers=(*dense_layers, *left),
        dense_in_budget=False,
        in_proj=in_proj,
    )
    named = resolve_names("dense_layers", dense_layers, parameter_aliases(model, weights))
    structure = ConstantFanIn()
    choice = choose_layers(model, None, sparsity, structure, options)
    masks: dict[str, Tensor] = {}
    for name in choice.sparse:
        weight = choice.weights[name]
        if is_distributed(weight):
            raise ValueError(
                f"{name!r} is sharded over processes (FSDP); prune the model before fully_shard"
            )
        if weight.is_meta:
            raise ValueError(
                f"{name!r} has no values (device meta); load the model's weights first"
            )
        if not torch.isfinite(weight).all():
            raise ValueError(f"{name!r} holds values that are not finite; nothing was pruned")
        budget = weight_budget(choice.shapes[name], choice.densities[name])
        mask = magnitude_mask(choice.turned(name, weight), structure, budget)
        masks[name] = choice.turned(name, mask).contiguous()
    if not masks:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left.items())
        raise ValueError(f"every layer stays dense ({reasons or 'dense_layers names all of them'})")
    for name, mask in masks.items():
        choice.weights[name].masked_fill_(~mask, 0)
    rows = tuple(
        mask_summary(name, choice.turned(name, masks[name]), choice.densities[name])
        if name in masks
        else dense_summary(name, shape)
        for name, shape in choice.shapes.items()
    )
    for name in choice.weights:
        if name not in masks:
            left.setdefault(name, "dense_layers names it" if name in named else "by erk")
    summary = Summary(rows, count_other_weights(model, choice.weights))
    return Pruned(masks, sparsity, summary, left, options)


def _unfit(model: nn.Module, weights: dict[str, nn.Parameter]) -> dict[str, str]:
    """Say which weights stay dense whatever is asked for, and why."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    left, turned = {}, input_first_weights(model, weights)
    for name, weight in weights.items():
        if isinstance(weight, ComputedWeight):
            left[name] = "its layer computes it (parametrization, weight norm or spectral norm)"
            continue
        if not keeps_zeros(model.get_submodule(name.rpartition(".")[0])):
            left[name] = "its layer changes it before use, so that zeros of it are none there"
            continue
        others = [other for other in owners[id(weight)] if other != name]
        neurons = weight.shape[1 if name in turned else 0]
        inputs = weight.numel() // neurons if neurons else 0
        if others:
            left[name] = f"it is shared with {', '.join(others)}"
        elif weight.dtype not in MASKABLE_TYPES:
            left[name] = f"it is of type {weight.dtype}"
        elif not neurons:
            left[name] = "it has no neurons"
        elif inputs < LEAST_INPUTS:
            left[name] = f"its neurons have {inputs} inputs, fewer than {LEAST_INPUTS}"
    return left
