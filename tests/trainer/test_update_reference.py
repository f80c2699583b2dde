"""The update against a second implementation: plain loops over neurons and lists of positions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.trainer.initialization import initial_mask
from fanin.trainer.update import LayerRule, srigl_update


def largest(positions, score, count):
    return sorted(positions, key=lambda p: (-abs(score[p[0]][p[1]]), p))[:count]


def update_by_loops(weight, mask, grad, budget, fraction, gamma, reversible, growth):
    """Returns mask and weight as nested lists."""
    neurons, inputs = len(weight), len(weight[0])
    everywhere = [(i, j) for i in range(neurons) for j in range(inputs)]
    active = [p for p in everywhere if mask[p[0]][p[1]]]
    drop = int(fraction * len(active))
    keep = len(active) - drop

    survivors = list(range(neurons))
    if gamma > 0:
        growable = everywhere if growth == "all" else [p for p in everywhere if p not in active]
        salient = set(largest(active, weight, keep)) | set(largest(growable, grad, drop))
        counts = [sum(1 for p in salient if p[0] == i) for i in range(neurons)]
        threshold = int(gamma) if gamma >= 1 else max(1, int(gamma * (budget // neurons)))
        eligible = [i for i in range(neurons) if reversible or any(mask[i])]
        ranked = sorted((counts[i] for i in eligible), reverse=True)
        least = min(budget // inputs, neurons - 1)
        at_least = ranked[least] if least < len(ranked) else 0
        threshold = min(threshold, at_least)
        survivors = [i for i in eligible if counts[i] >= threshold]
        survivors = sorted(sorted(survivors, key=lambda i: (-counts[i], i))[:budget])
    fan_in = min(budget // len(survivors), inputs)

    kept = largest([p for p in active if p[0] in survivors], weight, keep)
    new_mask = [[False] * inputs for _ in range(neurons)]
    for i in survivors:
        mine = largest([p for p in kept if p[0] == i], weight, fan_in)
        others = [(i, j) for j in range(inputs) if (i, j) not in mine]
        for _, j in mine + largest(others, grad, fan_in - len(mine)):
            new_mask[i][j] = True
    new_weight = [
        [w if m and was else 0.0 for w, m, was in zip(ws, ms, wass, strict=True)]
        for ws, ms, wass in zip(weight, new_mask, mask, strict=True)
    ]
    return new_mask, new_weight


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "tied"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_update_equals_the_loop_implementation_exactly(ties, seed):
    rng = np.random.default_rng(seed)
    for gamma in (0, 0.3, 0.95, 0.99, 1, 5):
        neurons, inputs = int(rng.integers(1, 10)), int(rng.integers(1, 12))
        budget = int(rng.integers(neurons, neurons * inputs + 1))
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        mask = initial_mask((neurons, inputs), budget, generator)
        weight, grad = torch.randn(2, neurons, inputs, generator=generator)
        if ties:
            weight, grad = weight.mul(2).round(), grad.mul(2).round()
        weight = weight * mask
        for _ in range(2):
            fraction = float(rng.choice([0, 0.15, 0.3, 0.5, 1]))
            reversible = bool(rng.integers(2))
            growth = str(rng.choice(["all", "inactive"]))
            rule = LayerRule(budget, fraction, gamma, reversible, growth)
            result = srigl_update(weight, mask, grad, rule)
            expected_mask, expected_weight = update_by_loops(
                weight.tolist(), mask.tolist(), grad.tolist(),
                budget, fraction, gamma, reversible, growth,
            )  # fmt: skip
            assert result.mask.tolist() == expected_mask
            assert result.weight.tolist() == expected_weight
            weight, mask = result.weight, result.mask
            grad = torch.randn(neurons, inputs, generator=generator)
