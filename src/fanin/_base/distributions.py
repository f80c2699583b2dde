"""Distribution of a global sparsity over layers: uniform and Erdős–Rényi-Kernel (ERK).

Pure functions from layer shapes to densities. Shapes are those of the weights, neurons first
(``Linear``: [out, in]; convolution: [out, in/groups, *kernel]).
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Literal

Distribution = Literal["erk", "uniform"]
Shapes = Mapping[str, tuple[int, ...]]
Densities = dict[str, float]

# n·d·(1-S) may be a rounding error below the whole number that it should be.
_ROUNDING_SLACK = 1e-6


class InfeasibleSparsityError(ValueError):
    """The requested sparsity cannot be distributed over these layers."""


class ForcedTooSparseError(InfeasibleSparsityError):
    """Fixed densities make the layers sparser than requested."""


def weight_budget(shape: tuple[int, ...], density: float) -> int:
    """Return B = int(n·d·density), the number of weights that a layer of this shape may hold."""
    return math.floor(math.prod(shape) * density + _ROUNDING_SLACK)


def uniform(
    shapes: Shapes,
    sparsity: float,
    *,
    dense: Collection[str] = (),
    dense_in_budget: bool = True,
    fixed: Densities | None = None,
) -> Densities:
    """Give every sparse layer the same density.

    Args:
        shapes: weight shapes by layer.
        sparsity: target fraction of zero weights, in [0, 1).
        dense: layers that get density 1.
        dense_in_budget: whether ``sparsity`` is that of all layers, dense ones included, or of the
            sparse layers only.
        fixed: given densities by layer; they count in the budget.

    Raises:
        InfeasibleSparsityError: the dense and fixed layers alone exceed the budget, or leave more
            of it than the other layers can hold.

    """
    forced = dict.fromkeys(dense, 1.0) | (fixed or {})
    free = [name for name in shapes if name not in forced]
    density = 1.0 - sparsity
    if (free and dense_in_budget) or fixed:
        counted = [name for name in shapes if dense_in_budget or name not in dense]
        sizes = {name: math.prod(shapes[name]) for name in counted}
        held = sum(sizes[name] * forced[name] for name in counted if name in forced)
        left, room = density * sum(sizes.values()) - held, sum(sizes[name] for name in free)
        density = left / room if free else 1.0
        if (left <= 0) if free else (left < -len(shapes)):
            raise _forced_too_large(shapes, sparsity, forced)
        if left - room > len(shapes):
            raise _forced_too_small(shapes, sparsity, forced)
    return {name: forced.get(name, min(density, 1.0)) for name in shapes}


def erk(
    shapes: Shapes,
    sparsity: float,
    *,
    dense: Collection[str] = (),
    dense_in_budget: bool = True,
    fixed: Densities | None = None,
) -> Densities:
    """Give each layer a density proportional to Σ shape / Π shape (arXiv 1911.11134, section 3).

    A layer whose density would exceed 1 becomes dense, and the rest is distributed again. Layers
    that tie for the largest raw density become dense together, so the result does not depend on the
    order of the layers.

    Args:
        shapes: weight shapes by layer.
        sparsity: target fraction of zero weights, in [0, 1).
        dense: layers that get density 1.
        dense_in_budget: whether ``sparsity`` is that of all layers, dense ones included, or of the
            sparse layers only.
        fixed: given densities by layer; they count in the budget.

    Raises:
        InfeasibleSparsityError: as for ``uniform``.

    """
    outside = {} if dense_in_budget else dict.fromkeys(dense, 1.0)
    shapes = {name: shape for name, shape in shapes.items() if name not in outside}
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    forced = {n: 1.0 for n in shapes if n in dense or not sizes[n]} | (fixed or {})
    total = sum(size - int(size * sparsity) for size in sizes.values())
    raw = {name: sum(shape) / math.prod(shape) for name, shape in shapes.items() if sizes[name]}
    full = dict(forced)
    while free := [name for name in shapes if name not in full]:
        budget = total - sum(sizes[name] * density for name, density in full.items())
        if budget <= 0:
            raise _forced_too_large(shapes, sparsity, forced)
        scale = budget / sum(raw[n] * sizes[n] for n in free)
        largest = max(raw[n] for n in free)
        if scale * largest <= 1:
            break
        full |= {n: 1.0 for n in free if raw[n] == largest}
    else:
        left = total - sum(sizes[name] * density for name, density in full.items())
        if fixed and left < -len(shapes):
            raise _forced_too_large(shapes, sparsity, forced)
        if fixed and left > len(shapes):
            raise _forced_too_small(shapes, sparsity, forced)
    return outside | {n: full[n] if n in full else scale * raw[n] for n in shapes}


DISTRIBUTIONS: dict[Distribution, Callable[..., Densities]] = {"erk": erk, "uniform": uniform}


def one_per_neuron(shape: tuple[int, ...]) -> int:
    """Return the least budget of a layer whose neurons all hold weights."""
    return shape[0]


def layer_densities(
    shapes: Shapes,
    sparsity: float,
    distribution: Distribution,
    *,
    dense: Collection[str] = (),
    dense_in_budget: bool = True,
    fixed: Densities | None = None,
    min_fan_in: int | None = None,
    least_budget: Callable[[tuple[int, ...]], int] = one_per_neuron,
) -> Densities:
    """Distribute a sparsity so that each layer keeps its least budget.

    Args:
        shapes: weight shapes by layer.
        sparsity: target fraction of zero weights, in [0, 1).
        distribution: "erk" or "uniform".
        dense: layers that stay dense.
        dense_in_budget: whether dense layers count toward the sparsity.
        fixed: given densities by layer, in (0, 1].
        min_fan_in: layers that would get fewer weights per neuron get this many (all, if they have
            fewer inputs), at the expense of the other layers.
        least_budget: fewest weights that a layer of a shape can hold.

    Raises:
        ValueError: the distribution is unknown, or a value is out of range.
        InfeasibleSparsityError: a budget cannot be met; names the largest feasible sparsity.

    """
    if distribution not in DISTRIBUTIONS:
        raise ValueError(
            f"unknown distribution {distribution!r}; use one of {sorted(DISTRIBUTIONS)}"
        )
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity must be in [0, 1), got {sparsity}")
    if min_fan_in is not None and min_fan_in < 1:
        raise ValueError(f"min_fan_in must be at least 1, got {min_fan_in}")
    given = dict(fixed or {})
    for name, density in given.items():
        if not 0 < density <= 1:
            raise ValueError(f"the density of {name!r} must be in (0, 1], got {density}")

    def spread(target: float) -> Densities:
        lifted = dict(given)
        while True:
            densities = DISTRIBUTIONS[distribution](
                shapes, target, dense=dense, dense_in_budget=dense_in_budget, fixed=lifted
            )
            low = _below(shapes, densities, min_fan_in) if min_fan_in else {}
            low = {name: density for name, density in low.items() if name not in lifted}
            if not low:
                return densities
            lifted |= low

    def advice() -> str:
        largest = largest_feasible_sparsity(shapes, spread, least_budget)
        return f"The largest feasible sparsity here is {largest:.4f}; use that or less."

    try:
        densities = spread(sparsity)
    except InfeasibleSparsityError as error:
        raise InfeasibleSparsityError(f"{error} {advice()}") from None
    for name, shape in shapes.items():
        if math.prod(shape) and weight_budget(shape, densities[name]) < least_budget(shape):
            fan_in = math.prod(shape[1:])
            raise InfeasibleSparsityError(
                f"at sparsity {sparsity:g} ({distribution}), layer {name!r} {list(shape)} would "
                f"have density {densities[name]:.3g}, less than one weight per neuron "
                f"(1/{fan_in}). {advice()}"
            )
    return densities


def _below(shapes: Shapes, densities: Densities, fan_in: int) -> Densities:
    """Return densities that raise layers with fewer weights per neuron to ``fan_in``."""
    wanted = {name: min(fan_in, math.prod(shape[1:])) for name, shape in shapes.items()}
    return {
        name: wanted[name] / math.prod(shape[1:])
        for name, shape in shapes.items()
        if weight_budget(shape, densities[name]) // shape[0] < wanted[name]
    }


def largest_feasible_sparsity(
    shapes: Shapes,
    spread: Callable[[float], Densities],
    least_budget: Callable[[tuple[int, ...]], int] = one_per_neuron,
) -> float:
    """Return the largest sparsity, to four decimals, that leaves every layer its least budget."""

    def feasible(ten_thousandths: int) -> bool:
        try:
            densities = spread(ten_thousandths / 10_000)
        except ForcedTooSparseError:
            return True  # the fixed densities imply a higher sparsity than this one
        except InfeasibleSparsityError:
            return False
        return all(weight_budget(s, densities[n]) >= least_budget(s) for n, s in shapes.items())

    low, high = 0, 10_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if feasible(middle) else (low, middle)
    return low / 10_000


def _forced_too_large(
    shapes: Shapes, sparsity: float, forced: Densities
) -> InfeasibleSparsityError:
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    held = sum(sizes[name] * density for name, density in forced.items() if name in sizes)
    return InfeasibleSparsityError(
        f"sparsity {sparsity:g} leaves {(1 - sparsity) * sum(sizes.values()):.0f} of "
        f"{sum(sizes.values())} weights, but the layers that are dense or have a fixed density "
        f"({', '.join(forced)}) alone hold {held:.0f}."
    )


def _forced_too_small(shapes: Shapes, sparsity: float, forced: Densities) -> ForcedTooSparseError:
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    most = sum(size * forced.get(name, 1.0) for name, size in sizes.items())
    return ForcedTooSparseError(
        f"sparsity {sparsity:g} leaves {(1 - sparsity) * sum(sizes.values()):.0f} weights, but "
        f"with the fixed densities ({', '.join(forced)}) there can be at most {most:.0f}: the "
        f"sparsity is at least {1 - most / sum(sizes.values()):.4f}."
    )
