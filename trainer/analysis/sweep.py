"""Analyses of a sweep: accuracy against each varied value, methods compared, layers."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..._base.figure_style import COLORS, MARKERS
from ..._base.names import near_matches
from ..metrics import Record, checked_content, read_metrics
from ..run_folder import METRICS
from ..sweep import SEED, SweepRow, group_runs
from ..sweep_run import SweepRecord
from ..tensorboard import is_number
from .result import Analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPARSITY = "method.sparsity"
_LABELS = {
    _SPARSITY: ("accuracy-sparsity", "Accuracy against sparsity", "sparsity"),
    "method.gamma_sal": ("accuracy-gamma", "Accuracy against γ", "salient share γ"),
}
_NOTE = (
    "Means over `runs` seeds, their sample standard deviation and half the width of their 95 % "
    "confidence interval (–: one seed only), which the figure shows."
)


@dataclass(frozen=True)
class _CurvePoint:
    """Mean accuracy at a position on the axis; None for what does not vary along it."""

    position: float | None
    accuracy: float
    interval: float


def analyze_sweep(
    records: Sequence[SweepRecord], folder: Path | None = None, *, against: str | None = None
) -> list[Analysis]:
    """Analyze the runs that are present: means and spreads over seeds.

    One table and figure per varied value, with one curve per variant, and one table of methods by
    sparsity.

    Args:
        records: records of the runs.
        folder: folder of the sweep, to tabulate the layers of the runs; None: do not.
        against: variant whose differences from all others to tabulate, seed by seed; None: do not.

    Raises:
        ValueError: ``against`` is not a variant, or metrics of a run are malformed.

    """
    table = group_runs(records)
    varied = dict.fromkeys(key for row in table for key in row["values"])
    found = [_accuracy_against(key, table) for key in varied]
    if not found:
        found = [Analysis("accuracy", "Accuracy", _rows(table), _NOTE)]
    if _SPARSITY in varied:
        found.append(_by_sparsity(table))
    if folder is not None:
        found.append(layers(records, folder))
    if against is not None:
        found.append(differences(records, against))
    return found


def differences(records: Sequence[SweepRecord], reference: str) -> Analysis:
    """Tabulate each variant's accuracy minus that of ``reference``, for equal seeds and values.

    A reference that varies less than the others (dense training has no sparsity) is compared with
    all.

    Raises:
        ValueError: ``reference`` is not a variant.

    """
    names = dict.fromkeys(record.variant for record in records)
    if reference not in names:
        raise ValueError(f"no variant {reference!r}." + near_matches(reference, names))
    done = [record for record in records if record.error is None]
    base = [
        (r.values, r.test_accuracy)
        for r in done
        if r.variant == reference and r.test_accuracy is not None
    ]
    groups: dict[tuple[str, str], list[float]] = {}
    for record in done:
        if record.variant == reference or record.test_accuracy is None:
            continue
        matches = [a for values, a in base if values.items() <= record.values.items()]
        if len(matches) == 1:
            key = (record.variant, _values_text(record))
            groups.setdefault(key, []).append(record.test_accuracy - matches[0])
    rows = [
        {
            "variant": variant,
            **_columns(json.loads(values)),
            "pairs": len(found),
            "points": 100 * statistics.fmean(found),
            "standard error": 100 * statistics.stdev(found) / len(found) ** 0.5
            if len(found) > 1
            else None,
        }
        for (variant, values), found in groups.items()
    ]
    note = (
        f"Test accuracy minus that of {reference} with the same seed, in percentage points: mean "
        "over the pairs of runs that are present, and its standard error."
    )
    return Analysis("differences", f"Difference from {reference}", rows, note)


def layers(records: Sequence[SweepRecord], folder: Path) -> Analysis:
    """Tabulate active neurons and fan-in of each layer after training, as means over seeds.

    Raises:
        OSError: metrics cannot be read.
        ValueError: metrics are malformed.

    """
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.error is not None:
            continue
        path = folder / record.name / METRICS
        metrics = read_metrics(path)
        with checked_content(path):
            last = [line for line in metrics if line["event"] == "epoch"][-1]
            for layer in last["layers"]:
                if layer["sparse"]:
                    key = (record.variant, _values_text(record), layer["name"])
                    groups.setdefault(key, []).append(layer)
    with checked_content(folder):
        rows = _layer_rows(groups)
    note = "At the end of training, means over seeds. Fan-in: that of the neuron with the largest."
    return Analysis("layers", "Layers", rows, note)


def _values_text(record: SweepRecord) -> str:
    """Return the varied values except the seed as text, since lists and tables cannot be keys."""
    return json.dumps({key: value for key, value in record.values.items() if key != SEED})


def _columns(values: Mapping[str, object]) -> dict[str, object]:
    """Name varied values by the last part of their keys."""
    return {key.split(".")[-1]: value for key, value in values.items()}


def _layer_rows(groups: Mapping[tuple[str, str, str], Sequence[Record]]) -> list[dict[str, object]]:
    return [
        {
            "variant": variant,
            **_columns(json.loads(values)),
            "layer": name,
            "runs": len(found),
            "neurons": found[0]["shape"][0],
            "active": statistics.fmean(layer["active"] for layer in found),
            "fan-in": statistics.fmean(layer["fan_in"] for layer in found),
            "density": statistics.fmean(layer["density"] for layer in found),
            "target density": found[0]["asked_density"],
        }
        for (variant, values, name), found in groups.items()
    ]


def _accuracy_against(key: str, table: Sequence[SweepRow]) -> Analysis:
    leaf = key.split(".")[-1]
    default = (f"accuracy-{leaf.replace('_', '-')}", f"Accuracy against {leaf}", leaf)
    name, title, label = _LABELS.get(key, default)
    # A variant that varies nothing else than those that vary the key is a horizontal line for each
    # of its values: dense training, or a method without the option on a grid of sparsities.
    beside = {k for row in table if key in row["values"] for k in row["values"]}
    shown = [row for row in table if key in row["values"] or row["values"].keys() <= beside]
    curves: dict[str, list[_CurvePoint]] = {}
    values: list[object] = []  # not a set, since lists and tables are not hashable
    for row in shown:
        if key in row["values"] and row["values"][key] not in values:
            values.append(row["values"][key])
    numbers = [value for value in values if is_number(value)]
    numeric = len(numbers) == len(values)
    for row in shown:
        curve = curves.setdefault(_label(row, key), [])
        if row["accuracy"] is not None:
            position = None
            if key in row["values"]:
                value = row["values"][key]
                position = value if numeric and is_number(value) else values.index(value)
            curve.append(_CurvePoint(position, row["accuracy"], row["interval"] or 0.0))

    def draw(axes: Axes) -> None:
        for number, (curve, points) in enumerate(curves.items()):
            color = COLORS[number % len(COLORS)]
            varied = sorted(
                (p.position, p.accuracy, p.interval) for p in points if p.position is not None
            )
            if varied:
                positions, accuracies, intervals = zip(*varied, strict=True)
                axes.errorbar(
                    positions,
                    accuracies,
                    yerr=intervals,
                    label=curve,
                    capsize=3,
                    marker=MARKERS[number % len(MARKERS)],
                    linestyle="-" if numeric else "none",
                    color=color,
                )
            elif points:
                axes.axhline(points[0].accuracy, linestyle="--", color=color, label=curve)
        if numeric and min(numbers) > 0 and max(numbers) >= 50 * min(numbers):
            axes.set_xscale("log")
        if not numeric:
            axes.set_xticks(range(len(values)), [str(value) for value in values])
        axes.set_xlabel(label)
        axes.set_ylabel("test accuracy")

    return Analysis(name, title, _rows(shown), _NOTE, draw)


def _by_sparsity(table: Sequence[SweepRow]) -> Analysis:
    sparsities = sorted({_sparsity(row) for row in table})
    rows: dict[str, dict[str, object]] = {}
    for row in table:
        label = _label(row, _SPARSITY)
        cells = rows.setdefault(label, {"method": label} | {f"{s:.4g}": None for s in sparsities})
        cells[f"{_sparsity(row):.4g}"] = _cell(row)
    note = (
        "Test accuracy in % by sparsity: mean ± half the 95 % confidence interval (number of "
        "seeds). Variants without a target have the sparsity of their networks."
    )
    return Analysis("methods", "Methods by sparsity", list(rows.values()), note)


def _sparsity(row: SweepRow) -> float:
    reached = 0.0 if row["density"] is None else round(1 - row["density"], 3)
    value = row["values"].get(_SPARSITY, reached)
    if not is_number(value):
        raise ValueError(f"{_SPARSITY} of variant {row['variant']!r} is not a number: {value!r}")
    return value


def _label(row: SweepRow, key: str) -> str:
    """Name the variant, with all varied values except that of ``key``."""
    others = {k: v for k, v in row["values"].items() if k != key}
    return row["variant"] + "".join(f" {k.split('.')[-1]}={v}" for k, v in others.items())


def _cell(row: SweepRow) -> str | None:
    if row["accuracy"] is None:
        return None
    spread = "" if row["interval"] is None else f" ± {100 * row['interval']:.2f}"
    return f"{100 * row['accuracy']:.2f}{spread} ({row['runs']})"


def _rows(table: Sequence[SweepRow]) -> list[dict[str, object]]:
    keys = dict.fromkeys(key for row in table for key in row["values"])
    rows = []
    for row in table:
        values = {key: row["values"].get(key) for key in keys}
        figures = {key: value for key, value in row.items() if key not in ("variant", "values")}
        rows.append({"variant": row["variant"], **_columns(values), **figures})
    return rows
