"""Masks that a ``Sparsifier`` is given to start from, such as those of another run."""

from collections.abc import Mapping
from math import prod

from torch import Tensor

from .._base.distributions import weight_budget
from .layer_choice import LayerChoice
from .methods import DenseToSparse, SparseMethod


def misfit(
    masks: Mapping[str, Tensor], choice: LayerChoice, method: SparseMethod | DenseToSparse
) -> str | None:
    """Return why a method cannot start from masks, or None.

    The layers together must hold as many weights as the method's sparsity asks for, less what
    rounding a fan-in down costs: one weight per neuron. Single layers may hold more or fewer, since
    some methods move weights between layers.

    Args:
        masks: bool tensors in the layout of the weights, by parameter name.
        choice: layers and densities that the method asks for.
        method: the training method.

    """
    if method.starts_dense or method.dense_to_sparse:
        return f"method {method.name!r} chooses its masks from the weights"
    if differing := sorted(set(choice.sparse) ^ set(masks), key=str):
        name = differing[0]
        reason = "lack a mask of" if name in choice.sparse else "have a mask of the dense layer"
        return f"they {reason} {name}"
    structure = method.mask_structure()
    held = asked = neurons = 0
    for name in choice.sparse:
        if masks[name].shape != choice.weights[name].shape:
            return (
                f"the mask of {name} has the shape {list(masks[name].shape)}, "
                f"its weight {list(choice.weights[name].shape)}"
            )
        mask = choice.turned(name, masks[name])
        if not structure.allows(mask):
            return f"the mask of {name} has another structure than method {method.name!r}"
        if name in choice.protected and not bool(mask.flatten(1).any(1).all()):
            return f"{name} must keep all its neurons, and the mask has ablated some"
        shape = choice.shapes[name]
        held, neurons = held + int(mask.sum()), neurons + shape[0]
        asked += weight_budget(shape, choice.densities[name])
    if not asked - neurons < held <= asked:
        size = sum(prod(choice.shapes[name]) for name in choice.sparse)
        return (
            f"they hold {held / size:.2%} of the weights of the sparse layers, and method "
            f"{method.name!r} asks for {asked / size:.2%}"
        )
    return None
