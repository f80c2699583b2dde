"""The report of the paper's figures: the best engine of each kind, over threads and batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...._base.figure_style import BLUE, GRAY, GREEN, OCHRE, PURPLE, RED, ROSE, SALMON, SILVER, SKY
from ..report.blocks import conditions, figure_title
from ..report.document import Document, Notes, Section, Table, Text
from ..report.figure import Axis, Figure, Panel, Series, names_axis
from ..report.files import write_report
from ..report.html import save_page
from ..report.text import seconds_text, threads_text
from ..results.case import Case, EngineResult
from .cases_report import cases_document
from .layer_engines import FAMILIES, engine_option
from .paper import SUITE_OF, PaperResult

_KINDS = {
    "ONNX Runtime dense": (("dense",), GRAY),
    "structured": (("structured",), SILVER),
    "OpenVINO": (FAMILIES["OpenVINO"], OCHRE),
    "torch dense": (("torch", "torch-compile"), SALMON),
    "CSR": (FAMILIES["CSR"], GREEN),
    "paper's condensed form": (("torch-gather",), PURPLE),
    "DeepSparse": (FAMILIES["DeepSparse"], BLUE),
    "fanin": (("condensed",), RED),
}
"""Names of kinds: the options of the engines that belong to each, and its color."""

_INT8_KINDS = {
    "dense": (("dense",), GRAY),
    "dense int8, static": (("dense-int8-static",), SILVER),
    "dense int8, dynamic": (("dense-int8-dynamic",), GREEN),
    "OpenVINO int8": (("openvino-int8",), OCHRE),
    "torch int8": (("torch-int8-static", "torch-int8-dynamic"), SALMON),
    "DeepSparse int8": (("deepsparse-int8",), BLUE),
    "DeepSparse int8, float32 in and out": (("deepsparse-int8-float",), SKY),
    "fanin float32": (("condensed",), ROSE),
    "fanin dynamic": (("condensed-int8-dynamic",), PURPLE),
    "fanin": (("condensed-int8-static",), RED),
}
_KINDS_OF = {"float32": _KINDS, "int8": _INT8_KINDS}
_FORMS_OF = {
    "float32": ("DeepSparse", "CSR", "torch dense"),
    "int8": ("DeepSparse int8", "DeepSparse int8, float32 in and out", "torch int8"),
}
"""Kinds of several engines."""


def best_of(case: Case, kind: str, precision: str = "float32") -> EngineResult | None:
    """Return the kind's engine with the shortest median run; None when all are excluded."""
    options, _ = _KINDS_OF[precision][kind]
    found = [
        one for one in case.engines if one.excluded is None and engine_option(one.name) in options
    ]
    return min(found, key=lambda one: one.run_seconds, default=None)


def save_paper(result: PaperResult, folder: Path, *, raw: bool = False) -> list[Path]:
    """Write results.json, .md and .svg, an index.html, and a folder for each thread count."""
    begun = {f"threads-{one.require_timing().threads}": one for one in result.results if one.cases}
    paths: list[Path] = []
    for name, one in begun.items():
        paths += write_report(one, cases_document(one), folder / name, raw=raw)
    precision = _precision(result)
    best: tuple[Any, ...] = tuple(_best(case, precision) for case in _cases(result))
    summary = replace(
        result.results[0],
        kind="paper",
        title=_title(result),
        timing=None,
        cases=best,
        facts={"missing_cases": result.missing},
        parts={name: f"{name}/results.json" for name in begun},
    )
    paths += write_report(summary, paper_document(result), folder)
    shown = [folder, *(folder / name for name in begun)]
    return [*paths, save_page(shown, folder / "index.html", summary.title)]


def paper_document(result: PaperResult) -> Document:
    """Report on the best engine of each kind; each thread count's own report has all engines."""
    forms, precision = _FORMS_OF[_precision(result)], _precision(result)
    best_forms = []
    for case in _cases(result):
        best = [best_of(case, kind, precision) for kind in forms]
        best_forms.append([case.title, *(one.name if one else "" for one in best)])
    blocks = [
        _table(result),
        Notes(_notes(result)),
        Text(
            "Median times of whole runs; each column has the fastest engine or graph form of its "
            "kind in that case. *fanin's speed-up* is that time divided by fanin's. The results of "
            "each thread count have all engines, with ratios within rounds and their spread. Bars "
            "of the figure are these medians, error bars the quartiles over the rounds."
        ),
        Section("Best forms"),
        Table(("case", *forms), best_forms, words=4),
        *conditions(result.results[0]),
    ]
    return Document(_title(result), blocks, [_table(result, short=True)], _figure(result))


def _cases(result: PaperResult) -> list[Case]:
    return [case for one in result.results for case in one.cases]


def _precision(result: PaperResult) -> str:
    precision: str = result.results[0].spec.get("precision", "float32")
    return precision


def _title(result: PaperResult) -> str:
    spec = result.results[0].spec
    int8 = ", int8" if _precision(result) == "int8" else ""
    return f"The paper's layer, {spec['in_features']} → {spec['out_features']}{int8}, on a CPU"


def _table(result: PaperResult, *, short: bool = False) -> Table:
    """Lay out run times and fanin's speed-up; ``short`` omits the others' times."""
    cases, precision = _cases(result), _precision(result)
    known = _KINDS_OF[precision]
    kinds = [kind for kind in known if any(best_of(case, kind, precision) for case in cases)]
    rows = []
    for case in cases:
        ours = best_of(case, "fanin", precision)
        row = [case.title]
        for kind in kinds:
            best = best_of(case, kind, precision)
            if kind == "fanin" or not short:
                row.append(seconds_text(best.run_seconds) if best else "")
            if kind != "fanin":
                row.append(f"{best.run_seconds / ours.run_seconds:.2f}×" if best and ours else "")
        rows.append(row)
    headings = ["case"]
    for kind in kinds:
        headings += [kind] if kind == "fanin" or short else [kind, "fanin's speed-up"]
    return Table(
        headings,
        rows,
        words=1,
        title="fanin's speed-up over the best engine of each kind, whole runs",
    )


def _notes(result: PaperResult) -> list[str]:
    """List what is missing, how long the parts took, and excluded engines."""
    cases, notes = _cases(result), []
    suite = SUITE_OF[_precision(result)]
    left_out = [name for name in suite if name not in result.results[0].spec["engines"]]
    if left_out:
        notes.append(f"not measured: {', '.join(left_out)}")
    if result.missing:
        notes.append(
            f"{result.missing} cases are missing; run the same command again to measure them"
        )
    timed, prepared = (
        sum(case.facts[name] for case in cases) / 60
        for name in ("timing_seconds", "preparation_seconds")
    )
    notes.append(
        f"timing took {timed:.1f} minutes, preparation and compilation {prepared:.1f} minutes"
    )
    reasons = dict.fromkeys(
        f"{one.name} is excluded ({one.excluded})"
        for case in cases
        for one in case.engines
        if one.excluded
    )
    return notes + list(reasons)


def _best(case: Case, precision: str) -> dict[str, object]:
    found = [(kind, best_of(case, kind, precision)) for kind in _KINDS_OF[precision]]
    return {
        "title": case.title,
        "threads": case.facts["threads"],
        "batch": case.batch,
        "sparsity": case.sparsity,
        "mask": case.facts["mask"],
        "best": {
            kind: {"engine": one.name, "median_seconds": one.run_seconds}
            for kind, one in found
            if one is not None
        },
    }


def _figure(result: PaperResult) -> Figure:
    """Show a panel per number of threads and batch: bars of each kind's best engine."""
    panels = []
    for one in result.results:
        threads = threads_text(one.require_timing().threads)
        for batch in dict.fromkeys(case.batch for case in one.cases):
            cases = [case for case in one.cases if case.batch == batch]
            x, y = names_axis([_label(case) for case in cases]), Axis("whole run, µs", log=10)
            panels.append(
                Panel(_bars(cases, _precision(result)), x, y, f"batch {batch}, {threads}")
            )
    title = figure_title(replace(result.results[0], title=_title(result)))
    return Figure(title, panels, columns=2, shared=False)


def _bars(cases: list[Case], precision: str) -> list[Series]:
    series = []
    for kind, (_, color) in _KINDS_OF[precision].items():
        found = [(float(at), best_of(case, kind, precision)) for at, case in enumerate(cases)]
        places = [(at, one.run) for at, one in found if one is not None and one.run is not None]
        if places:
            series.append(Series.of_spreads(kind, "bars", places, scale=1e6, color=color))
    return series


def _label(case: Case) -> str:
    sparsity = f"{100 * (case.sparsity or 0):.3g} %"
    return sparsity if case.facts["mask"] == "random" else f"{sparsity}\ntrained"
