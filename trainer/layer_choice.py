"""Which layers of a model are sparse, and how dense each is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from .distributions import layer_densities
from .layers import IN_PROJECTIONS, check_trainable, prunable_weights, resolve_names, shared_names
from .structures import Structure


@dataclass(frozen=True)
class ChoiceOptions:
    """Options of ``Sparsifier`` of the same names that choose layers and densities."""

    distribution: str = "erk"
    sparse_layers: Iterable[str] | None = None
    dense_layers: Iterable[str] = ()
    dense_in_budget: bool = True
    densities: Mapping[str, float] | None = None
    min_fan_in: int | None = None
    no_ablation: Iterable[str] | None = None
    in_proj: bool = False


@dataclass(frozen=True)
class LayerChoice:
    """Every weight that could be sparse, by parameter name, and what becomes of it.

    ``densities``: 1.0 for layers that stay dense. ``unablated``: layers that keep all neurons.
    """

    weights: dict[str, nn.Parameter]
    densities: dict[str, float]
    unablated: frozenset[str]

    @property
    def sparse(self) -> list[str]:
        """Names of the layers with a density below 1, in module order."""
        return [name for name in self.weights if self.densities[name] < 1]


def all_dense(model: nn.Module, options: ChoiceOptions) -> LayerChoice:
    """Every layer dense."""
    weights = prunable_weights(model, in_proj=options.in_proj)
    return LayerChoice(weights, dict.fromkeys(weights, 1.0), frozenset())


def choose_layers(
    model: nn.Module,
    optimizer: Optimizer | None,
    sparsity: float,
    structure: Structure,
    options: ChoiceOptions,
) -> LayerChoice:
    """Spread ``sparsity`` over the layers of ``model`` that are to be sparse.

    ``optimizer`` None: the model will not be trained. Raises ValueError (InfeasibleSparsityError
    for budgets) when names, options and structure do not fit the model or each other.
    """
    weights = prunable_weights(model, in_proj=options.in_proj)
    if options.in_proj and not any(name.endswith(IN_PROJECTIONS) for name in weights):
        raise ValueError("in_proj=True, but the model has no torch.nn.MultiheadAttention")
    known = shared_names(model, weights)
    dense = _dense_names(weights, known, options)
    names = list(weights)
    unablated = resolve_names(
        "no_ablation", names[-1:] if options.no_ablation is None else options.no_ablation, known
    )
    fixed = {}
    for name, density in (options.densities or {}).items():
        for listed in resolve_names("densities", [name], known):
            if listed in fixed or listed in dense:
                raise ValueError(f"{listed!r} is given a density twice; name it in one place")
            fixed[listed] = density
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    if structure.density is not None:
        densities = _equal_density(names, dense, structure.density, options)
    else:
        densities = layer_densities(
            shapes,
            sparsity,
            options.distribution,
            dense=dense,
            dense_in_budget=options.dense_in_budget,
            fixed=fixed,
            min_fan_in=options.min_fan_in,
            least_budget=structure.least_budget,
        )
    choice = LayerChoice(weights, densities, unablated)
    for name in choice.sparse:
        structure.check(name, shapes[name])
    if optimizer is not None:
        check_trainable(model, optimizer, weights, choice.sparse)
    return choice


def _dense_names(
    weights: Mapping[str, nn.Parameter], known: Mapping[str, str], options: ChoiceOptions
) -> frozenset[str]:
    dense = resolve_names("dense_layers", options.dense_layers, known)
    if options.sparse_layers is None:
        return dense
    sparse = resolve_names("sparse_layers", options.sparse_layers, known)
    if both := sparse & dense:
        raise ValueError(f"{sorted(both)} stand in sparse_layers and in dense_layers")
    if not sparse:
        raise ValueError("sparse_layers is empty; for dense training use Dense()")
    return frozenset(weights) - sparse


def _equal_density(
    names: Iterable[str], dense: frozenset[str], density: float, options: ChoiceOptions
) -> dict[str, float]:
    unused = [
        option
        for option, used in (
            ("distribution='erk'", options.distribution != "uniform"),
            ("dense_in_budget=True", options.dense_in_budget),
            ("densities", options.densities),
            ("min_fan_in", options.min_fan_in is not None),
        )
        if used
    ]
    if unused:
        raise ValueError(
            f"N:M gives every sparse layer the density {density:g}, which leaves no room for "
            f"{', '.join(unused)}: pass distribution='uniform', dense_in_budget=False and no "
            "densities"
        )
    return {name: 1.0 if name in dense else density for name in names}
