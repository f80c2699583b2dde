"""Blocks that several reports share."""

from __future__ import annotations

from typing import Any

from ..results.compare import ResultComparison
from ..results.plain import to_plain
from ..results.result import Result
from .document import Bullets, Section, Table
from .text import plain_text


def conditions(result: Result[Any], *more: str) -> list[Section | Bullets]:
    """List the machine, the spec and the timing, one per line, followed by ``more``."""
    kernels = result.machine["kernels"]
    flat = [(key, value) for key, value in result.machine.items() if key != "kernels"]
    flat += [("ISAs", kernels["isas"]), ("ISA in force", kernels["isa_in_force"])]
    flat += [("spec", result.spec)]
    if result.timing is not None:
        flat += [("timing", to_plain(result.timing))]
    flat += [("load average after", result.load_average_after)]
    flat += [("measured", f"{result.created}, {result.seconds:.0f} s")]
    lines = [f"{key}: {plain_text(value)}" for key, value in flat]
    return [Section("Conditions"), Bullets([*lines, *more])]


def figure_title(result: Result[Any]) -> str:
    """Return the title of a result's figure, with the CPU."""
    return f"{result.title}\n{result.machine.get('cpu') or ''}"


def busy_note(machine: dict[str, Any]) -> list[str]:
    """Note that the machine was busy, if it was."""
    load, cpus = machine["load_average"], machine["cpus"]
    if not load or load[0] <= 0.5 * cpus:
        return []
    return [
        f"the machine was busy (load average {load[0]:.1f} on {cpus} CPUs at the start): times are "
        "too long and ratios uncertain"
    ]


def comparison_table(compared: ResultComparison) -> Table:
    """Return the table of what changed between two results."""

    def row(one: Any) -> list[str]:
        spans = [f"{part.median:.2f}× [{part.q1:.2f}–{part.q3:.2f}]" for part in (one.old, one.new)]
        return [one.case, one.engine, one.of, *spans, f"{one.ratio:.2f}", one.verdict]

    return Table(
        ("case", "engine", "of", "old", "new", "ratio", "verdict"),
        [row(one) for one in compared.changes],
        words=3,
        title="speed-up over dense, old and new",
        caption="; ".join(compared.conditions),
    )
