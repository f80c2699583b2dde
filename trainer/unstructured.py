"""The topology update of one layer without structure: any position may be active."""

import torch
from torch import Tensor

from .selection import top_k, top_k_per_row, true_count
from .update import LayerUpdate, check_layer, updated_layer


def unstructured_update(
    weight: Tensor,
    mask: Tensor,
    drop_score: Tensor,
    grow_score: Tensor,
    *,
    drop_count: int,
    budget: int,
    every_neuron: bool = False,
) -> LayerUpdate:
    """Drop the ``drop_count`` lowest scores, then grow the highest up to ``budget`` weights.

    The mask update of SET (arXiv 1707.04780) and RigL (arXiv 1911.11134, algorithm 1). A weight
    that is dropped and regrown in one update keeps its value; any other grown weight is 0. Ties go
    to the lowest index.

    Args:
        weight: float [n, …].
        mask: bool, same shape.
        drop_score: float, same shape.
        grow_score: float, same shape.
        drop_count: number of active weights to drop.
        budget: number of active weights afterwards.
        every_neuron: each neuron keeps its best weight, or grows one if it holds none.

    Raises:
        ValueError: shapes differ, a score is not finite, or a count does not fit the layer.

    """
    check_layer(weight, mask, drop_score, grow_score)
    active = true_count(mask)
    kept_count = active - drop_count
    if not 0 <= drop_count <= active or not kept_count <= budget <= mask.numel():
        raise ValueError(
            f"cannot drop {drop_count} of {active} weights and end with {budget} of {mask.numel()}"
        )
    if every_neuron and budget < len(mask):
        raise ValueError(f"{budget} weights cannot give each of {len(mask)} neurons one")
    drop, grow = drop_score.detach(), grow_score.detach()
    if every_neuron:
        drop = prefer_one_per_neuron(drop, mask)
    kept = top_k(drop, kept_count, mask)
    if every_neuron:
        bare = ~kept.flatten(1).any(1)
        grow = prefer_one_per_neuron(grow, ~kept & bare.view(-1, *[1] * (kept.dim() - 1)))
    grown = top_k(grow, budget - kept_count, ~kept)
    return updated_layer(weight, mask, kept | grown)


def prefer_one_per_neuron(score: Tensor, among: Tensor) -> Tensor:
    """Raise the highest score of each neuron above all others.

    Args:
        score: float [n, …].
        among: bool, same shape: the positions that count; neurons without any are left alone.

    """
    candidates = among.flatten(1)
    best = top_k_per_row(score.flatten(1), candidates.any(1).long(), candidates)
    return score.masked_fill(best.view(score.shape), torch.inf)
