"""The figure of a layer or a model: speed-up over dense, with its spread."""

from __future__ import annotations

from ..measure.statistics import Spread
from ..report.blocks import figure_title
from ..report.figure import Axis, Figure, Panel, Series, names_axis
from ..results.case import Case
from ..results.result import Result

_SERIES = {
    "run": ("whole session.run", "#1f6f8b"),
    "op": ("op time (less the null session)", "#d1495b"),
}


def speedup_figure(result: Result[Case]) -> Figure:
    """Show a panel per batch (layer) or one over the batches (model).

    A dot is the median of the condensed engine's speed-up over dense in the same round, the wide
    band spans the quartiles, the thin one the range. The axis is logarithmic, so that twice as fast
    and half as fast are equally far from the dashed line of dense.
    """
    if result.kind == "model":
        panels = [_panel("", "", [(case.title, case) for case in result.cases])]
    else:
        panels = [
            _panel(
                f"batch {batch}",
                "sparsity",
                [(_label(case, result), case) for case in result.cases if case.batch == batch],
            )
            for batch in dict.fromkeys(case.batch for case in result.cases)
        ]
    wide = len(panels) == 4 or any(len(panel.x.ticks) > 4 for panel in panels)
    return Figure(figure_title(result), panels, columns=2 if wide else 3)


def _panel(title: str, axis: str, cases: list[tuple[str, Case]]) -> Panel:
    series = []
    for name, (label, colour) in _SERIES.items():
        places = [(at, spread) for at, (_, case) in enumerate(cases) if (spread := _of(case, name))]
        if places:
            texts = [f"{spread.median:.{2 if spread.median < 10 else 1}f}×" for _, spread in places]
            series.append(Series.of_spreads(label, "spans", places, texts=texts, colour=colour))
    y = Axis("speed-up over ONNX Runtime dense", log=10, unit="×")
    return Panel(series, names_axis([label for label, _ in cases], axis), y, title, reference=1)


def _of(case: Case, name: str) -> Spread | None:
    compared = case.comparison("condensed")
    return getattr(compared, f"{name}_ratio") if compared else None


def _label(case: Case, result: Result[Case]) -> str:
    sparsity = f"{100 * (case.sparsity or 0):.3g} %"
    if len({one.facts.get("mask") for one in result.cases}) == 1:
        return sparsity
    layer, _, _ = case.facts["mask"].partition(" of ")  # of a trained one, without its file
    return f"{sparsity}\n{layer.removesuffix('.weight')}"
