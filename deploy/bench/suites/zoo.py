"""Known networks, dense and sparse, in all runtimes, as one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from ..measure.statistics import Comparison
from ..measure.timing import Progress
from ..report.html import save_page
from ..report.tables import Grid
from ..report.text import seconds_text
from ..results.case import Case
from ..results.plain import from_plain
from ..results.result import Result
from ..results.store import StoreError
from .cases_report import conditions, write_report
from .layer import DEEPSPARSE_PYTHON
from .model import ENGINES, BenchModelSpec, bench_model
from .runs_report import ratio_text
from .zoo_models import ZOO, export_zoo_model

_TITLE = "Whole networks"
_COLOURS = {"condensed": "#d1495b", "structured": "#8c8c8c", "deepsparse": "#1f6f8b"}
_COLOURS["openvino"] = "#b58900"


@dataclass(frozen=True)
class BenchZooSpec:
    """Networks of ZOO at one sparsity, batch and number of threads; the rest as in BenchModelSpec.

    ``ablated`` is the share of neurons without weights in every sparse layer but the last.
    """

    models: tuple[str, ...] = tuple(ZOO)
    sparsity: float = 0.9
    ablated: float = 0.0
    batch: int = 1
    threads: int = 1
    rounds: int = 31
    budget: float | None = 120.0
    conditions: tuple[str, ...] = ("cold", "paced")
    engines: tuple[str, ...] = ENGINES
    deepsparse_python: Path = DEEPSPARSE_PYTHON

    def __post_init__(self):
        unknown = set(self.models) - set(ZOO)
        if unknown or not self.models:
            raise ValueError(f"models are {self.models}; there are {', '.join(ZOO)}")
        if not 0 < self.sparsity < 1 or not 0 <= self.ablated < 1:
            raise ValueError(
                f"sparsity is {self.sparsity}, ablated {self.ablated}; they must be in (0, 1) and "
                "[0, 1)"
            )
        self.model_spec(Path("model.onnx"))

    def model_spec(self, path: Path) -> BenchModelSpec:
        """Return what a network is measured as."""
        return BenchModelSpec(
            model=path,
            batches=(self.batch,),
            threads=self.threads,
            rounds=self.rounds,
            budget=self.budget,
            conditions=self.conditions,
            engines=self.engines,
            tolerance=1e-3,
            deepsparse_python=self.deepsparse_python,
        )


def bench_zoo(
    spec: BenchZooSpec,
    folder: Path,
    models: Path,
    *,
    reuse: bool = False,
    progress: Progress | None = None,
) -> dict[str, Result]:
    """Measure the networks one after another, each into its own folder in ``folder``.

    Their files are written into ``models``, or taken from there with ``reuse``. Returns the results
    of all networks that ``folder`` has now, those of earlier calls included.
    """
    models.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(spec.models):
        if progress:
            progress(f"{name}: export", number / len(spec.models))
        path = models / f"{name}-{100 * spec.sparsity:g}-{100 * spec.ablated:g}.onnx"
        if not (reuse and path.is_file()):
            path = export_zoo_model(name, models, spec.sparsity, spec.ablated, spec.batch)
        if progress:
            progress(f"{name}: measurement", (number + 0.5) / len(spec.models))
        result = bench_model(spec.model_spec(path))
        title = f"{ZOO[name].about}, {spec.sparsity:.0%} sparse, {result.title.partition(', ')[2]}"
        if spec.ablated:
            title += f", {spec.ablated:.0%} of the neurons ablated"
        replace(result, title=title).save(folder / name)
    return read_zoo(folder)


def read_zoo(folder: Path) -> dict[str, Result]:
    """Read the results of a folder. Raises StoreError when they do not belong together."""
    found = {}
    for name in ZOO:
        file = folder / name / "results.json"
        if file.is_file():
            found[name] = from_plain(Result, json.loads(file.read_text()))
    settings = {(one.timing.threads, one.cases[0].batch) for one in found.values()}
    if len(settings) > 1:
        raise StoreError(
            f"{folder} has results of several numbers of threads or batches; take a folder for each"
        )
    return found


def save_zoo(results: dict[str, Result], folder: Path) -> list[Path]:
    """Write results.json, .md and .png over the networks, and an index.html with all of them."""

    def picture(file: IO[bytes]) -> None:
        draw(results, file)

    data = {
        "kind": "zoo",
        "schema_version": 1,
        "title": _TITLE,
        "results": {name: f"{name}/results.json" for name in results},
    }
    paths = write_report(folder, data, _markdown(results), picture)
    shown = [folder, *(folder / name for name in results)]
    return [*paths, save_page(shown, folder / "index.html", _TITLE)]


def zoo_grid(results: dict[str, Result]) -> Grid:
    """Lay out the speed-ups over dense of whole runs, and the limit of condensed."""
    others = [name for name in ENGINES[1:] if any(_compared(one, name) for one in results.values())]
    rows = []
    for result in results.values():
        (case,) = result.cases
        dense = case.engine("dense")
        row = [result.title, seconds_text(dense.run.median if dense.run else None)]
        for name in others:
            compared = _compared(result, name)
            row.append(ratio_text(compared.run_ratio) if compared else "")
        row.append("" if case.limit is None else f"{case.limit:.2f}×")
        rows.append(row)
    return Grid(_TITLE, ["network", "dense", *others, "limit of condensed"], rows, words=1)


def zoo_notes(results: dict[str, Result]) -> list[str]:
    """Name engines that are left out, and how much of the time the nodes explain."""
    notes = []
    for name, result in results.items():
        (case,) = result.cases
        notes += [
            f"{name}: {one.name} is excluded ({one.excluded})"
            for one in case.engines
            if one.excluded
        ]
        notes += [
            f"{name}: the nodes of {one.engine} explain {one.explained:.0%} of its run"
            for one in case.breakdowns
            if abs(one.explained - 1) > 0.1
        ]
        if "breakdown_failed" in case.facts:
            notes.append(f"{name}: no breakdown ({case.facts['breakdown_failed']})")
    return notes


def draw(results: dict[str, Result], file: IO[bytes]) -> None:
    """Write the figure as PNG: speed-ups over dense in bars, with quartiles."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.5 + 1.5 * len(results), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.axhline(1, color="#777", linestyle="--", linewidth=1)
    for number, (engine, colour) in enumerate(_COLOURS.items()):
        shown = [(at, _compared(one, engine)) for at, one in enumerate(results.values())]
        spreads = [(at, compared.run_ratio) for at, compared in shown if compared]
        if spreads:
            medians = [spread.median for _, spread in spreads]
            errors = [
                [spread.median - spread.q1 for _, spread in spreads],
                [spread.q3 - spread.median for _, spread in spreads],
            ]
            xs = [at + 0.2 * (number - 1.5) for at, _ in spreads]
            bars = axis.bar(xs, medians, 0.2, yerr=errors, color=colour, label=engine, capsize=1)
            axis.bar_label(bars, [f"{median:.2f}" for median in medians], fontsize=7, padding=2)
    axis.set_xticks(range(len(results)), list(results), fontsize=8)
    axis.set_ylabel("speed-up over ONNX Runtime dense")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(file, format="png", dpi=150)


def _compared(result: Result, engine: str) -> Comparison | None:
    return next((one for one in result.cases[0].comparisons if one.engine == engine), None)


def _markdown(results: dict[str, Result]) -> str:
    lines = [
        f"# {_TITLE}",
        "",
        *zoo_grid(results).to_markdown(),
        "",
        "Speed-ups of whole runs over ONNX Runtime dense in the same round: median (95 % "
        "bootstrap interval) [min–max]. The limit is what condensed would reach if its condensed "
        "nodes took no time. Weights and masks are made up; each network's own report has all "
        "times and nodes.",
        "",
        "## Where the time of condensed goes",
        "",
        *_costs(list(results.items())).to_markdown(),
        "",
        *(f"- {note}" for note in zoo_notes(results)),
        "",
        "## Conditions",
        "",
    ]
    for result in list(results.values())[:1]:
        lines += [f"- {line}" for line in conditions(result)]
    return "\n".join(lines) + "\n"


def _costs(results: Sequence[tuple[str, Result]]) -> Grid:
    rows = []
    for name, result in results:
        case: Case = result.cases[0]
        for one in case.breakdowns:
            if one.engine == "condensed":
                for op_type, count, seconds in one.by_op_type()[:6]:
                    share = f"{seconds / one.total_seconds:.1%}"
                    rows.append([name, op_type, str(count), seconds_text(seconds), share])
    return Grid("", ("network", "operator", "nodes", "time", "share"), rows)
