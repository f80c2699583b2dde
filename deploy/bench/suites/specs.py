"""What the specs of the benchmarks share: timing, and checks whose ValueErrors name the field."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from ..measure.timing import Timing

_Name = TypeVar("_Name", bound=str)

MAX_FEATURES = 2**31 - 1
"""Of the op's attributes."""

# A protobuf, and so an ONNX file without external data, holds less than 2 GiB.
_MAX_DENSE_WEIGHTS = (2**31 - 2**20) // 4


def check_choices(name: str, chosen: Sequence[str], known: Sequence[str]) -> None:
    """Refuse no choices, unknown ones and one that is made twice."""
    if not chosen or not set(chosen) <= set(known) or len(set(chosen)) < len(chosen):
        raise ValueError(f"{name} are {chosen}; there are {', '.join(known)}, each once")


def choices(name: str, chosen: Sequence[str], known: Sequence[_Name]) -> tuple[_Name, ...]:
    """Return the known names that are chosen; ValueError as of check_choices."""
    check_choices(name, chosen, known)
    by_name: dict[str, _Name] = {one: one for one in known}
    return tuple(by_name[one] for one in chosen)


def check_batches(batches: Sequence[int]) -> None:
    """Refuse no batches, batches below 1 and one that is given twice."""
    if not batches or min(batches) < 1:
        raise ValueError(f"batches are {batches}; give one or more, each at least 1")
    if len(set(batches)) < len(batches):
        raise ValueError(f"batches are {batches}; give each once")


def check_seed(seed: int) -> None:
    """Refuse what NumPy takes for no seed."""
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be at least 0")


def check_features(name: str, features: int) -> None:
    """Refuse a number of inputs or outputs that the op cannot have."""
    if not 1 <= features <= MAX_FEATURES:
        raise ValueError(f"{name} is {features}; it must be 1 to {MAX_FEATURES}")


def check_dense_size(in_features: int, out_features: int) -> None:
    """Refuse a layer whose dense weight does not fit into the model that it is measured in."""
    if in_features * out_features > _MAX_DENSE_WEIGHTS:
        raise ValueError(
            f"in_features {in_features} and out_features {out_features} make a dense weight of "
            f"{4 * in_features * out_features / 1e9:.1f} GB; the dense model holds up to 2.1 GB"
        )


def timing_of(spec: Any) -> Timing:
    """Return how a spec with all fields of timing is measured."""
    return Timing(
        threads=spec.threads,
        rounds=spec.rounds,
        turn=spec.turn,
        budget=spec.budget,
        max_warmup=spec.warmup,
        conditions=spec.conditions,
    )


def spec_facts(spec: Any) -> dict[str, Any]:
    """Return a spec for the result file: trained layers by their titles, and no paths."""
    names = [one.name for one in dataclasses.fields(spec) if one.name != "deepsparse_python"]
    facts = {name: getattr(spec, name) for name in names}
    trained = facts.pop("trained", None)
    if isinstance(trained, tuple):
        facts["trained"] = [layer.title for layer in trained]
    elif trained is not None:
        facts["trained"] = trained.title
    return facts
