"""Chase (arXiv 2305.19454): unstructured exploration of the whole model that gives up channels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..structures import LayerPlan
from ..update import LayerUpdate
from .base import DropFractions, LayerInputs, SparseMethod, least_weights


@dataclass(frozen=True)
class Chase(SparseMethod):
    """Channel-aware dynamic sparse training (arXiv 2305.19454, section 3).

    Each update drops the smallest weights of the whole model and grows those with the largest
    gradients. Beside that, the neurons with the smallest mean magnitude lose all their weights:
    their number rises to ``channel_sparsity`` of all by 1 − (1 − t)³, t being the elapsed part of
    the schedule. The sum of the weights stays the same.

    A neuron without weights never gets any again; in the paper, only removed channels do not. The
    original also removes the inputs of the next layer and takes MEST's soft bound; here the sparse
    layers keep their shapes, and export folds ablated neurons.

    Attributes:
        channel_sparsity: fraction of the neurons of all unprotected layers that is removed, in
            [0, 1).
        least_neurons: fraction of its neurons that a layer keeps at least, in (0, 1].

    Raises:
        ValueError: a value is out of range.

    """

    name: ClassVar[str] = "chase"
    redistributes: ClassVar[bool] = True
    channel_sparsity: float = 0.4
    least_neurons: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.channel_sparsity < 1:
            raise ValueError(f"channel_sparsity must be in [0, 1), got {self.channel_sparsity}")
        if not 0 < self.least_neurons <= 1:
            raise ValueError(f"least_neurons must be in (0, 1], got {self.least_neurons}")
        if 1 - self.least_neurons < self.channel_sparsity:
            raise ValueError(
                f"layers that keep {self.least_neurons:g} of their neurons cannot lose "
                f"{self.channel_sparsity:g} of them; lower channel_sparsity or least_neurons"
            )

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Return the magnitude of the dense gradient."""
        return layer.dense_gradient.abs()

    def plan(
        self, layers: Mapping[str, LayerInputs], fractions: DropFractions
    ) -> dict[str, LayerPlan]:
        """Choose neurons to remove, then drop and grow by one threshold each for all layers."""
        removed = self._removed(layers, fractions.progress)
        open_ = {
            name: (~removed[name]).view(-1, *[1] * (layer.mask.dim() - 1)).expand_as(layer.mask)
            for name, layer in layers.items()
        }
        held = {name: layer.mask & open_[name] for name, layer in layers.items()}
        total = sum(layer.budget for layer in layers.values())
        kept_target = total - int(fractions.current * total)
        least = {n: min(least_weights(layers[n]), int(h.count_nonzero())) for n, h in held.items()}
        kept = _largest(
            {n: self.drop_score(layers[n])[h] for n, h in held.items()}, kept_target, least
        )
        room = {n: int(o.count_nonzero()) - kept[n] for n, o in open_.items()}
        # Which of the kept positions a layer keeps is not known here: its smallest weights go.
        growable = {}
        for name, layer in layers.items():
            stays = torch.zeros_like(layer.mask)
            order = self.drop_score(layer)[held[name]].argsort(descending=True, stable=True)
            positions = held[name].flatten().nonzero().flatten()
            stays.view(-1)[positions[order[: kept[name]]]] = True
            growable[name] = self.grow_score(layer)[open_[name] & ~stays]
        grown = _largest(growable, min(total - sum(kept.values()), sum(room.values())), {})
        return {
            name: LayerPlan(
                kept[name] + grown[name],
                fractions.current,
                int(layer.mask.count_nonzero()) - kept[name],
                layer.may_ablate,
                removed[name],
            )
            for name, layer in layers.items()
        }

    def update(self, layer: LayerInputs, plan: LayerPlan) -> LayerUpdate:
        """Drop removed neurons first, and never grow into them."""
        drop, grow = self.drop_score(layer), self.grow_score(layer)
        if plan.removed is not None:
            rows = plan.removed.view(-1, *[1] * (drop.dim() - 1))
            drop, grow = drop.masked_fill(rows, -1), grow.masked_fill(rows, -1)
        return self.mask_structure().update(layer.weight, layer.mask, drop, grow, plan)

    def _removed(self, layers: Mapping[str, LayerInputs], progress: float) -> dict[str, Tensor]:
        """Return the neurons of each layer that hold no weights afterwards: bool [n]."""
        removed = {name: ~layer.mask.flatten(1).any(1) for name, layer in layers.items()}
        removable = [name for name, layer in layers.items() if layer.may_ablate]
        neurons = sum(len(removed[name]) for name in removable)
        target = int(self.channel_sparsity * (1 - (1 - progress) ** 3) * neurons)
        count = target - sum(int(removed[name].count_nonzero()) for name in removable)
        if count <= 0:
            return removed
        candidates = []
        for name in removable:
            size = len(removed[name])
            spare = (
                size - int(removed[name].count_nonzero()) - max(1, round(self.least_neurons * size))
            )
            means = layers[name].weight.detach().flatten(1).abs().mean(1)
            means = means.masked_fill(removed[name], torch.inf)
            order = means.argsort(stable=True)[: max(0, spare)]
            candidates += [(float(means[i]), name, int(i)) for i in order]
        for _, name, neuron in sorted(candidates, key=lambda found: found[0])[:count]:
            removed[name][neuron] = True
        return removed


def _largest(scores: Mapping[str, Tensor], count: int, least: Mapping[str, int]) -> dict[str, int]:
    """Count by layer the ``count`` largest of all scores; each layer has at least its ``least``."""
    ranked = {n: s.float().cpu().sort(descending=True).values for n, s in scores.items()}
    taken = {name: min(least.get(name, 0), len(score)) for name, score in ranked.items()}
    rest = torch.cat([score[taken[name] :] for name, score in ranked.items()])
    order = rest.argsort(descending=True, stable=True)[: max(0, count - sum(taken.values()))]
    ends = torch.tensor([len(score) - taken[name] for name, score in ranked.items()]).cumsum(0)
    owners = torch.bucketize(order, ends, right=True).bincount(minlength=len(ranked))
    return {name: taken[name] + int(more) for name, more in zip(ranked, owners, strict=True)}
