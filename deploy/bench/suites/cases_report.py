"""A result as files and as a table for the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.table import Table

from ..measure.statistics import Comparison, Spread
from ..report.text import seconds_text, short, threads_text, unit_of
from ..requirements import require
from ..results.case import Case
from ..results.files import replace_file
from ..results.result import Result
from .breakdown_report import breakdown_lines
from .runs_report import ratio_text, runs_grid, types_grid

if TYPE_CHECKING:
    from .kernels import KernelsResult


_EXPLANATION = (
    "Times are medians over the rounds of each round's median run, with the range over the rounds "
    "in brackets. Speed-ups are ratios of times taken in the same round: median (95 % bootstrap "
    "interval of the median) [min–max]. *run* is the whole session.run through an IOBinding; *op*, "
    "where given, is that less a null session with the same inputs and outputs. Other runtimes run "
    "in processes of their own, timed there: *run* is a whole call, *op* is that less the call of "
    "a layer too small to matter. Percentiles are of all timed runs of all rounds. Before a run "
    "with *caches flushed* the process reads and writes twice the largest cache; *after a pause* "
    "is after 5 to 50 ms without work. *error* is the largest difference from the reference, "
    "relative to the largest output."
)


def save_report(result: Result, folder: Path) -> list[Path]:
    """See Result.save."""
    from .cases_figure import draw

    def picture(file: IO[bytes]) -> None:
        draw(result, file)

    return write_report(folder, result.to_dict(), markdown(result), picture)


def write_report(
    folder: Path, data: dict[str, Any], text: str, picture: Callable[[IO[bytes]], None]
) -> list[Path]:
    """Write results.json, results.md and results.png into ``folder``; returns their paths."""
    require("matplotlib", "the benchmark draws its figure with it")
    folder.mkdir(parents=True, exist_ok=True)
    json_text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    return [
        replace_file(folder / "results.json", lambda file: file.write(json_text.encode())),
        replace_file(folder / "results.md", lambda file: file.write(text.encode())),
        replace_file(folder / "results.png", picture),
    ]


def result_table(result: Result) -> Table:
    """Lay the result out for the terminal: one row per engine and case, medians and speed-ups."""
    shown = [at for at in _columns(result) if HEADINGS[at] not in ("first run", "error")]
    table = Table(title=result.title, caption=_conditions(result))
    for at in shown:
        _add_column(table, HEADINGS[at], at)
    for number, case in enumerate(result.cases):
        if number:
            table.add_section()
        for row in _rows(case, _median, _ratio):
            table.add_row(*(row[at] for at in shown))
    return table


def rivals_table(result: Result) -> Table | None:
    """Lay out the best of each other runtime's forms against condensed; None without any."""
    rows = _rival_rows(result)
    if not rows:
        return None
    table = Table(title="condensed against the best form of other runtimes")
    for at, heading in enumerate(RIVAL_HEADINGS):
        _add_column(table, heading, at)
    for row in rows:
        table.add_row(*row)
    return table


def _add_column(table: Table, heading: str, at: int) -> None:
    """Add a column; engines' names, in the second, are neither cut nor broken."""
    justify = "left" if at < 2 else "right"
    table.add_column(heading, justify=justify, no_wrap=at == 1, overflow="fold")


def result_notes(result: Result) -> list[str]:
    """List what qualifies the numbers: a busy machine, engines left out, ratios not given."""
    notes = busy_note(result.machine)
    absent = _absent(result)
    notes += [f"{name} is excluded ({reason})" for name, reason in absent]
    notes += [note for case in result.cases for note in _notes(case, absent)]
    return notes + _mask_notes(result)


def busy_note(machine: dict[str, Any]) -> list[str]:
    """Say that the machine had other work, if so."""
    load, cpus = machine["load_average"], machine["cpus"]
    if not load or load[0] <= 0.5 * cpus:
        return []
    return [
        f"other work ran on this machine (load average {load[0]:.1f} on {cpus} CPUs at the "
        "start): times are too long and ratios uncertain"
    ]


def markdown(result: Result) -> str:
    """Write the content of results.md."""
    shown = _columns(result)
    lines = [
        f"# {result.title}",
        "",
        _conditions(result),
        "",
        "| " + " | ".join(HEADINGS[at] for at in shown) + " |",
        "|" + "---|" * 2 + "---:|" * (len(shown) - 2),
    ]
    for case in result.cases:
        for row in _rows(case, _median_and_range, ratio_text):
            lines.append("| " + " | ".join(row[at] for at in shown) + " |")
    rivals = _rival_rows(result)
    if rivals:
        lines += [
            "",
            "## Condensed against the best form of other runtimes",
            "",
            "| " + " | ".join(RIVAL_HEADINGS) + " |",
            "|" + "---|" * 2 + "---:|" * (len(RIVAL_HEADINGS) - 2),
            *("| " + " | ".join(row) + " |" for row in rivals),
        ]
    for grid in (types_grid(result), runs_grid(result)):
        if grid is not None:
            lines += ["", f"## {grid.title}", "", *grid.to_markdown()]
    lines += breakdown_lines(result)
    notes = result_notes(result)
    if notes:
        lines += ["", "Notes:", "", *(f"- {note}" for note in notes)]
    lines += [
        "",
        _EXPLANATION,
        "",
        "## Conditions",
        "",
    ]
    lines += [f"- {line}" for line in conditions(result)]
    lines += ["", "## Engines", "", *(f"- {line}" for line in _engine_lines(result))]
    lines += ["", "## Cases", ""]
    for case in result.cases:
        facts = ", ".join(f"{key} {plain(value)}" for key, value in case.facts.items())
        lines.append(f"- {case.title}: {facts}")
    return "\n".join(lines) + "\n"


RIVAL_HEADINGS = ("case", "best form", "run", "op", "run speed-up", "op speed-up")
HEADINGS = ("case", "engine", "run", "op", "run speed-up", "op speed-up", "first run", "error")


def _columns(result: Result) -> list[int]:
    """Choose the columns that say something: without a null session there is no op time."""
    has_op = any(case.null is not None for case in result.cases)
    return [at for at, heading in enumerate(HEADINGS) if has_op or not heading.startswith("op")]


def _rows(
    case: Case, time: Callable[[Spread | None], str], ratio: Callable[[Spread], str]
) -> list[list[str]]:
    """Fill the rows of the engines that compute in float32."""
    by_name = {one.engine: one for one in case.comparisons}
    rows = []
    for engine in (*case.engines, *([case.null] if case.null else [])):
        if engine.precision != "float32":
            continue
        first = case.title if engine is case.engines[0] else ""
        if engine.excluded is not None:
            rows.append([first, engine.name, "excluded", "", "", "", "", ""])
            continue
        rows.append(
            [
                first,
                engine.name,
                time(engine.run),
                time(engine.op),
                *_speedups(by_name.get(engine.name), ratio),
                seconds_text(engine.first_run_seconds),
                "" if engine.error_after is None else f"{engine.error_after:.0e}",
            ]
        )
    return rows


def _rival_rows(result: Result) -> list[list[str]]:
    rows = []
    for case in result.cases:
        for rival in case.rivals:
            best = case.engine(rival.comparison.baseline)
            name = f"{best.name} (of {len(rival.forms)})"
            times = [_median(best.run), _median(best.op)]
            rows.append([case.title, name, *times, *_speedups(rival.comparison, _ratio)])
    return rows


def _engine_lines(result: Result) -> list[str]:
    """Say once what each engine is; the call is the median over the cases."""
    lines, calls = {}, {}
    for case in result.cases:
        for engine in (*case.engines, *([case.null] if case.null else [])):
            if engine.version:
                text = f"{engine.name}: {engine.version}, {engine.form}"
                lines[engine.name] = f"{text}, {threads_text(engine.threads)}"
            if engine.call_seconds is not None:
                calls.setdefault(engine.name, []).append(engine.call_seconds)
    for name, seconds in calls.items():
        lines[name] += f", a call without a layer {seconds_text(Spread.of(seconds).median)}"
    return list(lines.values())


def _absent(result: Result) -> list[tuple[str, str]]:
    """Engines that every one of several cases lacks for the same reason: worth one note."""
    sets = [{(one.name, one.excluded) for one in case.engines} for case in result.cases]
    everywhere = set.intersection(*sets) if len(sets) > 1 else set()
    return sorted((name, reason) for name, reason in everywhere if reason is not None)


def _notes(case: Case, absent: list[tuple[str, str]]) -> list[str]:
    notes = []
    for engine in (*case.engines, *([case.null] if case.null else [])):
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


def _mask_notes(result: Result) -> list[str]:
    """Compare what packing does to other masks, and their speed-up, with the random mask's."""
    random = {
        (case.sparsity, case.batch): case
        for case in result.cases
        if case.facts.get("mask") == "random"
    }
    notes = []
    for case in result.cases:
        base = random.get((case.sparsity, case.batch))
        if base is None or case.facts.get("mask") == "random":
            continue
        text = f"{case.title}: padding {case.facts['padding']:.2f}"
        text += f" (random {base.facts['padding']:.2f})"
        ratios = [_op_or_run(one) for one in (case, base)]
        if all(ratios):
            text += f", speed-up {ratios[0] / ratios[1]:.2f} of the random mask's"
        notes.append(text)
    return notes


def _op_or_run(case: Case) -> float | None:
    """Median speed-up of condensed: of the op, where it is given."""
    for one in case.comparisons:
        if one.engine == "condensed":
            return (one.op_ratio or one.run_ratio).median
    return None


def _speedups(comparison: Comparison | None, ratio: Callable[[Spread], str]) -> list[str]:
    if comparison is None:
        return ["", ""]
    op = ratio(comparison.op_ratio) if comparison.op_ratio else "in the noise"
    return [ratio(comparison.run_ratio), op]


def _ratio(spread: Spread) -> str:
    return f"{spread.median:.2f}× [{spread.min:.2f}–{spread.max:.2f}]"


def _median(spread: Spread | None) -> str:
    return seconds_text(spread.median) if spread else ""


def _median_and_range(spread: Spread | None) -> str:
    if spread is None:
        return ""
    unit, factor = unit_of(spread.median)
    low, high = spread.min * factor, spread.max * factor
    return f"{short(spread.median * factor)} {unit} [{short(low)}–{short(high)}]"


def _conditions(result: Result) -> str:
    engine = next((one for case in result.cases for one in case.engines if one.version), None)
    parts = [
        result.machine.get("cpu") or "unknown CPU",
        engine.version if engine else "",
        threads_text(result.timing.threads),
        f"{result.timing.rounds} rounds",
        f"ISA {result.machine['kernels']['isa_in_force']}",
    ]
    load = result.machine.get("load_average")
    if load:
        parts.append(f"load average {load[0]:.1f} on {result.machine['cpus']} CPUs")
    return ", ".join(part for part in parts if part)


def conditions(result: Result | KernelsResult) -> list[str]:
    """Write the machine, the spec and the timing, a line each."""
    kernels = result.machine["kernels"]
    flat = [(key, value) for key, value in result.machine.items() if key != "kernels"]
    flat += [("ISAs", kernels["isas"]), ("ISA in force", kernels["isa_in_force"])]
    flat += [("spec", result.spec), ("timing", result.to_dict()["timing"])]
    flat += [("load average after", result.load_average_after)]
    flat += [("measured", f"{result.created}, {result.seconds:.0f} s")]
    return [f"{key}: {plain(value)}" for key, value in flat]


def plain(value: object) -> str:
    """Write a value of a result file in a line of text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return " ".join(map(plain, value)) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "not known" if value is None else str(value)
