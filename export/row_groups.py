"""Rows of unequal length: one padded block, or groups of rows that are each padded to their own.

A layer of constant fan-in is one group. Unstructured masks of other methods are not: the longest
row decides what every row stores. Groups are several condensed nodes over disjoint rows, added up
through their residual input, so that the format needs no extension.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ort_ops.format.condensed import CondensedWeight

MIN_SAVED_SHARE = 0.1
"""Share of the stored entries that groups must save to be worth more nodes."""

MIN_SAVED_ENTRIES = 8192
"""Entries under which another node costs more than the padding: about a microsecond either way."""

MAX_GROUPS = 4


def split_rows(weight: CondensedWeight, most: int = MAX_GROUPS) -> list[CondensedWeight]:
    """Split a weight into at most ``most`` groups of rows that store the fewest entries together.

    The first group keeps the bias, the others have zeros: their nodes are added up.

    Returns:
        One weight, the given one, where groups save no more than :data:`MIN_SAVED_SHARE`. Whether
        the saving is worth the further nodes is the cost model's question (forms.py).

    """
    if most < 2 or weight.active == 0 or weight.padding <= MIN_SAVED_ENTRIES:
        return [weight]
    lengths = weight.is_entry().sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    ends = _best_ends(lengths[order], most)
    stored = sum(
        (end - start) * int(lengths[order[end - 1]])
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    )
    saved = weight.values.size - stored
    if saved < MIN_SAVED_SHARE * weight.values.size or saved < MIN_SAVED_ENTRIES:
        return [weight]
    groups: list[CondensedWeight] = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        chosen = np.sort(order[start:end])
        fan_in = int(lengths[chosen].max())
        groups.append(
            replace(
                weight,
                values=weight.values[chosen, :fan_in],
                indices=weight.indices[chosen, :fan_in],
                rows=weight.rows[chosen],
                bias=np.zeros_like(weight.bias) if groups else weight.bias,
            )
        )
    return groups


def _best_ends(lengths: np.ndarray, most: int) -> list[int]:
    """Cut sorted lengths into at most ``most`` runs with the fewest padded entries.

    A run from i to j stores (j - i) times its last length. Dynamic programming over the positions
    where the length changes.
    """
    cuts = [*(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]
    at = np.array([0, *cuts])
    longest = np.array([0, *(int(lengths[cut - 1]) for cut in cuts)])
    best = at * longest
    choices: list[np.ndarray] = []
    for _ in range(most - 1):
        cost = best[:, None] + (at[None, :] - at[:, None]) * longest[None, :]
        cost[np.tri(len(at), dtype=bool)] = np.iinfo(np.int64).max
        cost[0] = at * longest
        choice = cost.argmin(axis=0)
        choices.append(choice)
        best = cost[choice, np.arange(len(at))]
    ends, position = [], len(at) - 1
    for choice in (*reversed(choices), None):
        ends.append(int(at[position]))
        if choice is None:
            break
        position = int(choice[position])
        if position == 0:
            break
    return ends[::-1]
