"""What the specs of the benchmarks share: timing, and checks whose ValueErrors name the field."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from ..measure.timing import Timing

_Name = TypeVar("_Name", bound=str)

MAX_FEATURES = 2**31 - 1
"""Largest value of the op's attributes in_features and out_features."""

# A protobuf, and thus an ONNX file without external data, is smaller than 2 GiB.
_MAX_DENSE_WEIGHTS = (2**31 - 2**20) // 4


def check_choices(name: str, chosen: Sequence[str], known: Sequence[str]) -> None:
    """Reject no choices, unknown ones and duplicates."""
    if not chosen or not set(chosen) <= set(known) or len(set(chosen)) < len(chosen):
        raise ValueError(f"{name} are {chosen}; there are {', '.join(known)}, each once")


def choices(name: str, chosen: Sequence[str], known: Sequence[_Name]) -> tuple[_Name, ...]:
    """Return the known names that are chosen; raises ValueError as check_choices does."""
    check_choices(name, chosen, known)
    by_name: dict[str, _Name] = {one: one for one in known}
    return tuple(by_name[one] for one in chosen)


def check_batches(batches: Sequence[int]) -> None:
    """Reject no batches, batches below 1 and duplicates."""
    if not batches or min(batches) < 1:
        raise ValueError(f"batches are {batches}; give one or more, each at least 1")
    if len(set(batches)) < len(batches):
        raise ValueError(f"batches are {batches}; give each once")


def check_seed(seed: int) -> None:
    """Reject a seed that NumPy does not accept."""
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be at least 0")


def check_features(name: str, features: int) -> None:
    """Reject a number of inputs or outputs that the op cannot have."""
    if not 1 <= features <= MAX_FEATURES:
        raise ValueError(f"{name} is {features}; it must be 1 to {MAX_FEATURES}")


def check_dense_size(in_features: int, out_features: int) -> None:
    """Reject a layer whose dense weight does not fit into an ONNX file."""
    if in_features * out_features > _MAX_DENSE_WEIGHTS:
        raise ValueError(
            f"in_features {in_features} and out_features {out_features} make a dense weight of "
            f"{4 * in_features * out_features / 1e9:.1f} GB; the dense model holds up to 2.1 GB"
        )


def thread_counts(cpus: int) -> tuple[int, ...]:
    """Return the powers of two up to a number of CPUs, and that number."""
    powers = itertools.takewhile(lambda power: power < cpus, (2**i for i in itertools.count()))
    return (*powers, cpus)


@dataclass(frozen=True, kw_only=True)
class TimedSpec:
    """The part of a spec that says how its cases are timed; see Timing.

    Attributes:
        threads: of every engine.
        rounds: interleaved rounds of a case.
        turn: seconds of an engine's turn in a round.
        budget: seconds after which the rounds of a case end; None is no limit.
        warmup: seconds after which a warm-up ends at the latest.
        pin: stay on as many CPUs as there are threads; see pinned.
        conditions: of further rounds.
        seed: of random weights, masks and inputs.

    """

    threads: int = 1
    rounds: int = Timing.rounds
    turn: float = Timing.turn
    budget: float | None = None
    warmup: float = Timing.max_warmup
    pin: bool = True
    conditions: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        self.timing()

    def timing(self) -> Timing:
        """Return how the cases are timed."""
        return Timing(
            threads=self.threads,
            rounds=self.rounds,
            turn=self.turn,
            budget=self.budget,
            max_warmup=self.warmup,
            conditions=self.conditions,
        )


def spec_facts(spec: Any) -> dict[str, Any]:
    """Return a spec for the result file: trained layers by their titles, and no paths."""
    names = [one.name for one in fields(spec) if one.name != "deepsparse_python"]
    facts = {name: getattr(spec, name) for name in names}
    trained = facts.pop("trained", None)
    if isinstance(trained, tuple):
        facts["trained"] = [layer.title for layer in trained]
    elif trained is not None:
        facts["trained"] = trained.title
    return facts
