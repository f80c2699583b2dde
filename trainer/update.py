"""The topology update of one layer: constant fan-in with neuron ablation.

Pure functions from (weight, mask, scores, rule) to a new mask and weight, for SRigL
(arXiv 2305.02299, section 3.1 and algorithm 1). A neuron is a slice of the weight's dimension 0;
n neurons have d = prod(shape[1:]) possible inputs each.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .selection import row_counts, top_k, top_k_per_row, true_count


@dataclass(frozen=True)
class LayerRule:
    """What one update of one layer may do.

    ``budget``: B, the number of weights the layer is meant to hold. ``drop_fraction``: share of
    the active weights that are dropped and grown again. ``gamma_sal``: below 1, the share of
    the un-ablated fan-in floor(B/n) that must be salient for a neuron to stay (at least one
    weight); from 1 on, the number itself; 0 switches ablation off. ``reversible``: whether an
    ablated neuron may return. ``salient_growth``: positions whose gradients can be salient.
    ``salience``: "practical" counts the (active − K) largest weights as salient, K being the
    number dropped; "literal" the K largest, as the paper's text has it.
    """

    budget: int
    drop_fraction: float
    gamma_sal: float
    reversible: bool = True
    salient_growth: Literal["all", "inactive"] = "all"
    salience: Literal["practical", "literal"] = "practical"


@dataclass(frozen=True)
class UpdateStats:
    """What an update did: weights dropped and grown, neurons active, ablated and revived.

    ``fan_in`` is the largest of any neuron; under constant fan-in all active neurons have it.
    """

    fan_in: int
    active: int
    dropped: int
    grown: int
    ablated: int
    revived: int


@dataclass(frozen=True)
class LayerUpdate:
    """New ``mask`` (bool) and ``weight`` of the layer's shape; ``grown``: newly active positions.

    The weight is 0 off the mask and at grown positions, and unchanged elsewhere.
    """

    mask: Tensor
    weight: Tensor
    grown: Tensor
    stats: UpdateStats


def srigl_update(weight: Tensor, mask: Tensor, grad: Tensor, rule: LayerRule) -> LayerUpdate:
    """One SRigL update: drop by weight magnitude, grow by dense-gradient magnitude.

    ``weight`` and ``grad``: float tensors [n, ...] of one shape; ``mask``: bool, same shape.
    Deterministic: ties go to the lowest index. Raises ValueError for shapes that differ,
    values that are not finite, or a budget that cannot give each remaining neuron a weight.
    """
    return constant_fan_in_update(weight, mask, weight.abs(), grad.abs(), rule)


def constant_fan_in_update(
    weight: Tensor, mask: Tensor, drop_score: Tensor, grow_score: Tensor, rule: LayerRule
) -> LayerUpdate:
    """Drop the lowest ``drop_score``, ablate, and grow the highest ``grow_score`` per neuron.

    All tensors have the weight's shape. Every remaining neuron ends with the same fan-in
    floor(B / remaining neurons). A weight dropped and grown in one update keeps its value.
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
    """Weight and statistics that follow from a change of mask.

    ``mask`` and ``new_mask``: bool, of the weight's number of elements, neurons first.
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
    """Salient weights a neuron needs to stay: γ itself from 1 on, else max(1, int(γ·floor(B/n))).

    Taken from the un-ablated fan-in, so that it does not rise as neurons are ablated.
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
    """Bool [n]: neurons with enough salient weights, never fewer than the budget needs.

    ``largest``: the weights that would stay if no neuron were ablated.
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

    # B/d neurons, rounded up, hold the whole budget when dense: fewer could not.
    most_salient = counts.sort(descending=True).values
    needed = min(rule.budget // dense_fan_in, neurons - 1)
    threshold = min(salience_threshold(neurons, rule), max(0, int(most_salient[needed])))
    survivors = counts >= threshold
    if int(survivors.sum()) > rule.budget:
        survivors = top_k(counts.float(), rule.budget, survivors)
    return survivors


def check_layer(weight: Tensor, mask: Tensor, drop_score: Tensor, grow_score: Tensor) -> None:
    """Raise ValueError for shapes that differ, a mask that is not bool, or scores not finite."""
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
        # A sum is cheaper; it may only overflow, and then every value is looked at.
        if not score.detach().sum().isfinite() and not torch.isfinite(score.detach()).all():
            raise ValueError(f"{name} holds values that are not finite")
