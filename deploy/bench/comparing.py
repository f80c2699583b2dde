"""Two results of the same benchmark: what got faster or slower beyond the noise of both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from ..._base.texts import parse_json, read_text
from .result import SCHEMA_VERSION

Verdict = Literal["faster", "slower", "within noise"]


@dataclass(frozen=True)
class Change:
    """One engine's speed-up over the baseline in one case, before and after.

    Quartiles and medians over the rounds. The speed-up is compared rather than the time, since both
    of its times are of one round: a machine that is slower today is no change. It is of the op
    where both results have it. ``verdict``: the quartiles of the two do not overlap, or they do.
    """

    case: str
    engine: str
    of: Literal["op", "run"]
    old: tuple[float, float, float]
    new: tuple[float, float, float]

    @property
    def verdict(self) -> Verdict:
        """Say whether the change is beyond the noise."""
        if self.new[0] > self.old[2]:
            return "faster"
        return "slower" if self.new[2] < self.old[0] else "within noise"

    @property
    def ratio(self) -> float:
        """New speed-up over the old one."""
        return self.new[1] / self.old[1]


@dataclass(frozen=True)
class ResultComparison:
    """``changes`` of what both have, ``unmatched`` of what one has, ``conditions`` that differ."""

    changes: tuple[Change, ...]
    unmatched: tuple[str, ...]
    conditions: tuple[str, ...]

    def to_rich_table(self) -> Table:
        """Lay the changes out for the terminal."""
        table = Table(title="speed-up over dense, old and new", caption="; ".join(self.conditions))
        for heading in ("case", "engine", "of", "old", "new", "ratio", "verdict"):
            table.add_column(heading, overflow="fold")
        for one in self.changes:
            spans = [f"{mid:.2f}× [{low:.2f}–{high:.2f}]" for low, mid, high in (one.old, one.new)]
            table.add_row(one.case, one.engine, one.of, *spans, f"{one.ratio:.2f}", one.verdict)
        return table


class ResultFileError(ValueError):
    """A file that is no result of a benchmark that can be compared."""


def compare_results(old: str | Path, new: str | Path) -> ResultComparison:
    """Compare two ``results.json`` of ``fanin bench layer`` or ``fanin bench model``.

    ``old`` and ``new`` are files or the folders that hold them. Raises ResultFileError for other
    files and for results of different benchmarks, OSError when one cannot be read.
    """
    before, after = _read(Path(old)), _read(Path(new))
    if before["kind"] != after["kind"]:
        raise ResultFileError(
            f"{old} is of fanin bench {before['kind']}, {new} of fanin bench {after['kind']}; "
            "compare results of one benchmark"
        )
    found, wanted = _speedups(old, before), _speedups(new, after)
    changes = []
    for key in found.keys() & wanted.keys():
        of = "op" if "op" in found[key] and "op" in wanted[key] else "run"
        changes.append(Change(*key, of, found[key][of], wanted[key][of]))
    order = {key: place for place, key in enumerate(wanted)}
    changes.sort(key=lambda one: order[one.case, one.engine])
    unmatched = [f"only in the old result: {', '.join(key)}" for key in found if key not in wanted]
    unmatched += [f"only in the new result: {', '.join(key)}" for key in wanted if key not in found]
    return ResultComparison(tuple(changes), tuple(unmatched), tuple(_conditions(before, after)))


def _read(path: Path) -> dict[str, Any]:
    file = path / "results.json" if path.is_dir() else path
    try:
        data = parse_json(read_text(file))
    except ValueError as error:
        raise ResultFileError(f"{file} is no JSON: {error}") from None
    if not isinstance(data, dict) or data.get("kind") not in ("layer", "model"):
        raise ResultFileError(f"{file} is no result of fanin bench layer or fanin bench model")
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ResultFileError(
            f"{file} has schema_version {data.get('schema_version')}, this fanin reads "
            f"{SCHEMA_VERSION}; measure again"
        )
    return data


def _speedups(
    path: str | Path, data: dict[str, Any]
) -> dict[tuple[str, str], dict[str, tuple[float, ...]]]:
    try:
        _facts(data)
        return _spreads(data)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ResultFileError(
            f"{path} does not hold what fanin bench writes ({type(error).__name__}: {error}); "
            "measure again"
        ) from error


def _spreads(data: dict[str, Any]) -> dict[tuple[str, str], dict[str, tuple[float, ...]]]:
    found = {}
    for case in data["cases"]:
        for one in case["comparisons"]:
            spreads = {"run": one["run_ratio"], "op": one["op_ratio"]}
            found[str(case["title"]), str(one["engine"])] = {
                of: tuple(float(spread[part]) for part in ("q1", "median", "q3"))
                for of, spread in spreads.items()
                if spread is not None
            }
    for spreads in found.values():
        if not all(0 < ratio < math.inf for spread in spreads.values() for ratio in spread):
            raise ValueError("a speed-up is no positive number")
    return found


def _conditions(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """List what else differs, in words: a change may come from there."""
    old, new = _facts(before), _facts(after)
    return [f"{name}: {old[name]} → {new[name]}" for name in old if old[name] != new[name]]


def _facts(data: dict[str, Any]) -> dict[str, Any]:
    machine = data["machine"]
    names = ("cpu", "cpus_available", "fanin", "onnxruntime", "environment")
    return {
        "benchmark": data["title"],
        **{name: machine.get(name) for name in names},
        "ISA": machine["kernels"]["isa_in_force"],
        "threads": data["timing"]["threads"],
    }
