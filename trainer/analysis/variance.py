"""Output-norm variance of a randomly initialized sparse layer: formulas and simulation.

SRigL (arXiv 2305.02299, appendix A): z' = W ReLU(z) for an n×n layer whose neurons have k weights
of standard deviation √(2/k), exactly or on average. The less the neurons of a topology can differ,
the less ‖z'‖²/‖z‖² varies. The paper prints 18·k/n where these formulas have 18·n/k; the simulation
shows that the latter is right.
"""

from dataclasses import dataclass
from typing import Literal

import torch

Topology = Literal["bernoulli", "constant-per-layer", "constant-fan-in"]
TOPOLOGIES: tuple[Topology, ...] = ("bernoulli", "constant-per-layer", "constant-fan-in")
_DRAWS_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class SimulatedVariance:
    """Sample variance and mean of ‖z'‖²/‖z‖², with their standard errors."""

    variance: float
    variance_error: float
    mean: float
    mean_error: float


def output_norm_variance(n: int, k: int, topology: Topology) -> float:
    """Return Var(‖z'‖²/‖z‖²) of a layer of ``n`` neurons and inputs with ``k`` weights per neuron.

    Args:
        n: neurons and inputs, at least 2.
        k: fan-in, 1 ≤ k ≤ n.
        topology: "bernoulli": each weight exists with probability k/n; "constant-per-layer": n·k
            weights anywhere; "constant-fan-in": k weights in each neuron.

    Raises:
        ValueError: a value is out of range.

    """
    _check(n, k, topology)
    scale = n * (n + 2)
    bernoulli = (5 * n - 8 + 18 * n / k) / scale
    if topology == "bernoulli":
        return bernoulli
    if topology == "constant-fan-in":
        return bernoulli - 3 * (n - k) / (k * scale)
    pairs = (n - 1 / k) / (n - 1 / n)
    return ((n * n + 7 * n - 8) * pairs + 18 * n / k - n * n - 2 * n) / scale


def simulate_output_norm(
    n: int, k: int, topology: Topology, *, draws: int = 20_000, seed: int = 0
) -> SimulatedVariance:
    """Estimate the same by drawing layers, and inputs uniform on the sphere, in float32.

    The ReLU on the inputs is a factor of 0 or 1 with probability ½ each, as in the derivation.
    (Applied to the outputs, which neurons do not share, it would reduce the variance of constant
    fan-in further.)

    Args:
        n: neurons and inputs, at least 2.
        k: fan-in, 1 ≤ k ≤ n.
        topology: as for ``output_norm_variance``.
        draws: number of layers and inputs, at least 2.
        seed: seed of the generator.

    Raises:
        ValueError: a value is out of range.

    """
    _check(n, k, topology)
    if draws < 2:
        raise ValueError(f"draws must be at least 2, got {draws}")
    generator = torch.Generator().manual_seed(seed)
    ratios, left = [], draws
    while left:
        count = min(left, max(1, _DRAWS_AT_ONCE // (n * n)))
        ratios.append(_ratios(n, k, topology, count, generator))
        left -= count
    values = torch.cat(ratios).double()
    centered = values - values.mean()
    variance = centered.square().sum() / (draws - 1)
    fourth = centered.pow(4).mean()
    return SimulatedVariance(
        variance=float(variance),
        variance_error=float(((fourth - variance**2) / draws).sqrt()),
        mean=float(values.mean()),
        mean_error=float((variance / draws).sqrt()),
    )


def _ratios(
    n: int, k: int, topology: Topology, count: int, generator: torch.Generator
) -> torch.Tensor:
    uniform = torch.rand(count, n, n, generator=generator)
    if topology == "bernoulli":
        mask = uniform < k / n
    else:
        kept = uniform.view(count, 1, n * n) if topology == "constant-per-layer" else uniform
        places = kept.topk(n * k if topology == "constant-per-layer" else k, dim=2).indices
        mask = torch.zeros(kept.shape, dtype=torch.bool).scatter_(2, places, True)
        mask = mask.view(count, n, n)
    weight = torch.randn(count, n, n, generator=generator) * (2 / k) ** 0.5 * mask
    inputs = torch.randn(count, n, 1, generator=generator)
    inputs /= inputs.norm(dim=1, keepdim=True)
    passed = torch.rand(count, n, 1, generator=generator) < 0.5
    outputs: torch.Tensor = weight @ (inputs * passed)
    return outputs.square().sum((1, 2))


def _check(n: int, k: int, topology: Topology) -> None:
    if n < 2 or not 1 <= k <= n:
        raise ValueError(f"n and k must satisfy 1 ≤ k ≤ n and n ≥ 2, got n={n}, k={k}")
    if topology not in TOPOLOGIES:
        raise ValueError(f"topology must be one of {', '.join(TOPOLOGIES)}, got {topology!r}")
