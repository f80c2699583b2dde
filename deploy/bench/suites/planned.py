"""What plans promise for machines with more CPUs than this one: computed, not measured."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....ort_ops.dispatch_cost import SPINNING, DispatchCost
from ....ort_ops.format.condensed import CondensedWeight
from ...doctor_plan import plan_model
from ..engines.kernels import pack
from ..report.document import Table
from ..report.text import seconds_text

PLANNED_THREADS = (8, 16, 32, 64)


@dataclass(frozen=True)
class Planned:
    """A run of a session of ``threads`` threads; of a network, its condensed layers alone.

    Attributes:
        what: the layer or network, and its batch.
        threads: of the session.
        used: threads that the plan gives work to; None for a network.
        one_thread: predicted seconds of all work on one thread.
        planned: predicted seconds, the dispatch included.
        imbalance: the longest share over the mean of the threads; None for a network.
        weight_bytes: packed weights that the thread with most of them reads; None for a network.

    """

    what: str
    threads: int
    used: int | None
    one_thread: float
    planned: float
    imbalance: float | None
    weight_bytes: int | None


def plan_layer(
    what: str, weight: CondensedWeight, batch: int, cost: DispatchCost = SPINNING
) -> list[Planned]:
    """Plan a layer at one batch for each of PLANNED_THREADS."""
    alone = pack(weight, batch).plan(batch, 1).microseconds
    plans = []
    for threads in PLANNED_THREADS:
        packed = pack(weight, None, threads=threads)
        info = next(one for one in packed.info() if one.max_batch is None or batch <= one.max_batch)
        plan = packed.plan(batch, threads, (cost.fixed, cost.per_thread))
        parts = plan.begins[:: (len(plan.begins) - 1) // plan.threads]
        # Units are numbered tile after tile, and the fewest samples are one tile: a thread with as
        # many units reads all weights.
        units_of_tile = packed.plan(info.min_batch, 1).begins[-1]
        most = max(end - begin for begin, end in itertools.pairwise(parts))
        plans.append(
            Planned(
                what,
                threads,
                plan.threads,
                alone / 1e6,
                (plan.longest + plan.dispatch) / 1e6,
                plan.imbalance,
                round(info.bytes * min(1.0, most / units_of_tile)),
            )
        )
    return plans


def plan_network(what: str, model: Path, batch: int) -> list[Planned]:
    """Plan the condensed layers of a model likewise; raises FindingError if that is impossible."""
    _, alone = plan_model(model, 1, [batch]).totals()[batch]
    plans = []
    for threads in PLANNED_THREADS:
        _, planned = plan_model(model, threads, [batch]).totals()[batch]
        plans.append(Planned(what, threads, None, alone, planned, None, None))
    return plans


def planned_table(plans: Sequence[Planned]) -> Table:
    """Lay out plans: a row for each number of threads."""
    headings = (
        "planned, not measured",
        "threads",
        "used",
        "on 1 thread",
        "planned",
        "speed-up",
        "longest / mean",
        "weights of a thread",
    )
    rows, last = [], ""
    for one in plans:
        rows.append(
            [
                "" if one.what == last else one.what,
                str(one.threads),
                "" if one.used is None else str(one.used),
                seconds_text(one.one_thread),
                seconds_text(one.planned),
                f"{one.one_thread / one.planned:.1f}×" if one.planned else "",
                "" if one.imbalance is None else f"{one.imbalance:.2f}",
                "" if one.weight_bytes is None else f"{one.weight_bytes / 1e3:.0f} kB",
            ]
        )
        last = one.what
    return Table(headings, rows, words=1, title="Planned, not measured")
