"""Whether a recurrent operator is faster as a loop over sparse products."""

from __future__ import annotations

from dataclasses import dataclass

from .forms import MIN_GAIN, TOKENS, Chooser
from .gpu_cost import GpuCostModel

_STEP = 5e-6
"""Seconds that a step of ONNX Runtime's Scan takes, whatever its size: ten nodes and their
dispatch. Measured as 4.2 (LSTM) and 4.8 µs (GRU) with 16 hidden units, on one thread of a Zen 4."""

_GATES = 5e-9
"""Seconds that the operator's own gates take for each hidden unit of a sample and step."""

_LOOP_GATES = 8e-9
"""The same for gates that are nodes, which read and write memory: 5 to 9 ns were measured."""


@dataclass(frozen=True)
class Product:
    """A weight ``[out_features, in_features]`` of a recurrent operator.

    Attributes:
        out_features: rows of the weight.
        in_features: columns.
        stored: entries that its condensed form stores; None where it has none.

    """

    out_features: int
    in_features: int
    stored: int | None


@dataclass(frozen=True)
class RecurrentSize:
    """How much a recurrent operator computes.

    Attributes:
        steps: length of the sequence; None where it is symbolic.
        batch: samples; None where they are symbolic.
        hidden: units of each direction.
        projections: weights that meet the whole sequence at once.
        recurrent: weights that meet one step at a time.

    """

    steps: int | None
    batch: int | None
    hidden: int
    projections: tuple[Product, ...]
    recurrent: tuple[Product, ...]


def why_left(chooser: Chooser, size: RecurrentSize) -> str | None:
    """Say why a recurrent operator stays as it is; None where it becomes a loop.

    The loop pays for itself where sparse products save more than its steps cost.
    """
    if chooser.portable:
        return "only standard operators may be used"
    if chooser.policy == "condensed":
        return None
    if chooser.policy != "auto":
        return f"policy {chooser.policy}, which leaves recurrent operators as they are"
    if isinstance(chooser.costs, GpuCostModel):
        return "a loop over its steps is for CPUs only"
    steps = TOKENS if size.steps is None else max(1, size.steps)
    batch = chooser.batch if size.batch is None else max(1, size.batch)
    directions = max(1, len(size.projections))
    units = steps * batch * size.hidden * directions
    dense = units * _GATES
    loop = units * _LOOP_GATES + steps * directions * _STEP
    for products, rows, times in (
        (size.projections, steps * batch, 1),
        (size.recurrent, batch, steps),
    ):
        for product in products:
            seconds = _seconds(chooser, product, rows)
            dense += times * seconds[0]
            loop += times * min(seconds)
    if dense >= MIN_GAIN * loop:
        return None
    return (
        f"a loop of sparse products is predicted {dense / loop:.2g}× as fast as the operator at "
        f"{steps} step{'s' * (steps != 1)}, batch {batch}"
    )


def _seconds(chooser: Chooser, product: Product, rows: int) -> tuple[float, ...]:
    size = (product.out_features, product.in_features)
    dense = chooser.costs.dense(rows, *size)
    if product.stored is None:
        return (dense,)
    return dense, chooser.costs.condensed(rows, *size, product.stored)
