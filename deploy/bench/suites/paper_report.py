"""The suite of the paper's figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from ..report.html import save_page
from ..report.tables import Grid
from ..report.text import seconds_text
from ..results.case import Case
from .cases_report import conditions, write_report
from .families import KINDS, best_of
from .paper import PaperResult
from .paper_figure import draw


def save_paper_report(result: PaperResult, folder: Path) -> list[Path]:
    """See PaperResult.save."""
    begun = [one for one in result.results if one.cases]
    cases = [case for one in begun for case in one.cases]
    first = result.results[0]

    def picture(file: IO[bytes]) -> None:
        draw(f"{_title(result)}\n{first.machine.get('cpu') or ''}", cases, file)

    folders = [folder / f"threads-{one.timing.threads}" for one in begun]
    paths: list[Path] = []
    for one, place in zip(begun, folders, strict=True):
        paths += one.save(place)
    data = {
        "kind": "paper",
        "schema_version": first.schema_version,
        "title": _title(result),
        "created": first.created,
        "spec": result.spec.to_dict(),
        "missing_cases": result.missing,
        "results": [f"{place.name}/results.json" for place in folders],
        "best": [_best(case) for case in cases],
    }
    paths += write_report(folder, data, _markdown(result, cases), picture)
    paths.append(save_page([folder, *folders], folder / "index.html", _title(result)))
    return paths


def paper_grid(result: PaperResult, *, short: bool = False) -> Grid:
    """Lay out the best engine of each kind: run time, and how much faster fanin is in that case.

    ``short`` leaves out the times of the others.
    """
    cases = [case for one in result.results for case in one.cases]
    kinds = [kind for kind in KINDS if any(best_of(case, kind) for case in cases)]
    rows = []
    for case in cases:
        ours = best_of(case, "fanin")
        row = [case.title]
        for kind in kinds:
            best = best_of(case, kind)
            if kind == "fanin" or not short:
                row.append(seconds_text(best.run.median) if best else "")
            if kind != "fanin":
                row.append(f"{best.run.median / ours.run.median:.2f}×" if best and ours else "")
        rows.append(row)
    headings = ["case"]
    for kind in kinds:
        headings += [kind] if kind == "fanin" or short else [kind, "over fanin"]
    title = "Times over fanin's, whole runs" if short else _title(result)
    return Grid(title, headings, rows, words=1)


def paper_notes(result: PaperResult) -> list[str]:
    """Say what is missing, and how long the parts took."""
    cases = [case for one in result.results for case in one.cases]
    notes = []
    left_out = result.spec.left_out()
    if left_out:
        notes.append(f"left out: {', '.join(left_out)}")
    if result.missing:
        notes.append(
            f"{result.missing} cases are still to be measured; the same command goes on with them"
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


def _title(result: PaperResult) -> str:
    return f"The paper's layer, {result.spec.in_features} → {result.spec.out_features}, on a CPU"


def _best(case: Case) -> dict[str, object]:
    found = {kind: best_of(case, kind) for kind in KINDS}
    return {
        "case": case.title,
        "threads": case.facts["threads"],
        "batch": case.batch,
        "sparsity": case.sparsity,
        "mask": case.facts["mask"],
        "engines": {
            kind: {"engine": one.name, "median_seconds": one.run.median}
            for kind, one in found.items()
            if one is not None
        },
    }


def _markdown(result: PaperResult, cases: list[Case]) -> str:
    lines = [
        f"# {_title(result)}",
        "",
        *paper_grid(result).to_markdown(),
        "",
        "Notes:",
        "",
        *(f"- {note}" for note in paper_notes(result)),
        "",
        "Medians over the rounds of whole runs; each column has the fastest engine or graph form "
        "of its kind in that case. *over fanin* is that time over fanin's; the results of each "
        "thread count have all engines, ratios of single rounds, and their spread. Bars of the "
        "figure are these medians, error bars the quartiles over the rounds.",
        "",
        "## Best forms",
        "",
        *Grid("", ("case", "DeepSparse", "CSR", "torch dense"), _forms(cases), 4).to_markdown(),
        "",
        "## Conditions",
        "",
        *(f"- {line}" for line in conditions(result.results[0])),
    ]
    return "\n".join(lines) + "\n"


def _forms(cases: list[Case]) -> list[list[str]]:
    rows = []
    for case in cases:
        found = [best_of(case, kind) for kind in ("DeepSparse", "CSR", "torch dense")]
        rows.append([case.title, *(one.name if one else "" for one in found)])
    return rows
