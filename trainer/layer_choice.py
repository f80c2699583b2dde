"""The choice of sparse layers and their densities."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from .._base.distributions import (
    Distribution,
    InfeasibleSparsityError,
    layer_densities,
    weight_budget,
)
from .layers import (
    IN_PROJECTIONS,
    check_trainable,
    count_other_weights,
    input_first_weights,
    parameter_aliases,
    prunable_weights,
    resolve_names,
)
from .output_layers import output_layers
from .structures import Structure


@dataclass(frozen=True)
class LayerOptions:
    """Which layers a ``Sparsifier`` makes sparse, and how it spreads the sparsity over them.

    Layers are given by qualified name ("blocks.0" or "blocks.0.weight"), or by patterns with ``*``.

    Attributes:
        distribution: "erk" (density by shape, arXiv 1911.11134) or "uniform".
        sparse_layers: the only layers that may be sparse; None: all.
        dense_layers: layers that stay dense.
        dense_in_budget: whether the weights of dense layers count toward the method's sparsity.
        densities: densities in (0, 1] of single layers; the other layers make up for them.
        min_fan_in: least weights per neuron of every layer, at the expense of the other layers.
        no_ablation: layers that keep all neurons, by at least one weight each; empty: none. None:
            those that compute the model's outputs, or the last one in module order, with a warning,
            if torch.fx cannot trace the model.
        in_proj: also make the input projections of ``torch.nn.MultiheadAttention`` sparse.

    Raises:
        TypeError: a value has the wrong type.

    """

    distribution: Distribution = "erk"
    sparse_layers: Sequence[str] | None = None
    dense_layers: Sequence[str] = ()
    dense_in_budget: bool = True
    densities: Mapping[str, float] = field(default_factory=dict)
    min_fan_in: int | None = None
    no_ablation: Sequence[str] | None = None
    in_proj: bool = False

    def __post_init__(self) -> None:
        for name in ("sparse_layers", "dense_layers", "no_ablation"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise TypeError(f"{name} must be a list of layer names; write [{value!r}]")
            if value is not None and not isinstance(value, Iterable):
                raise TypeError(f"{name} must be a list of layer names, got {value!r}")
        if not isinstance(self.densities, Mapping):
            raise TypeError(f"densities must map layer names to densities, got {self.densities!r}")


@dataclass(frozen=True)
class LayerChoice:
    """Every weight that could be sparse, by parameter name, and its density.

    Attributes:
        weights: the weights, in module order.
        shapes: shapes of the weights, neurons first, by name.
        input_first: weights whose neurons are in dimension 1.
        densities: density by name; 1.0 for layers that stay dense.
        protected: layers whose neurons are never ablated.

    """

    weights: dict[str, nn.Parameter]
    shapes: dict[str, tuple[int, ...]]
    input_first: frozenset[str]
    densities: dict[str, float]
    protected: frozenset[str]

    def turned(self, name: str, tensor: Tensor) -> Tensor:
        """Put the neurons of a tensor in a weight's layout into dimension 0, or the reverse."""
        return tensor.t() if name in self.input_first else tensor

    @property
    def sparse(self) -> list[str]:
        """Names of the layers with a density below 1, in module order."""
        return [name for name in self.weights if self.densities[name] < 1]


def all_dense(model: nn.Module, options: LayerOptions) -> LayerChoice:
    """Choose to keep every layer dense."""
    weights = prunable_weights(model, in_proj=options.in_proj)
    turned = input_first_weights(model, weights)
    densities = dict.fromkeys(weights, 1.0)
    return LayerChoice(weights, _shapes(weights, turned), turned, densities, frozenset())


def choose_layers(
    model: nn.Module,
    optimizer: Optimizer | None,
    sparsity: float,
    structure: Structure,
    options: LayerOptions,
) -> LayerChoice:
    """Spread a sparsity over the layers of a model.

    Args:
        model: the model.
        optimizer: the optimizer that will train it; None: it will not be trained.
        sparsity: target fraction of zero weights, in (0, 1).
        structure: structure of the masks.
        options: which layers, and how densities are distributed.

    Raises:
        ValueError: names, options or structure do not fit the model or each other, or no layer of
            a model to be trained would be sparse.
        InfeasibleSparsityError: a budget cannot be met.

    """
    weights = prunable_weights(model, in_proj=options.in_proj)
    if options.in_proj and not any(name.endswith(IN_PROJECTIONS) for name in weights):
        raise ValueError("in_proj is True, but the model has no torch.nn.MultiheadAttention")
    known = parameter_aliases(model, weights)
    dense = _dense_names(weights, known, options)
    names = list(weights)
    outputs = None
    if options.no_ablation is not None:
        protected = resolve_names("no_ablation", options.no_ablation, known)
    else:
        outputs = output_layers(model, weights)
        protected = outputs or frozenset(names[-1:])
    fixed = {}
    for name, density in options.densities.items():
        for listed in resolve_names("densities", [name], known):
            if listed in fixed or listed in dense:
                raise ValueError(
                    f"{listed!r} gets its density twice; name it once in densities or dense_layers"
                )
            fixed[listed] = density
    turned = input_first_weights(model, weights)
    shapes = _shapes(weights, turned)
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
    choice = LayerChoice(weights, shapes, turned, densities, protected)
    for name in choice.sparse:
        structure.check(name, shapes[name])
    if optimizer is not None:
        _check_training(model, optimizer, choice, dense)
        guessed = options.no_ablation is None and outputs is None
        if guessed and structure.loses_neurons and protected & set(choice.sparse):
            warnings.warn(
                f"torch.fx cannot trace the model, so {names[-1]}, the last layer in module order, "
                "is taken as its output and keeps all its neurons. If it is another one, name it "
                "in layers=LayerOptions(no_ablation=[…]).",
                UserWarning,
                stacklevel=3,
            )
    return choice


def _shapes(
    weights: Mapping[str, nn.Parameter], turned: frozenset[str]
) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(weight.shape)[:: -1 if name in turned else 1]
        for name, weight in weights.items()
    }


def _check_training(
    model: nn.Module, optimizer: Optimizer, choice: LayerChoice, dense: frozenset[str]
) -> None:
    """Refuse layers that cannot be trained as chosen."""
    if not choice.sparse:
        raise ValueError(_nothing_sparse(model, choice, dense))
    check_trainable(model, optimizer, choice.weights, choice.sparse)
    for name in sorted(choice.protected & set(choice.sparse)):
        shape = choice.shapes[name]
        budget = weight_budget(shape, choice.densities[name])
        if budget < shape[0]:
            raise InfeasibleSparsityError(
                f"{name!r} must keep all of its {shape[0]} neurons, but would have {budget} "
                "weights; raise its density, lower the sparsity, or list other layers in "
                "no_ablation (the default are output layers, [] is none)"
            )


def _nothing_sparse(model: nn.Module, choice: LayerChoice, dense: frozenset[str]) -> str:
    named = [name for name in choice.weights if name in dense]
    whole = [name for name in choice.weights if name not in dense]
    reasons = [
        f"{reason}: {', '.join(names[:8])}{f' and {len(names) - 8} more' * (len(names) > 8)}"
        for reason, names in (("kept dense by these options", named), ("of density 1", whole))
        if names
    ]
    if others := count_other_weights(model, choice.weights):
        reasons.append(f"of kinds that stay dense: {', '.join(others)}")
    return f"no layer would be sparse ({'; '.join(reasons)}). Name fewer layers, or use Dense()"


def _dense_names(
    weights: Mapping[str, nn.Parameter], known: Mapping[str, str], options: LayerOptions
) -> frozenset[str]:
    dense = resolve_names("dense_layers", options.dense_layers, known)
    dense |= {name for name, weight in weights.items() if not weight.numel()}
    if options.sparse_layers is None:
        return dense
    sparse = resolve_names("sparse_layers", options.sparse_layers, known)
    if both := sparse & dense:
        raise ValueError(f"sparse_layers and dense_layers both name {', '.join(sorted(both))}")
    if not sparse:
        raise ValueError("sparse_layers is empty; for dense training use Dense()")
    return frozenset(weights) - sparse


def _equal_density(
    names: Iterable[str], dense: frozenset[str], density: float, options: LayerOptions
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
            f"N:M gives every sparse layer density {density:g}, which is incompatible with "
            f"{', '.join(unused)}; use distribution='uniform', dense_in_budget=False, and neither "
            "densities nor min_fan_in"
        )
    return {name: 1.0 if name in dense else density for name in names}
