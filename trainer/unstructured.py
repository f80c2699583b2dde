"""The topology update of one layer without structure: any position may be active."""

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
    kept = top_k(drop_score.detach(), kept_count, mask)
    grown = top_k(grow_score.detach(), budget - kept_count, ~kept)
    return updated_layer(weight, mask, kept | grown)
