"""The report of a layer or a model: tables of its cases, caveats, and a figure of speed-ups."""

from __future__ import annotations

from ...._base.figure_style import BLUE, RED
from ..measure.statistics import Spread
from ..report.blocks import busy_note, conditions, figure_title
from ..report.document import Bullets, Document, Notes, Section, Table, Text
from ..report.figure import Axis, Figure, Panel, Series, names_axis
from ..report.text import plain_text, seconds_text, threads_text
from ..results.case import Case
from ..results.result import Result
from .cases_tables import is_int8, main_table, rivals_table, runs_table, screen_table, types_table

_EXPLANATION = (
    "Times are medians over the rounds of each round's median run, with the range over the rounds "
    "in brackets. Speed-ups are ratios of times in the same round: median (95 % bootstrap "
    "confidence interval of the median) [min–max]. *run* is the whole session.run through an "
    "IOBinding; *op*, where given, is that minus the run of a null session with the same inputs "
    "and outputs. Other runtimes have processes of their own and time themselves: *run* is a whole "
    "call, *op* is that minus the call of a negligibly small layer. Percentiles are over all timed "
    "runs of all rounds. *caches flushed*: before each run the process reads and writes twice the "
    "size of the largest cache; *after a pause*: each run follows 5 to 50 ms of idle time. *error* "
    "is the largest difference from the reference, relative to the largest output."
)
_INT8_EXPLANATION = (
    "*rms error* is the root mean square of the differences from the layer or model in float32, "
    "relative to that of its outputs: what the rounding to 8 bits costs. Engines that end in "
    "*dynamic* quantize their float32 input in each run; those of other runtimes are compared with "
    "condensed-int8-dynamic, all others with condensed-int8-static. Those others get uint8 and "
    "return uint8 where a single layer is measured, as between two layers of a quantized network, "
    "and float32 where a model is. DeepSparse is excluded where it has no kernels of its own for "
    "the operators, OpenVINO where what it has compiled does not compute in 8 bits."
)
_SERIES = {
    "run_ratio": ("whole session.run", BLUE),
    "op_ratio": ("op time (less the null session)", RED),
}
_NODES = 15
"""Number of single nodes in the second table."""
_AROUND = {
    "ONNX Runtime overhead": "runtime_seconds",
    "Python call": "call_seconds",
}


def cases_document(result: Result[Case], figure: Figure | None = None) -> Document:
    """Report on the cases; the figure is of speed-ups unless another one is given."""
    rivals, types, runs = rivals_table(result), types_table(result), runs_table(result)
    tables = {
        "Condensed against the best form of other runtimes": rivals,
        "By type": types,
        "Single runs": runs,
    }
    sections = [
        block for title, table in tables.items() if table for block in (Section(title), table)
    ]
    screen = [screen_table(result, _summary(result)), *filter(None, (rivals, types))]
    blocks = [
        Text(_summary(result)),
        main_table(result),
        *sections,
        *(block for case in result.cases for block in _breakdown_blocks(case)),
        Notes(case_notes(result)),
        Text(_EXPLANATION),
        *([Text(_INT8_EXPLANATION)] if is_int8(result) else []),
        *conditions(result),
        Section("Engines"),
        Bullets(_engine_lines(result)),
        Section("Cases"),
        Bullets([f"{case.title}: {plain_text(case.facts)}" for case in result.cases]),
    ]
    return Document(result.title, blocks, screen, figure or _speedup_figure(result))


def case_notes(result: Result[Case]) -> list[str]:
    """List caveats: a busy machine, excluded engines, ratios that are not given."""
    notes = busy_note(result.machine)
    absent = _absent(result)
    notes += [f"{name} is excluded ({reason})" for name, reason in absent]
    notes += [note for case in result.cases for note in _notes(case, absent)]
    return notes + _mask_notes(result)


def _engine_lines(result: Result[Case]) -> list[str]:
    """Describe each engine once; its call overhead is the median over the cases."""
    lines: dict[str, str] = {}
    calls: dict[str, list[float]] = {}
    for case in result.cases:
        for engine in case.all_engines:
            if engine.version:
                text = f"{engine.name}: {engine.version}, {engine.form}"
                lines[engine.name] = f"{text}, {threads_text(engine.threads)}"
            if engine.call_seconds is not None:
                calls.setdefault(engine.name, []).append(engine.call_seconds)
    for name, seconds in calls.items():
        lines[name] += f", call overhead {seconds_text(Spread.of(seconds).median)}"
    return list(lines.values())


def _absent(result: Result[Case]) -> list[tuple[str, str]]:
    """Return engines that all of several cases exclude for the same reason: one note will do."""
    sets = [{(one.name, one.excluded) for one in case.engines} for case in result.cases]
    everywhere = set.intersection(*sets) if len(sets) > 1 else set()
    return sorted((name, reason) for name, reason in everywhere if reason is not None)


def _notes(case: Case, absent: list[tuple[str, str]]) -> list[str]:
    notes = []
    for engine in case.all_engines:
        if (engine.name, engine.excluded) in absent:
            continue
        if engine.excluded is not None:
            notes.append(f"{case.title}: {engine.name} is excluded ({engine.excluded})")
        elif engine.warmup is not None and not engine.warmup.steady:
            notes.append(
                f"{case.title}: {engine.name} was not steady after {engine.warmup.seconds:.1f} s "
                "of warm-up"
            )
    for one in case.comparisons:
        if one.op_ratio is None and case.null is not None:
            notes.append(f"{case.title}: no op speed-up of {one.engine}, since {one.op_note}")
    return notes


def _mask_notes(result: Result[Case]) -> list[str]:
    """Compare the padding and speed-up of other masks with those of the random mask."""
    random = [case for case in result.cases if case.facts.get("mask") == "random"]
    bases = {(case.sparsity, case.batch): case for case in random}
    notes = []
    for case in result.cases:
        base = bases.get((case.sparsity, case.batch))
        if base is None or case.facts.get("mask") == "random":
            continue
        text = f"{case.title}: padding {case.facts['padding']:.2f}"
        text += f" (random {base.facts['padding']:.2f})"
        own, other = case.comparison("condensed"), base.comparison("condensed")
        if own and other:
            share = own.best_ratio.median / other.best_ratio.median
            text += f", speed-up {share:.2f} of the random mask's"
        notes.append(text)
    return notes


def _breakdown_blocks(case: Case) -> list[Section | Table | Text]:
    """Report on the nodes of the case's engines; nothing without breakdowns."""
    if not case.breakdowns:
        return []
    headings = [text for one in case.breakdowns for text in (one.engine, "share")]
    rows: dict[str, list[str]] = {}
    for at, one in enumerate(case.breakdowns):
        found = [(kind, seconds, f"{count} × ") for kind, count, seconds in one.by_op_type()]
        found += [(text, getattr(one, name), "") for text, name in _AROUND.items()]
        for kind, seconds, prefix in found:
            row = rows.setdefault(kind, [""] * len(headings))
            row[2 * at] = f"{prefix}{seconds_text(seconds)}"
            row[2 * at + 1] = f"{seconds / one.total_seconds:.1%}"
    last = [[kind, *rows.pop(kind)] for kind in _AROUND]
    table = [[kind, *cells] for kind, cells in rows.items()] + last
    condensed = case.breakdowns[-1]
    longest = [
        [node.name, node.op_type, seconds_text(node.seconds)] for node in condensed.nodes[:_NODES]
    ]
    return [
        Section(f"Where the time goes, {case.title}"),
        Table(["nodes", *headings], table, words=1),
        Text(_breakdown_text(case)),
        Text(f"Longest nodes of {condensed.engine}:"),
        Table(("node", "operator", "time"), longest),
    ]


def _breakdown_text(case: Case) -> str:
    parts = [
        f"{one.engine}: these rows add up to {one.explained:.1%} of the time without the profiler "
        f"(medians of {one.runs} runs with ONNX Runtime's profiler)"
        for one in case.breakdowns
    ]
    if case.limit is not None:
        parts.append(f"if condensed nodes took no time, the speed-up would be {case.limit:.2f}×")
    return "; ".join(parts) + "."


def _summary(result: Result[Case]) -> str:
    engine = next((one for case in result.cases for one in case.engines if one.version), None)
    timing = result.require_timing()
    parts = [
        result.machine.get("cpu") or "unknown CPU",
        engine.version if engine else "",
        threads_text(timing.threads),
        f"{timing.rounds} rounds",
        f"ISA {result.machine['kernels']['isa_in_force']}",
    ]
    load = result.machine.get("load_average")
    if load:
        parts.append(f"load average {load[0]:.1f} on {result.machine['cpus']} CPUs")
    return ", ".join(part for part in parts if part)


def _speedup_figure(result: Result[Case]) -> Figure:
    """Show a panel per batch (layer) or one over the batches (model).

    A dot is the median speed-up of the condensed engine over dense in the same round, the wide band
    spans the quartiles, the thin one the range. The axis is logarithmic, so that twice as fast and
    half as fast are equally far from the dashed line of dense.
    """
    if result.kind == "model":
        panels = [_panel("", "", [(case.title, case) for case in result.cases])]
    else:
        groups: dict[int, list[tuple[str, Case]]] = {}
        for case in result.cases:
            groups.setdefault(case.batch, []).append((_label(case, result), case))
        panels = [_panel(f"batch {batch}", "sparsity", own) for batch, own in groups.items()]
    wide = len(panels) == 4 or any(len(panel.x.ticks or ()) > 4 for panel in panels)
    return Figure(figure_title(result), panels, columns=2 if wide else 3)


def _panel(title: str, axis: str, cases: list[tuple[str, Case]]) -> Panel:
    names = ("condensed-int8-static", "condensed")
    compared = [
        next((one for name in names if (one := case.comparison(name))), None) for _, case in cases
    ]
    series = []
    for part, (label, color) in _SERIES.items():
        found = [(at, getattr(one, part)) for at, one in enumerate(compared) if one]
        places = [(at, spread) for at, spread in found if spread]
        if places:
            texts = [f"{spread.median:.{2 if spread.median < 10 else 1}f}×" for _, spread in places]
            series.append(Series.of_spreads(label, "spans", places, texts=texts, color=color))
    y = Axis("speed-up over ONNX Runtime dense", log=10, unit="×")
    return Panel(series, names_axis([label for label, _ in cases], axis), y, title, reference=1)


def _label(case: Case, result: Result[Case]) -> str:
    sparsity = f"{100 * (case.sparsity or 0):.3g} %"
    if len({one.facts.get("mask") for one in result.cases}) == 1:
        return sparsity
    layer, _, _ = case.facts["mask"].partition(" of ")  # of a trained one, without its file
    return f"{sparsity}\n{layer.removesuffix('.weight')}"
