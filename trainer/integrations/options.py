"""What the callbacks share: options for the ``Sparsifier`` that each makes when training begins."""

from collections.abc import Sequence
from typing import TypedDict

from torch.distributed import ProcessGroup

from ..._base.distributions import Distribution
from ..initialization import InitializationOptions
from ..layer_choice import LayerOptions
from ..schedule import ScheduleOptions
from ..sparsifier import Sparsifier
from ..sparsifier_options import keywords_of, refuse_unknown

_SET_BY_CALLBACK = {"method", "total_steps", "grad_scaler", "state"}


class CallbackOptions(TypedDict, total=False):
    """Keywords of ``Sparsifier`` that do not come from the trainer."""

    update_every: int
    distribution: Distribution
    dense_layers: Sequence[str]
    layers: LayerOptions
    schedule: ScheduleOptions
    initialization: InitializationOptions
    seed: int
    process_group: ProcessGroup | None


def check_options(options: CallbackOptions) -> CallbackOptions:
    """Return ``options``; raise TypeError for a keyword that ``Sparsifier`` does not have."""
    known = set(keywords_of(Sparsifier.__init__)) - _SET_BY_CALLBACK
    refuse_unknown([name for name in options if name not in known], known)
    return options


def attached(sparsifier: Sparsifier | None) -> Sparsifier:
    """Return the callback's sparsifier; raise RuntimeError before training has begun."""
    if sparsifier is None:
        raise RuntimeError(
            "the callback has no sparsifier before training begins; add it to the trainer's "
            "callbacks and call the trainer's training method"
        )
    return sparsifier
