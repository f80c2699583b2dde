"""Options that a callback keeps for the ``Sparsifier`` that it will make."""

import inspect

from ..._base.names import near_matches
from ..sparsifier import Sparsifier
from ..sparsifier_options import CallbackOptions

_GIVEN_BY_THE_LOOP = {"self", "model", "optimizer", "total_steps", "grad_scaler", "state"}


def check_options(options: CallbackOptions) -> CallbackOptions:
    """Return ``options`` when ``Sparsifier`` has them all; TypeError when it does not."""
    known = set(inspect.signature(Sparsifier.__init__).parameters) - _GIVEN_BY_THE_LOOP
    for name in options:
        if name not in known:
            raise TypeError(f"Sparsifier has no option {name!r}." + near_matches(name, known))
    return options


def attached(sparsifier: Sparsifier | None) -> Sparsifier:
    """Return the callback's sparsifier; RuntimeError before training has begun."""
    if sparsifier is None:
        raise RuntimeError(
            "the callback has no sparsifier yet: it makes one when training begins; let the "
            "trainer call it"
        )
    return sparsifier
