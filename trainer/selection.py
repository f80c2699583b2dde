"""Exact top-k selection with ties going to the lowest index, on every device.

Only the k-th value is searched for, in O(N) instead of the O(N log N) of a stable sort: with
``numpy.partition`` on the CPU, which takes a tenth of the time of ``torch.topk`` there, and with
``torch.topk`` elsewhere. Which of several equal values they select does not matter.
"""

import numpy as np
import torch
from torch import Tensor

_NUMPY_FLOATS = (torch.float32, torch.float64)


def true_count(mask: Tensor) -> int:
    """Count the true entries of a bool tensor.

    NumPy takes a quarter of torch's time on the CPU and waits for no second thread.
    """
    if mask.device.type == "cpu":
        return int(np.count_nonzero(mask.numpy()))
    return int(mask.count_nonzero())


def row_counts(mask: Tensor) -> Tensor:
    """Count the true entries of each row.

    Args:
        mask: bool [n, d].

    Returns:
        int64 [n].

    """
    if mask.device.type == "cpu":
        return torch.from_numpy(np.count_nonzero(mask.numpy(), axis=1).astype(np.int64))
    return mask.sum(1)


def top_k(score: Tensor, k: int, among: Tensor | None = None) -> Tensor:
    """Select the ``k`` highest scores of a whole tensor.

    Args:
        score: float of any shape, without NaN.
        k: number of positions to select.
        among: bool, same shape, with at least ``k`` true entries: the positions to choose from;
            None: all.

    Returns:
        bool, same shape, with exactly ``k`` true entries.

    """
    if k == 0:
        return torch.zeros_like(score, dtype=torch.bool)
    costs = _costs(score, among).flatten()
    threshold = _lowest(costs[None], k).max()
    chosen = costs <= threshold
    if among is not None:
        chosen &= among.flatten()
    excess = true_count(chosen) - k
    if excess > 0:
        ties = (chosen & (costs == threshold)).nonzero().squeeze(1)
        chosen[ties[-excess:]] = False
    return chosen.view(score.shape)


def top_k_per_row(score: Tensor, counts: Tensor, among: Tensor) -> Tensor:
    """Select the ``counts[i]`` highest scores of each row ``i``.

    Args:
        score: float [n, d], without NaN.
        counts: int [n], at most the number of true entries in each row of ``among``.
        among: bool [n, d], the positions to choose from.

    Returns:
        bool [n, d].

    """
    chosen = torch.zeros_like(among)
    rows = counts.nonzero().squeeze(1)
    if len(rows) == 0:
        return chosen
    needed, candidates = counts[rows, None].long(), among[rows]
    costs = _costs(score[rows], candidates)
    leading = _sorted_rows(_lowest(costs, int(needed.max())))
    threshold = leading.gather(1, needed - 1)
    picked = (costs <= threshold) & candidates
    excess = row_counts(picked)[:, None] - needed
    tied = (excess > 0).squeeze(1).nonzero().squeeze(1)
    if len(tied):
        ties = picked[tied] & (costs[tied] == threshold[tied])
        spared = row_counts(ties)[:, None] - excess[tied]
        picked[tied] &= ~ties | (ties.cumsum(1) <= spared)
    chosen[rows] = picked
    return chosen


def _costs(score: Tensor, among: Tensor | None) -> Tensor:
    """Negate the scores, with infinity outside ``among``.

    ``numpy.partition`` takes ten times as long when most values tie for the smallest, as zero
    gradients and the positions outside ``among`` would; ties for the largest do not slow it down.
    """
    return -score if among is None else torch.where(among, -score, torch.inf)


def _lowest(costs: Tensor, k: int) -> Tensor:
    """Return the ``k`` lowest values of each row of [n, d], in any order."""
    if costs.device.type != "cpu":
        return torch.topk(costs, k, dim=1, largest=False, sorted=False).values
    # Widening keeps order and equality; NumPy has no bfloat16, and no fast half.
    wide = costs if costs.dtype in _NUMPY_FLOATS else costs.float()
    return torch.from_numpy(np.partition(wide.detach().numpy(), k - 1, axis=1)[:, :k])


def _sorted_rows(values: Tensor) -> Tensor:
    """Sort each row of [n, d] in ascending order."""
    if values.device.type != "cpu":
        return values.sort(dim=1).values
    return torch.from_numpy(np.sort(values.numpy(), axis=1))
