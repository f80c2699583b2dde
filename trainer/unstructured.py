"""The topology update of one layer without structure: any weight may go or come."""

from torch import Tensor

from .selection import top_k, true_count
from .update import LayerUpdate, check_layer, updated_layer


def unstructured_update(
    weight: Tensor,
    mask: Tensor,
    drop_score: Tensor,
    grow_score: Tensor,
    *,
    drop_count: int,
    budget: int,
) -> LayerUpdate:
    """Drop the ``drop_count`` lowest scores and grow the highest until ``budget`` weights exist.

    The mask update of SET and RigL (arXiv 1707.04780; 1911.11134, algorithm 1). All tensors have
    the weight's shape; ``mask`` is bool. A weight that is dropped and grown in one update keeps
    its value, any other grown weight is 0. Ties go to the lowest index.
    Raises ValueError for shapes that differ, scores that are not finite, and counts that do
    not fit the layer.
    """
    check_layer(weight, mask, drop_score, grow_score)
    active = true_count(mask)
    kept_count = active - drop_count
    if not 0 <= drop_count <= active or not kept_count <= budget <= mask.numel():
        raise ValueError(
            f"cannot drop {drop_count} of {active} weights and end with {budget} of {mask.numel()}"
        )
    kept = top_k(drop_score.detach(), kept_count, mask)
    grown = top_k(grow_score.detach(), budget - kept_count, ~kept)
    return updated_layer(weight, mask, kept | grown)
