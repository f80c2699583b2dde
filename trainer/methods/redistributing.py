"""Methods that move weights between layers: SNFS and DSR."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..structures import LayerPlan
from .base import DropFractions, LayerInputs, SparseMethod, least_weights


@dataclass(frozen=True)
class SNFS(SparseMethod):
    """Sparse networks from scratch (arXiv 1907.04840): growth and redistribution by momentum.

    Each layer drops the same fraction of its weights. The sum of what was dropped is regrown in
    proportion to the mean momentum of each layer's active weights.

    Attributes:
        momentum: decay of the running average of dense gradients, in [0, 1).

    Raises:
        ValueError: ``momentum`` is out of range.

    """

    name: ClassVar[str] = "snfs"
    redistributes: ClassVar[bool] = True
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")

    @property
    def gradient_momentum(self) -> float:
        """Average over all steps with this decay."""
        return self.momentum

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Return the magnitude of the averaged gradient."""
        return layer.dense_gradient.abs()

    def plan(
        self, layers: Mapping[str, LayerInputs], fractions: DropFractions
    ) -> dict[str, LayerPlan]:
        """Redistribute the dropped weights in proportion to the mean momentum."""
        dropped, shares = {}, {}
        for name, layer in layers.items():
            active = int(layer.mask.count_nonzero())
            dropped[name] = min(int(fractions.current * active), active - least_weights(layer))
            shares[name] = float(layer.dense_gradient[layer.mask].abs().double().mean())
        return _grow_by_share(layers, dropped, shares, fractions)


@dataclass(frozen=True)
class DSR(SparseMethod):
    """Dynamic sparse reparameterization (arXiv 1902.05967): one magnitude threshold for all layers.

    The smallest weights of the whole model are dropped, except for the last one of each layer (of
    each protected neuron). As
    many are grown at random, in proportion to what each layer kept. The original adapts its
    threshold by doubling and halving; here, exactly the scheduled number is dropped.
    """

    name: ClassVar[str] = "dsr"
    redistributes: ClassVar[bool] = True
    uses_gradient: ClassVar[bool] = False

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Return uniform noise."""
        return layer.random()

    def plan(
        self, layers: Mapping[str, LayerInputs], fractions: DropFractions
    ) -> dict[str, LayerPlan]:
        """Drop by one global threshold; grow in proportion to what each layer kept."""
        scores = {
            name: layer.weight.detach()[layer.mask].abs().float() for name, layer in layers.items()
        }
        active = {name: len(score) for name, score in scores.items()}
        count = int(fractions.current * sum(active.values()))
        dropped = dict.fromkeys(layers, 0)
        if count:
            everything = torch.cat([score.cpu() for score in scores.values()])
            lowest = everything.argsort(stable=True)[:count]
            # A weight's position in the concatenation gives its layer.
            ends = torch.tensor(list(active.values())).cumsum(0)
            owners = torch.bucketize(lowest, ends, right=True).bincount(minlength=len(active))
            for (name, held), removed in zip(active.items(), owners.tolist(), strict=True):
                dropped[name] = min(removed, held - least_weights(layers[name]))
        shares = {name: float(active[name] - dropped[name]) for name in layers}
        return _grow_by_share(layers, dropped, shares, fractions)


def _grow_by_share(
    layers: Mapping[str, LayerInputs],
    dropped: Mapping[str, int],
    shares: Mapping[str, float],
    fractions: DropFractions,
) -> dict[str, LayerPlan]:
    kept = {n: int(layer.mask.count_nonzero()) - dropped[n] for n, layer in layers.items()}
    room = {name: layer.mask.numel() - kept[name] for name, layer in layers.items()}
    target = sum(layer.budget for layer in layers.values()) - sum(kept.values())
    grown = apportion(target, shares, room)
    return {
        name: LayerPlan(
            kept[name] + grown[name], fractions.current, dropped[name], layer.may_ablate
        )
        for name, layer in layers.items()
    }


def apportion(total: int, shares: Mapping[str, float], limits: Mapping[str, int]) -> dict[str, int]:
    """Split a total into whole numbers in proportion to shares.

    What a full layer cannot take goes to the others in proportion; what rounding leaves goes to the
    largest shares, ties to the first. Shares that are all zero count as equal.

    Args:
        total: sum of the result.
        shares: proportions by name, 0 or more.
        limits: largest value by name.

    Raises:
        ValueError: the limits sum to less than ``total``.

    """
    if sum(limits.values()) < total:
        raise ValueError(f"{total} weights do not fit: there is room for {sum(limits.values())}")
    given = dict.fromkeys(shares, 0)
    open_ = [name for name in shares if limits[name] > 0]
    left = total
    while left > 0:
        weight = sum(shares[name] for name in open_)
        exact = {n: left * (shares[n] / weight if weight else 1 / len(open_)) for n in open_}
        whole = {n: min(int(exact[n]), limits[n] - given[n]) for n in open_}
        if not any(whole.values()):
            for name in sorted(open_, key=lambda n: -exact[n])[:left]:
                given[name] += 1
        for name, count in whole.items():
            given[name] += count
        left = total - sum(given.values())
        open_ = [name for name in open_ if given[name] < limits[name]]
    return given
