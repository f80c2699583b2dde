"""Analyses of a sweep: accuracy against sparsity and against γ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..sweep import SweepRecord, grouped
from .result import Analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AXES = {
    "method.sparsity": ("accuracy-sparsity", "Accuracy against sparsity", "sparsity"),
    "method.gamma_sal": ("accuracy-gamma", "Accuracy against γ", "salient share γ"),
}


def analyse_sweep(records: Sequence[SweepRecord]) -> list[Analysis]:
    """Mean and spread over seeds, one curve per variant; one figure per axis that was varied."""
    table = grouped(records)
    found = [_against(key, table) for key in _AXES if any(key in row["values"] for row in table)]
    return found or [Analysis("accuracy", "Accuracy", [_row(row) for row in table])]


def _against(key: str, table: Sequence[Mapping[str, object]]) -> Analysis:
    name, title, label = _AXES[key]
    curves: dict[str, list[Mapping[str, object]]] = {}
    for row in table:
        others = {k: v for k, v in row["values"].items() if k != key}
        extra = "".join(f" {k.split('.')[-1]}={v}" for k, v in others.items())
        curves.setdefault(f"{row['variant']}{extra}", []).append(row)

    def draw(axes: Axes) -> None:
        for curve, rows in curves.items():
            rows = [row for row in rows if row["accuracy"] is not None]
            varied = sorted(
                (row for row in rows if key in row["values"]), key=lambda row: row["values"][key]
            )
            if varied:
                axes.errorbar(
                    [row["values"][key] for row in varied],
                    [row["accuracy"] for row in varied],
                    yerr=[row["deviation"] or 0.0 for row in varied],
                    label=curve,
                    capsize=3,
                    marker="o",
                )
            elif rows:  # dense: the same at every sparsity
                axes.axhline(rows[0]["accuracy"], linestyle="--", color="grey", label=curve)
        axes.set_xlabel(label)
        axes.set_ylabel("test accuracy")
        axes.legend(fontsize=8)

    note = "Means over seeds, ± the sample deviation."
    return Analysis(name, title, [_row(row) for row in table], note, draw)


def _row(row: Mapping[str, object]) -> dict[str, object]:
    values = {key.split(".")[-1]: value for key, value in row["values"].items()}
    figures = {key: value for key, value in row.items() if key not in ("variant", "values")}
    return {"variant": row["variant"], **values, **figures}
