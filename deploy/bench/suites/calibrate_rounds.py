"""Times of sessions that take turns, on a machine that changes its speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import SessionError
from ..engines.protocol import Engine
from ..measure.loop import measure
from ..measure.problem import Problem
from ..measure.timing import Timing

SHORTEST = 5e-8
"""Seconds; a difference of two sessions below it is noise."""


def measure_rounds(
    engines: Sequence[Engine],
    problem: Problem,
    timing: Timing,
    where: str,
    *,
    null: Engine | None = None,
) -> dict[str, np.ndarray]:
    """Measure the engines in turn; returns the seconds of each in each round, by its name.

    Raises:
        SessionError: an engine could not be measured ``where``, with its reason.

    """
    timed, base = measure(engines, problem, timing, null=null)
    results = [*timed, base] if base else timed
    for result in results:
        if result.excluded:
            raise SessionError(
                f"the calibration could not measure {result.name} {where}: {result.excluded}",
                "fanin doctor checks what it needs.",
            )
    return {result.name: np.array(result.rounds_seconds) for result in results}


def fastest_rounds(passes: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Take each one's median over the fastest third of all passes' rounds, the same for every one.

    A machine that changes its speed, for a neighbour or its clock, does so for longer than a round:
    what is compared must come from the same rounds, and a round in a slow spell is as good as none.
    """
    rounds = {name: np.concatenate([one[name] for one in passes]) for name in passes[0]}
    order = np.argsort(sum(rounds.values()))
    kept = order[: max(1, len(order) // 3)]
    return {name: float(np.median(times[kept])) for name, times in rounds.items()}
