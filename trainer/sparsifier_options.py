"""Arguments of ``Sparsifier`` that are kept in a dictionary before one is made."""

from collections.abc import Iterable, Mapping
from typing import TypedDict

from torch.distributed import ProcessGroup

from .initialization import Deviation


class RecipeOptions(TypedDict):
    """Those that a recipe gives in [sparsifier]."""

    distribution: str
    sparse_layers: Iterable[str] | None
    dense_layers: Iterable[str]
    dense_in_budget: bool
    densities: Mapping[str, float] | None
    min_fan_in: int | None
    no_ablation: Iterable[str] | None
    in_proj: bool
    weight_std: Deviation
    update_every: int
    end_fraction: float
    alpha: float
    gradient_window: int


class CallbackOptions(RecipeOptions, total=False):
    """Those that a callback of another library's training loop takes, besides the method."""

    seed: int
    initialize: bool
    first_mask: str
    process_group: ProcessGroup | None
