"""The topology update of one layer: constant fan-in with neuron ablation.

Pure functions from (weight, mask, scores, rule) to a new mask and weight, for SRigL (arXiv
2305.02299, section 3.1 and algorithm 1). A neuron is a slice along dimension 0 of the weight; each
of the n neurons has d = prod(shape[1:]) possible inputs.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .selection import row_counts, top_k, top_k_per_row, true_count


@dataclass(frozen=True)
class LayerRule:
    """What one update of one layer may do.

    Attributes:
        budget: B, the number of weights that the layer should hold.
        drop_fraction: fraction of the active weights that is dropped and regrown, in [0, 1].
        gamma_sal: γ_sal. Below 1: the fraction of the un-ablated fan-in floor(B/n) that must be
            salient for a neuron to survive (at least one weight). From 1 on: that number of
            weights. 0 disables ablation.
        reversible: whether an ablated neuron may become active again.
        salient_growth: whether gradients of "all" positions or only of "inactive" ones count as
            salient.
        salience: with K the number of dropped weights, "practical" counts the (active − K) largest
            weights as salient, as the authors' code does; "literal" counts the K largest, as the
            paper's text says.

    """

    budget: int
    drop_fraction: float
    gamma_sal: float
    reversible: bool = True
    salient_growth: Literal["all", "inactive"] = "all"
    salience: Literal["practical", "literal"] = "practical"


@dataclass(frozen=True)
class UpdateStats:
    """Statistics of one update of one layer.

    Attributes:
        fan_in: largest number of weights of any neuron; with constant fan-in, that of every active
            one.
        active: neurons that hold weights.
        dropped: weights removed from the mask.
        grown: weights added to the mask.
        ablated: neurons that lost all their weights.
        revived: neurons without weights that gained some.

    """

    fan_in: int
    active: int
    dropped: int
    grown: int
    ablated: int
    revived: int


@dataclass(frozen=True)
class LayerUpdate:
    """Result of an update; all tensors have the shape of the layer's weight.

    Attributes:
        mask: bool, the new mask.
        weight: the new weight: 0 off the mask and at grown positions, unchanged elsewhere.
        grown: bool, the positions that became active.
        stats: what changed.

    """

    mask: Tensor
    weight: Tensor
    grown: Tensor
    stats: UpdateStats


def srigl_update(weight: Tensor, mask: Tensor, grad: Tensor, rule: LayerRule) -> LayerUpdate:
    """Update a layer by SRigL: drop by weight magnitude, grow by dense-gradient magnitude.

    Deterministic: ties go to the lowest index.

    Args:
        weight: float [n, …].
        mask: bool, same shape.
        grad: dense gradient, float, same shape.
        rule: what the update may do.

    Raises:
        ValueError: shapes differ, a value is not finite, or the budget cannot give each surviving
            neuron a weight.

    """
    return constant_fan_in_update(weight, mask, weight.abs(), grad.abs(), rule)


def constant_fan_in_update(
    weight: Tensor, mask: Tensor, drop_score: Tensor, grow_score: Tensor, rule: LayerRule
) -> LayerUpdate:
    """Drop the lowest ``drop_score``, ablate, and grow the highest ``grow_score`` per neuron.

    SRigL's update (arXiv 2305.02299, section 3.1) with arbitrary scores. Every surviving neuron
    ends with fan-in floor(B / surviving neurons). A weight that is dropped and regrown in one
    update keeps its value.

    Args:
        weight: float [n, …].
        mask: bool, same shape.
        drop_score: float, same shape; the lowest scores of active weights are dropped.
        grow_score: float, same shape; the highest scores of inactive weights are grown.
        rule: what the update may do.

    Raises:
        ValueError: as for ``srigl_update``.

    """
    check_layer(weight, mask, drop_score, grow_score)
    was_active = mask.flatten(1)
    drop, grow = drop_score.detach().flatten(1), grow_score.detach().flatten(1)
    dense_fan_in = was_active.shape[1]

    count = true_count(was_active)
    drop_count = int(rule.drop_fraction * count)
    keep_count = count - drop_count

    largest = top_k(drop, keep_count, was_active)
    survivors = _surviving_neurons(was_active, largest, drop, grow, drop_count, rule)
    active = int(survivors.sum())
    fan_in = min(rule.budget // active, dense_fan_in)
    if fan_in < 1:
        raise ValueError(
            f"a budget of {rule.budget} weights cannot give each of {active} neurons one; "
            "lower the sparsity of this layer or allow ablation"
        )

    kept = largest
    if active < len(survivors):
        candidates = was_active & survivors[:, None]
        kept = top_k(drop, min(keep_count, true_count(candidates)), candidates)
    kept_counts = row_counts(kept)
    if int(kept_counts.max()) > fan_in:
        kept = top_k_per_row(drop, kept_counts.clamp(max=fan_in), kept)
        kept_counts = row_counts(kept)
    missing = (fan_in - kept_counts) * survivors
    return updated_layer(weight, mask, kept | top_k_per_row(grow, missing, ~kept))


def updated_layer(weight: Tensor, mask: Tensor, new_mask: Tensor) -> LayerUpdate:
    """Compute weight and statistics for a change of mask.

    Args:
        weight: float [n, …].
        mask: bool, with as many elements as the weight.
        new_mask: bool, with as many elements as the weight.

    """
    before, after = mask.view(weight.shape), new_mask.view(weight.shape)
    kept = before & after
    held, counts = row_counts(before.flatten(1)), row_counts(after.flatten(1))
    kept_count = true_count(kept)
    stats = UpdateStats(
        fan_in=int(counts.max()),
        active=int((counts > 0).sum()),
        dropped=int(held.sum()) - kept_count,
        grown=int(counts.sum()) - kept_count,
        ablated=int(((held > 0) & (counts == 0)).sum()),
        revived=int(((held == 0) & (counts > 0)).sum()),
    )
    return LayerUpdate(
        mask=after, weight=torch.where(kept, weight.detach(), 0), grown=after & ~before, stats=stats
    )


def salience_threshold(neurons: int, rule: LayerRule) -> int:
    """Return the number of salient weights that a neuron needs in order to survive.

    γ itself from 1 on, else max(1, int(γ · floor(B/n))). It uses the un-ablated fan-in, as the
    authors' code does, so it does not rise as neurons are ablated.
    """
    if rule.gamma_sal >= 1:
        return int(rule.gamma_sal)
    return max(1, int(rule.gamma_sal * (rule.budget // neurons)))


def _surviving_neurons(
    was_active: Tensor,
    largest: Tensor,
    drop: Tensor,
    grow: Tensor,
    drop_count: int,
    rule: LayerRule,
) -> Tensor:
    """Select the neurons with enough salient weights, but never fewer than the budget needs.

    Args:
        was_active: bool [n, d], the current mask.
        largest: bool [n, d], the weights that would stay if no neuron were ablated.
        drop: float [n, d].
        grow: float [n, d].
        drop_count: K.
        rule: what the update may do.

    Returns:
        bool [n].

    """
    neurons, dense_fan_in = was_active.shape
    if rule.gamma_sal == 0:
        return was_active.new_ones(neurons)
    literal = rule.salience == "literal"
    by_weight = top_k(drop, drop_count, was_active) if literal else largest
    if rule.salient_growth == "all":
        by_gradient = top_k(grow, drop_count)
    else:
        inactive_count = was_active.numel() - true_count(was_active)
        by_gradient = top_k(grow, min(drop_count, inactive_count), ~was_active)
    counts = row_counts(by_weight | by_gradient)
    if not rule.reversible:
        counts = counts.masked_fill(~was_active.any(1), -1)

    # At least B/d neurons, rounded up, must survive to hold the budget.
    most_salient = counts.sort(descending=True).values
    needed = min(rule.budget // dense_fan_in, neurons - 1)
    threshold = min(salience_threshold(neurons, rule), max(0, int(most_salient[needed])))
    survivors = counts >= threshold
    if int(survivors.sum()) > rule.budget:
        survivors = top_k(counts.float(), rule.budget, survivors)
    return survivors


def check_layer(weight: Tensor, mask: Tensor, drop_score: Tensor, grow_score: Tensor) -> None:
    """Validate the arguments of an update.

    Raises:
        ValueError: shapes differ, the mask is not bool, or a score is not finite.

    """
    if weight.dim() < 2 or 0 in weight.shape:
        raise ValueError(f"weight must be [neurons, ...] and not empty, got {list(weight.shape)}")
    for name, tensor in (("mask", mask), ("drop_score", drop_score), ("grow_score", grow_score)):
        if tensor.shape != weight.shape:
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}, the weight {list(weight.shape)}"
            )
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, got {mask.dtype}")
    for name, score in (("drop_score", drop_score), ("grow_score", grow_score)):
        # The sum is cheaper to check; it may overflow, so then every value is checked.
        if not score.detach().sum().isfinite() and not torch.isfinite(score.detach()).all():
            raise ValueError(f"{name} contains values that are not finite")
