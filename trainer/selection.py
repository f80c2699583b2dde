"""Exact top-k selections whose ties go to the lowest index, whatever the device.

``torch.topk`` finds the k-th value reliably but picks any of several equal positions, so only
its values are used; O(N) where a stable sort would be O(N log N).
"""

import torch
from torch import Tensor


def row_counts(mask: Tensor) -> Tensor:
    """Count the true entries of each row: bool [n, d] to int32 [n] (int64 takes twice as long)."""
    return mask.sum(1, dtype=torch.int32)


def top_k(score: Tensor, k: int, among: Tensor | None = None) -> Tensor:
    """Mask of the ``k`` largest ``score`` where ``among`` is true, over the whole tensor.

    ``score`` float of any shape; ``among`` bool of the same shape with at least ``k`` true
    entries, or None for all. Returns a bool tensor of that shape with exactly ``k`` true entries.
    """
    chosen = torch.zeros_like(score, dtype=torch.bool)
    if k == 0:
        return chosen
    values = score.flatten() if among is None else score[among]
    threshold = torch.topk(values, k, sorted=False).values.min()
    above, ties = values > threshold, values == threshold
    needed = k - above.count_nonzero()
    picked = above | (ties & (ties.cumsum(0) <= needed))
    if among is None:
        return picked.view(score.shape)
    chosen[among] = picked
    return chosen


def top_k_per_row(score: Tensor, counts: Tensor, among: Tensor) -> Tensor:
    """Mask of the ``counts[i]`` largest ``score[i]`` where ``among[i]`` is true, for each row.

    ``score`` float [n, d], finite; ``counts`` int [n], at most the true entries of each row;
    ``among`` bool [n, d]. Returns bool [n, d].
    """
    chosen = torch.zeros_like(among)
    rows = counts.nonzero().squeeze(1)
    if len(rows) == 0:
        return chosen
    needed, candidates = counts[rows, None].long(), among[rows]
    values = score[rows].masked_fill(~candidates, -torch.inf)
    leading = torch.topk(values, int(needed.max()), dim=1).values
    threshold = leading.gather(1, needed - 1)
    above, ties = values > threshold, (values == threshold) & candidates
    missing = needed - row_counts(above)[:, None]
    chosen[rows] = above | (ties & (ties.cumsum(1) <= missing))
    return chosen
