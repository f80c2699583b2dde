"""Compares two results of the same benchmark: changes in speed beyond the noise of both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..measure.statistics import Spread
from .case import Case
from .result import Result, ResultFileError, read_result

Verdict = Literal["faster", "slower", "within noise"]
Part = Literal["op", "run"]

COMPARED: dict[str, type] = {"layer": Case, "model": Case, "scaling": Case}
"""Kinds of results that can be compared, and the type of their cases."""


@dataclass(frozen=True)
class Change:
    """One engine's speed-up over the baseline in one case, before and after.

    Speed-ups are compared rather than times, since both times of a ratio are of one round: a
    machine that is slower today is not a change. They are of the op where both results have it.
    """

    case: str
    engine: str
    of: Part
    old: Spread
    new: Spread

    @property
    def verdict(self) -> Verdict:
        """Whether the change exceeds the noise: the ranges of quartiles do not overlap."""
        if self.new.q1 > self.old.q3:
            return "faster"
        return "slower" if self.new.q3 < self.old.q1 else "within noise"

    @property
    def ratio(self) -> float:
        """New speed-up over the old one."""
        return self.new.median / self.old.median


@dataclass(frozen=True)
class ResultComparison:
    """``changes`` of what both have, ``unmatched`` of what one has, ``conditions`` that differ."""

    changes: tuple[Change, ...]
    unmatched: tuple[str, ...]
    conditions: tuple[str, ...]


def compare_results(old: str | Path, new: str | Path) -> ResultComparison:
    """Compare two ``results.json`` whose cases compare engines with dense (see COMPARED).

    Args:
        old: file, or the folder that holds it.
        new: that of a later run.

    Raises:
        ResultFileError: a file is not such a result, or they are of different benchmarks.
        OSError: a file cannot be read.

    """
    before, after = (_read(Path(path)) for path in (old, new))
    if before.kind != after.kind:
        raise ResultFileError(
            f"{old} is of fanin bench {before.kind}, {new} of fanin bench {after.kind}; "
            "compare results of one benchmark"
        )
    found, wanted = _speedups(before), _speedups(after)
    changes = []
    for key, ratios in wanted.items():
        if key in found:
            of: Part = "op" if "op" in ratios and "op" in found[key] else "run"
            changes.append(Change(*key, of, found[key][of], ratios[of]))
    unmatched = [f"only in the old result: {', '.join(key)}" for key in found if key not in wanted]
    unmatched += [f"only in the new result: {', '.join(key)}" for key in wanted if key not in found]
    return ResultComparison(tuple(changes), tuple(unmatched), tuple(_conditions(before, after)))


def _read(path: Path) -> Result[Case]:
    return read_result(path / "results.json" if path.is_dir() else path, COMPARED)


def _speedups(result: Result[Case]) -> dict[tuple[str, str], dict[Part, Spread]]:
    found: dict[tuple[str, str], dict[Part, Spread]] = {}
    for case in result.cases:
        for one in case.comparisons:
            ratios = found[case.title, one.engine] = {"run": one.run_ratio}
            if one.op_ratio is not None:
                ratios["op"] = one.op_ratio
    return found


def _conditions(before: Result[Case], after: Result[Case]) -> list[str]:
    """List the conditions that differ, to which a change may be due."""

    def facts(result: Result[Case]) -> dict[str, Any]:
        names = ("cpu", "cpus_available", "fanin", "onnxruntime", "environment")
        return {
            "benchmark": result.title,
            **{name: result.machine.get(name) for name in names},
            "ISA": result.machine["kernels"]["isa_in_force"],
            "threads": result.timing.threads if result.timing else None,
        }

    old, new = facts(before), facts(after)
    return [f"{name}: {old[name]} → {new[name]}" for name in old if old[name] != new[name]]
