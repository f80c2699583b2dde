"""How a global sparsity is spread over the layers: uniform and Erdős–Rényi-Kernel (ERK).

Pure functions from layer shapes to densities. Shapes are those of the weights, neurons first
(``Linear``: [out, in]; convolution: [out, in/groups, *kernel]).
"""

import math
from collections.abc import Callable, Collection, Mapping

Shapes = Mapping[str, tuple[int, ...]]
Densities = dict[str, float]

# n·d·(1-S) may fall a rounding error short of the whole number it stands for.
_ROUNDING_SLACK = 1e-6


class InfeasibleSparsityError(ValueError):
    """The requested sparsity cannot be spread over these layers."""


def weight_budget(shape: tuple[int, ...], density: float) -> int:
    """Return the number of weights B = int(n·d·density) that a layer of this shape may hold."""
    return math.floor(math.prod(shape) * density + _ROUNDING_SLACK)


def uniform(
    shapes: Shapes,
    sparsity: float,
    *,
    dense: Collection[str] = (),
    dense_in_budget: bool = True,
) -> Densities:
    """Give every sparse layer the same density; layers named in ``dense`` get 1.

    With ``dense_in_budget`` the dense layers' weights count, so that the whole of ``shapes``
    reaches ``sparsity``; without it only the sparse layers do.
    Raises InfeasibleSparsityError when the dense layers alone exceed the budget.
    """
    free = [name for name in shapes if name not in dense]
    density = 1.0 - sparsity
    if dense_in_budget and free:
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        total, free_size = sum(sizes.values()), sum(sizes[name] for name in free)
        density = (density * total - (total - free_size)) / free_size
        if density <= 0:
            raise _dense_layers_too_large(shapes, sparsity, dense)
    return {name: 1.0 if name in dense else density for name in shapes}


def erk(
    shapes: Shapes,
    sparsity: float,
    *,
    dense: Collection[str] = (),
    dense_in_budget: bool = True,
) -> Densities:
    """Densities proportional to Σ shape / Π shape (RigL, arXiv 1911.11134, section 3).

    A layer whose density would exceed 1 becomes dense and the rest is spread again. Layers that
    tie for the largest raw density become dense together, so the result does not depend on
    the order of the layers.
    Raises InfeasibleSparsityError when the layers in ``dense`` alone exceed the budget.
    """
    if not dense_in_budget:
        shapes = {name: shape for name, shape in shapes.items() if name not in dense}
        forced, dense = dict.fromkeys(dense, 1.0), ()
    else:
        forced = {}
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    zeros = {name: int(size * sparsity) for name, size in sizes.items()}
    raw = {name: sum(shape) / math.prod(shape) for name, shape in shapes.items()}
    full = {name for name in shapes if name in dense}
    while free := [name for name in shapes if name not in full]:
        budget = sum(sizes[n] - zeros[n] for n in free) - sum(zeros[n] for n in full)
        if budget <= 0:
            raise _dense_layers_too_large(shapes, sparsity, dense)
        scale = budget / sum(raw[n] * sizes[n] for n in free)
        largest = max(raw[n] for n in free)
        if scale * largest <= 1:
            break
        full |= {n for n in free if raw[n] == largest}
    return forced | {n: 1.0 if n in full else scale * raw[n] for n in shapes}


DISTRIBUTIONS: dict[str, Callable[..., Densities]] = {"erk": erk, "uniform": uniform}


def layer_densities(
    shapes: Shapes,
    sparsity: float,
    distribution: str,
    *,
    dense: Collection[str] = (),
    dense_in_budget: bool = True,
) -> Densities:
    """Densities by the named distribution, each leaving every neuron at least one weight.

    Raises ValueError for an unknown distribution or a sparsity outside [0, 1), and
    InfeasibleSparsityError, naming the largest feasible sparsity, when a budget cannot be met.
    """
    if distribution not in DISTRIBUTIONS:
        raise ValueError(
            f"unknown distribution {distribution!r}; use one of {sorted(DISTRIBUTIONS)}"
        )
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity must be in [0, 1), got {sparsity}")

    def spread(target: float) -> Densities:
        return DISTRIBUTIONS[distribution](
            shapes, target, dense=dense, dense_in_budget=dense_in_budget
        )

    try:
        densities = spread(sparsity)
    except InfeasibleSparsityError as error:
        raise InfeasibleSparsityError(f"{error} {_advice(shapes, spread)}") from None
    for name, shape in shapes.items():
        if weight_budget(shape, densities[name]) < shape[0]:
            fan_in = math.prod(shape[1:])
            raise InfeasibleSparsityError(
                f"at sparsity {sparsity:g} ({distribution}) layer {name!r} {list(shape)} would "
                f"have density {densities[name]:.3g}, less than one weight per neuron "
                f"(1/{fan_in}). {_advice(shapes, spread)}"
            )
    return densities


def largest_feasible_sparsity(shapes: Shapes, spread: Callable[[float], Densities]) -> float:
    """Largest sparsity, to four decimals, at which every neuron keeps at least one weight."""

    def feasible(ten_thousandths: int) -> bool:
        try:
            densities = spread(ten_thousandths / 10_000)
        except InfeasibleSparsityError:
            return False
        return all(weight_budget(s, densities[name]) >= s[0] for name, s in shapes.items())

    low, high = 0, 10_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if feasible(middle) else (low, middle)
    return low / 10_000


def _advice(shapes: Shapes, spread: Callable[[float], Densities]) -> str:
    largest = largest_feasible_sparsity(shapes, spread)
    return f"The largest feasible sparsity here is {largest:.4f}; ask for that or less."


def _dense_layers_too_large(
    shapes: Shapes, sparsity: float, dense: Collection[str]
) -> InfeasibleSparsityError:
    total = sum(math.prod(shape) for shape in shapes.values())
    held = sum(math.prod(shape) for name, shape in shapes.items() if name in dense)
    return InfeasibleSparsityError(
        f"sparsity {sparsity:g} leaves {(1 - sparsity) * total:.0f} of {total} weights, but the "
        f"dense layers ({', '.join(dense)}) alone hold {held}."
    )
