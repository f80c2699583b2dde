"""Moves that a method makes by itself after each step of the optimizer, such as DeepR's."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from .methods import SparseMethod
from .seeds import derived_generator
from .sparse_layer import SparseLayer


class WeightMoves:
    """One step's moves; made before the optimizer's step, which changes the weights.

    Args:
        method: a method that moves weights.
        layers: the sparse layers by parameter name.
        optimizer: its learning rates are those of the moves.
        seed: seed of the training.

    """

    def __init__(
        self,
        method: SparseMethod,
        layers: Mapping[str, SparseLayer],
        optimizer: Optimizer,
        seed: int,
    ) -> None:
        self._method, self._layers, self._seed = method, layers, seed
        self._before = {name: layer.local_weight.clone() for name, layer in layers.items()}
        self._rates = {
            name: _learning_rate(optimizer, layer.weight) for name, layer in layers.items()
        }

    @torch.no_grad()
    def apply(self, step: int) -> None:
        """Move the weights after the optimizer's step, and mask them.

        Args:
            step: optimizer steps so far.

        """
        for name, layer in self._layers.items():
            generator = derived_generator(self._seed, name, "move", step)
            weight, before = layer.whole(layer.local_weight), layer.whole(self._before[name])
            moved = self._method.moved(weight, before, self._rates[name], generator)
            layer.local_weight.copy_(layer.part(moved))
            layer.mask_weight()


def _learning_rate(optimizer: Optimizer, weight: Tensor) -> float:
    for group in optimizer.param_groups:
        if any(parameter is weight for parameter in group["params"]):
            return float(group["lr"])
    raise ValueError("a sparse weight is no longer in the optimizer's parameter groups")
