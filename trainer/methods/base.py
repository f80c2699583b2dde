"""What a training method is: two scores, a plan, and a structure.

The sparsifier asks a method for each layer's first mask, for a plan of every update (how many
weights each layer drops and holds), and for the update itself. All of it is pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..structures import Change, Structure, parse_structure
from ..update import LayerUpdate


@dataclass(frozen=True)
class LayerInputs:
    """What a method sees of one layer at one update.

    ``gradient``: dense gradient, averaged over the window or over all steps (``momentum``), of
    the weight's shape; None for methods without gradients. ``budget``: weights that the layer is
    meant to hold. ``random``: uniform numbers in [0, 1) of the weight's shape, which depend on
    seed, layer and step only.
    """

    weight: Tensor
    mask: Tensor
    gradient: Tensor | None
    budget: int
    may_ablate: bool
    random: Callable[[], Tensor]

    @property
    def dense_gradient(self) -> Tensor:
        """``gradient``, for methods that use one; layers without one are left out of their plan."""
        if self.gradient is None:
            raise RuntimeError("a method asked for a gradient that uses_gradient does not announce")
        return self.gradient


@dataclass(frozen=True)
class Moment:
    """Where in the schedule an update stands: drop fraction, and that of the next update.

    ``next_fraction`` is 0 at the last update.
    """

    fraction: float
    next_fraction: float


def check_sparsity(sparsity: float) -> None:
    """Raise ValueError unless 0 < sparsity < 1, TypeError when it is no number."""
    if not isinstance(sparsity, int | float):
        raise TypeError(f"sparsity must be a number in (0, 1), got {sparsity!r}")
    if not 0 < sparsity < 1:
        raise ValueError(
            f"sparsity must be in (0, 1), got {sparsity}; for dense training use Dense()"
        )


@dataclass(frozen=True)
class SparseMethod:
    """Base of all methods that train sparse: override a score, or the plan.

    ``sparsity``: asked share of zero weights, in (0, 1).
    """

    name: ClassVar[str]
    # Whether the topology changes at all; whether a layer's budget moves to other layers; whether
    # weights off the mask go on training behind it.
    updates: ClassVar[bool] = True
    redistributes: ClassVar[bool] = False
    dense_to_sparse: ClassVar[bool] = False
    uses_gradient: ClassVar[bool] = True

    sparsity: float

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)
        density = self.layout().density
        if density is not None and abs(1 - density - self.sparsity) > 1e-9:
            raise ValueError(
                f"structure {self._structure_name!r} has a sparsity of {1 - density:g}, "
                f"not {self.sparsity}"
            )

    def layout(self) -> Structure:
        """Structure of every sparse layer."""
        return parse_structure(self._structure_name)

    @property
    def _structure_name(self) -> str:
        """What a method with a field ``structure`` has there."""
        return str(getattr(self, "structure", "unstructured"))

    @property
    def gradient_momentum(self) -> float | None:
        """Decay of an average of dense gradients over all steps; None: the schedule's window."""
        return None

    def drop_score(self, layer: LayerInputs) -> Tensor:
        """Weights with the lowest score go; magnitude unless overridden."""
        return layer.weight.detach().abs()

    def grow_score(self, layer: LayerInputs) -> Tensor:
        """Positions with the highest score come."""
        raise NotImplementedError

    def plan(self, layers: Mapping[str, LayerInputs], moment: Moment) -> dict[str, Change]:
        """Say what each layer drops and holds: int(fraction · active) weights are replaced."""
        return {name: same_budget(layer, moment.fraction) for name, layer in layers.items()}

    def update(self, layer: LayerInputs, change: Change) -> LayerUpdate:
        """Compute the new mask and weight of one layer."""
        scores = self.drop_score(layer), self.grow_score(layer)
        return self.layout().update(layer.weight, layer.mask, *scores, change)


def same_budget(layer: LayerInputs, fraction: float) -> Change:
    """Replace a fraction of the active weights."""
    drop_count = int(fraction * int(layer.mask.count_nonzero()))
    return Change(layer.budget, fraction, drop_count, layer.may_ablate)
