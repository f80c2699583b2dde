"""The report of the zoo: speed-ups of whole networks."""

from __future__ import annotations

from pathlib import Path

from ...._base.figure_style import BLUE, GRAY, OCHRE, PURPLE, RED, ROSE, SILVER
from ..report.blocks import conditions
from ..report.document import Document, Notes, Section, Table, Text
from ..report.figure import Axis, Figure, Panel, Series, names_axis
from ..report.files import write_report
from ..report.html import save_page
from ..report.text import ratio_text, seconds_text
from ..results.case import Case
from ..results.result import Result
from .cases_tables import is_int8
from .model import ENGINES, INT8_ENGINES
from .zoo import LEAST_RATIO, is_not_slower

_TITLE = "Whole networks"
_INT8_TEXT = (
    "Networks in 8 bits are quantized by onnxruntime.quantization with random inputs. Times do not "
    "depend on that; errors do, and mean nothing here. The limit is that of condensed-int8-static."
)
_COLORS = {"condensed": RED, "structured": SILVER, "deepsparse": BLUE}
_COLORS["openvino"] = OCHRE
_INT8_COLORS = {
    "condensed": ROSE,
    "condensed-int8-static": RED,
    "condensed-int8-dynamic": PURPLE,
    "dense-int8-static": GRAY,
    "dense-int8-dynamic": SILVER,
    "deepsparse-int8": BLUE,
    "openvino-int8": OCHRE,
}


def save_zoo(results: dict[str, Result[Case]], folder: Path) -> list[Path]:
    """Write results.json, .md and .svg over the networks, and an index.html with all of them."""
    first = next(iter(results.values()))
    summary: Result[Case] = Result(
        kind="zoo",
        title=_TITLE,
        created=first.created,
        seconds=sum(one.seconds for one in results.values()),
        spec={},
        timing=first.timing,
        machine=first.machine,
        load_average_after=first.load_average_after,
        parts={name: f"{name}/results.json" for name in results},
    )
    paths = write_report(summary, zoo_document(results), folder)
    shown = [folder, *(folder / name for name in results)]
    return [*paths, save_page(shown, folder / "index.html", _TITLE)]


def zoo_document(results: dict[str, Result[Case]]) -> Document:
    """Report on the networks; each one's own report has all times and nodes."""
    table = _table(results)
    blocks = [
        table,
        Text(
            "Speed-ups of whole runs over ONNX Runtime dense in the same round: median (95 % "
            "bootstrap interval) [min–max]; where several processes measured a network, they are "
            "resampled as well as their rounds. A network is *not slower* than dense when the "
            f"median of condensed is at least {LEAST_RATIO} and its interval reaches 1. The limit "
            "is what condensed would reach if its condensed nodes took no time. Weights and masks "
            "are random; each network's own report has all times and nodes."
        ),
        *([Text(_INT8_TEXT)] if is_int8(next(iter(results.values()))) else []),
        *_files(results),
        Section("Where the time of condensed goes"),
        _costs(results),
        Notes(_notes(results)),
        *conditions(next(iter(results.values()))),
    ]
    return Document(_TITLE, blocks, [table], _figure(results))


def _table(results: dict[str, Result[Case]]) -> Table:
    """Lay out the speed-ups over dense of whole runs, and the limit of condensed."""
    cases = {name: result.cases[0] for name, result in results.items()}
    known = (*ENGINES, *INT8_ENGINES[2:])[1:]
    others = [name for name in known if any(one.comparison(name) for one in cases.values())]
    rows = []
    for name, case in cases.items():
        dense = case.engine("dense")
        row = [results[name].title, seconds_text(dense.run.median if dense.run else None)]
        for engine in others:
            compared = case.comparison(engine)
            row.append(ratio_text(compared.run_ratio) if compared else "")
        row.append({True: "yes", False: "no", None: ""}[is_not_slower(case)])
        row.append("" if case.limit is None else f"{case.limit:.2f}×")
        rows.append(row)
    headings = ("network", "dense", *others, "not slower", "limit of condensed")
    return Table(headings, rows, words=1, title=_TITLE)


def _files(results: dict[str, Result[Case]]) -> list[Section | Table]:
    """Lay out the sizes of the files of ONNX Runtime's engines; older results have none."""
    sizes = {name: one.cases[0].facts.get("file_bytes", {}) for name, one in results.items()}
    names = list(dict.fromkeys(engine for own in sizes.values() for engine in own))
    if not names:
        return []
    rows = [
        [name, *(f"{own[engine] / 1e6:.2f} MB" if engine in own else "" for engine in names)]
        for name, own in sizes.items()
    ]
    return [Section("Files"), Table(("network", *names), rows, words=1)]


def _costs(results: dict[str, Result[Case]]) -> Table:
    rows = []
    for name, result in results.items():
        for one in result.cases[0].breakdowns:
            if one.engine.startswith("condensed"):
                for op_type, count, seconds in one.by_op_type()[:6]:
                    share = f"{seconds / one.total_seconds:.1%}"
                    rows.append([name, op_type, str(count), seconds_text(seconds), share])
    return Table(("network", "operator", "nodes", "time", "share"), rows)


def _notes(results: dict[str, Result[Case]]) -> list[str]:
    """Name engines that are left out, and breakdowns that do not explain the time."""
    notes = []
    for name, result in results.items():
        case = result.cases[0]
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


def _figure(results: dict[str, Result[Case]]) -> Figure:
    """Show speed-ups over dense in bars, with quartiles."""
    series = []
    int8 = any(is_int8(result) for result in results.values())
    for engine, color in (_INT8_COLORS if int8 else _COLORS).items():
        found = [(at, one.cases[0].comparison(engine)) for at, one in enumerate(results.values())]
        places = [(at, compared.run_ratio) for at, compared in found if compared]
        if places:
            texts = [f"{spread.median:.2f}" for _, spread in places]
            series.append(Series.of_spreads(engine, "bars", places, texts=texts, color=color))
    y = Axis("speed-up over ONNX Runtime dense")
    return Figure("", [Panel(series, names_axis(list(results)), y, reference=1)])
