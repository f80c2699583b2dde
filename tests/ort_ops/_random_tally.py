"""What the generators of random cases share: their counts, their error, and forcing an ISA."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts of checked cases. ``worst`` is the largest error as a share of its bound."""

    cases: int = 0
    worst: float = 0.0
    routes: Counter[str] = field(default_factory=Counter)
    with_special: int = 0

    def add(self, other: Tally) -> None:
        """Add what another tally counted."""
        self.cases += other.cases
        self.worst = max(self.worst, other.worst)
        self.routes += other.routes
        self.with_special += other.with_special


class RandomCaseError(AssertionError):
    """A case whose result is wrong, with the numbers to replay it."""


@contextmanager
def forced_isa(isa: str) -> Iterator[None]:
    """Have sessions that are opened meanwhile take the kernels of an ISA."""
    before = os.environ.get("FANIN_ISA")
    os.environ["FANIN_ISA"] = isa
    try:
        yield
    finally:
        os.environ.pop("FANIN_ISA")
        if before is not None:
            os.environ["FANIN_ISA"] = before
