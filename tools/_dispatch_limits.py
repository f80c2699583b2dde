"""Derive the limits of the dispatch table from measured times.

Times are keyed by (layout with its ISA, case, batch). Layouts are compared by the mean over all
cases of the logarithm of the ratio of their times, so that every case has the same weight. A
difference within 5 % is a tie and leaves a limit unchanged, since measurements vary by as much.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

BATCHES = tuple(range(1, 9))
"""Batches at which windows are compared with panels, at usual densities."""
FEW, MANY = (1, 2), (8,)
"""Batches at which windows, and panels, are compared with rows at low densities."""
LARGE = (8, 16, 32, 64)
"""Batches at which panels of one instruction set are compared with each other."""
ROWS = "rows-scalar"
Times = dict[tuple[str, str, int], float]
Range = tuple[int, int | None]
"""First and last batch; a last batch of None means no limit, (1, 0) no batch at all."""

_TIE = math.log(1.05)
# How much slower than panels windows may be at one sparsity and still serve a batch: if they do not
# serve it yet, and if they do.
_WORST, _WORST_NOW = math.log(1.1), math.log(1.25)
# A least density is where two flat lines cross: it stays if they are this close there.
_SAME = math.log(1.05)
_ROW = re.compile(
    r'\{"(?P<layout>[\w-]+)", \{(\d+), (\w+)\}, \{(\d+), (\w+)\}, (?P<density>[\d.e+-]+)\}'
)


@dataclass(frozen=True)
class Limits:
    """The batches and densities for which a layout is dispatched."""

    layout: str
    batches: Range
    batches_16_bit: Range
    min_density: float

    @property
    def isa(self) -> str:
        """The layout's instruction set."""
        return self.layout.rpartition("-")[2]

    @property
    def is_panel(self) -> bool:
        """Whether it is a panel, which serves all batches that no window serves."""
        return self.batches[1] is None

    def initializer(self) -> str:
        """Return the limits as a C++ initializer."""

        def text(batches: Range) -> str:
            return f"{{{batches[0]}, {'kAny' if batches[1] is None else batches[1]}}}"

        ranges = f"{text(self.batches)}, {text(self.batches_16_bit)}"
        return f'{{"{self.layout}", {ranges}, {self.min_density:g}}}'


def read_limits(path: Path) -> list[Limits]:
    """Read the present table, in its order."""

    def end(text: str) -> int | None:
        return None if text == "kAny" else int(text)

    return [
        Limits(
            row["layout"],
            (int(row[2]), end(row[3])),
            (int(row[4]), end(row[5])),
            float(row["density"]),
        )
        for row in _ROW.finditer(path.read_text())
    ]


def decide(
    present: Sequence[Limits], times: Times, isas: Sequence[str]
) -> tuple[list[Limits], list[str]]:
    """Return the table with new limits derived from the times, and the reasons as lines."""
    measured = {layout for layout, _, _ in times}
    timed = [limits for limits in present if limits.layout in measured]
    decided, reasons = [], []
    for at, limits in enumerate(present):
        panel = limits.layout if limits.is_panel else panel_of(timed, isas, limits.isa)
        if limits.layout not in measured or panel is None:
            decided.append(limits)
            reasons.append(f"{limits.layout}: carried over, this CPU does not use it")
            continue
        if limits.is_panel:
            density = _least_density(times, "panel", limits, (ROWS,), MANY)
            decided.append(replace(limits, min_density=density))
            reasons.append(f"{limits.layout}: from density {density:g} on, instead of {ROWS}")
            continue
        # A wider window of the same ISA follows in the table and serves what this one does not.
        wider = [
            other.layout
            for other in present[at + 1 :]
            if other.isa == limits.isa and not other.is_panel and other.layout in measured
        ]
        # At the first batch, where it gains most: with more samples the crossing is less sharp.
        few = [limits.batches[0]] if limits.batches[0] in FEW else [1]
        density = _least_density(times, "window", limits, (ROWS, panel), few)
        reasons.append(f"{limits.layout}: from density {density:g} on, instead of {ROWS}, {panel}")
        dense = {key: it for key, it in times.items() if density_of(key[1]) >= density}
        last = min(_last_batch(dense, limits, panel), _reach(decided, limits.isa))
        ranges = {}
        for name, types in (("batches", ("float32",)), ("batches_16_bit", ("float16", "bfloat16"))):
            chosen = {key: seconds for key, seconds in dense.items() if key[1].endswith(types)}
            first = _first_batch(chosen, limits.layout, wider, last, getattr(limits, name)[0])
            ranges[name] = (first, last) if first <= last else (1, 0)
            reasons += _comparison(chosen, limits.layout, [panel, *wider], ", ".join(types))
        decided.append(replace(limits, min_density=density, **ranges))
    return _with_first_of_panels(decided), reasons


def _reach(windows: Sequence[Limits], isa: str) -> int:
    """Return the last batch of the windows of higher ISAs, which precede in the table.

    A window of a lower ISA that served more would be a third layout for layers of symbolic batch.
    """
    return min(
        (limits.batches[1] for limits in windows if limits.isa != isa and limits.batches[1]),
        default=BATCHES[-1],
    )


def _with_first_of_panels(table: Sequence[Limits]) -> list[Limits]:
    """Start the panels' batch range after the last batch of the windows, for every ISA.

    Below the least density of windows, smaller batches use the rows kernel, whose time grows with
    the batch. All panels have the same first batch, so that a wider one is never skipped.
    """
    reach: dict[str, int] = {}
    for limits in table:
        if not limits.is_panel:
            reach[limits.isa] = max(reach.get(limits.isa, 0), limits.batches[1] or 0)
    first = 1 + min(reach.values(), default=0)
    return [
        replace(limits, batches=(first, None), batches_16_bit=(first, None))
        if limits.is_panel
        else limits
        for limits in table
    ]


def panel_of(table: Sequence[Limits], isas: Sequence[str], isa: str) -> str | None:
    """Return the panel layout of a CPU that has all of ``isas`` up to ``isa``, if there is one.

    Of several of one instruction set, it is the first.
    """
    if isa not in isas:
        return None
    usable = isas[: isas.index(isa) + 1]
    panels = [limits for limits in table if limits.is_panel and limits.isa in usable]
    return max(panels, key=lambda limits: isas.index(limits.isa)).layout if panels else None


def density_of(case: str) -> float:
    """Return the density of a case "INPUTSxOUTPUTS SPARSITY TYPE"; 0 for cases of low density."""
    sizes, number, *_ = case.split(" ")
    return 0.0 if sizes in ("window", "panel") else 1 - float(number)


def mean_log_ratio(times: Times, layout: str, other: str, batch: int) -> float:
    """Mean over the cases of log(time of the layout / time of the other)."""
    cases = [case for name, case, its_batch in times if (name, its_batch) == (layout, batch)]
    logs = [math.log(times[layout, case, batch] / times[other, case, batch]) for case in cases]
    return sum(logs) / len(logs)


def _last_batch(times: Times, limits: Limits, panel: str) -> int:
    """Return the last batch at which the panel is not better, over weights of all types."""
    last = 0
    for batch in BATCHES:
        now = batch <= (limits.batches[1] or 0)
        by_density: dict[float, Times] = {}
        for key, seconds in times.items():
            by_density.setdefault(density_of(key[1]), {})[key] = seconds
        means = [mean_log_ratio(part, limits.layout, panel, batch) for part in by_density.values()]
        mean = sum(means) / len(means)
        if mean > (_TIE if now else -_TIE) or max(means) > (_WORST_NOW if now else _WORST):
            break
        last = batch
    return last


def _first_batch(
    times: Times, layout: str, wider: Sequence[str], last: int, present_first: int
) -> int:
    """Return the batch from which on the layout beats the wider windows, up to ``last``."""
    first = last + 1
    while first > 1:
        tie = _TIE if first - 1 >= present_first else -_TIE
        if any(mean_log_ratio(times, layout, other, first - 1) > tie for other in wider):
            break
        first -= 1
    return first


def _least_density(
    times: Times, kind: str, limits: Limits, others: Sequence[str], batches: Sequence[int]
) -> float:
    """Return the density above which the layout always beats the best of the others."""
    by_density: dict[float, set[str]] = {}
    for _, case, _ in times:
        if case.startswith(f"{kind} "):
            by_density.setdefault(float(case.split(" ")[1]), set()).add(case)
    densities = sorted(by_density)
    logs = []
    for density in densities:
        ratios = [
            times[limits.layout, case, batch] / min(times[name, case, batch] for name in others)
            for case in by_density[density]
            for batch in batches
        ]
        logs.append(sum(map(math.log, ratios)) / len(ratios))
    at = len(logs)
    while at > 0 and logs[at - 1] < _TIE:
        at -= 1
    if at == len(logs):
        raise ValueError(f"{limits.layout} loses against {others} at every density measured")
    if densities[0] <= limits.min_density <= densities[-1]:
        now = _interpolated(densities, logs, limits.min_density)
        if abs(now) < _SAME:
            return limits.min_density
    if at == 0:
        return densities[0]
    share = (logs[at - 1] - _TIE) / (logs[at - 1] - logs[at])
    return float(f"{densities[at - 1] * (densities[at] / densities[at - 1]) ** share:.1e}")


def _interpolated(densities: Sequence[float], logs: Sequence[float], density: float) -> float:
    for low in range(len(densities) - 1):
        if density <= densities[low + 1]:
            width = math.log(densities[low + 1] / densities[low])
            share = math.log(density / densities[low]) / width
            return logs[low] + share * (logs[low + 1] - logs[low])
    return logs[-1]


def _comparison(times: Times, layout: str, others: Sequence[str], types: str) -> list[str]:
    return [
        f"{layout} / {other}, {types}: "
        + "  ".join(
            f"{batch}: {math.exp(mean_log_ratio(times, layout, other, batch)):.2f}"
            for batch in BATCHES
        )
        for other in others
    ]


def compare_panels(times: Times, in_use: Sequence[str]) -> list[str]:
    """Compare the panel in use, the first of ``in_use`` with times, with all others."""
    layouts = dict.fromkeys(layout for layout, _, _ in times)
    used = next(layout for layout in in_use if layout in layouts)
    return [
        f"{used} (used on this CPU) / {other}: "
        + "  ".join(
            f"{batch}: {math.exp(mean_log_ratio(times, used, other, batch)):.2f}" for batch in LARGE
        )
        for other in layouts
        if other != used
    ]


def worst_small_batches(table: Sequence[Limits], times: Times, isas: Sequence[str]) -> list[str]:
    """Compare 2 to 7 samples, float32, with batch 1 repeated and with batch 8, as dispatched."""
    measured = {layout for layout, _, _ in times}
    timed = [limits for limits in table if limits.layout in measured]

    def chosen(case: str, batch: int) -> str:
        for limits in sorted(timed, key=lambda limits: -_rank(isas, limits.isa)):
            low, high = limits.batches
            takes = low <= batch and (high is None or batch <= high)
            if limits.isa in isas and takes and limits.min_density <= density_of(case):
                return limits.layout
        return ROWS

    lines = []
    cases = sorted({case for _, case, _ in times if case.endswith("float32")})
    for batch in BATCHES[1:-1]:
        ratios = {}
        for case in cases:
            one, many, own = (times[chosen(case, b), case, b] for b in (1, BATCHES[-1], batch))
            ratios[own / min(batch * one, many)] = case
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        names = ", ".join(dict.fromkeys(chosen(case, batch) for case in cases))
        lines.append(
            f"{batch} ({names}): mean {mean:.2f}, worst {max(ratios):.2f} ({ratios[max(ratios)]})"
        )
    return lines


def _rank(isas: Sequence[str], isa: str) -> int:
    return isas.index(isa) if isa in isas else -1
