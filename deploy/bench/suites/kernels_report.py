"""A kernel bench as files and as a table for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from rich.table import Table

from ..measure.statistics import Spread
from ..report.text import seconds_text
from .cases_report import busy_note, conditions, write_report
from .kernels import KernelCase, KernelsResult

HEADINGS = (
    "layer",
    "batch",
    "kernel",
    "time",
    "B/cycle",
    "read B/cycle",
    "MAC/cycle",
    "padding",
    "limit",
    "share of limit",
)


def save_kernels_report(result: KernelsResult, folder: Path) -> list[Path]:
    """See KernelsResult.save."""
    from .kernels_figure import draw

    def picture(file: IO[bytes]) -> None:
        draw(result, file)

    return write_report(folder, result.to_dict(), kernels_markdown(result), picture)


def kernels_table(result: KernelsResult) -> Table:
    """Lay the result out for the terminal: a line per layer and batch, below it its kernels."""
    table = Table(title=result.title)
    table.add_column("kernel", overflow="fold")
    shown = [HEADINGS.index(name) for name in ("time", "B/cycle", "MAC/cycle", "padding")]
    for name, width in (("time", 7), ("B/cyc", 5), ("MAC/cyc", 7), ("pad", 4), ("limit", 5)):
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    previous = None
    for case in result.cases:
        heading = f"{_layer(case)}, batch {case.batch}"
        if heading != previous:
            table.add_section()
            table.add_row(f"[bold]{heading}[/bold]")
        previous = heading
        row = _row(case)
        share = f"{case.share.median:.0%}" if case.share else ""
        table.add_row(row[2], *(row[at] for at in shown), share)
    return table


def kernels_notes(result: KernelsResult) -> list[str]:
    """List what qualifies the numbers, and how time grows with the number of outputs."""
    notes = busy_note(result.machine)
    notes += [
        f"{_layer(case)}, batch {case.batch}: {case.kernel} is excluded ({case.excluded})"
        for case in result.cases
        if case.excluded is not None
    ]
    by_rows = {
        case.out_features: case.run.median
        for case in result.cases
        if case.run is not None and case.dispatched and case.batch == 1
    }
    if {300_000, 1_000_000} <= set(by_rows):
        growth = by_rows[1_000_000] / by_rows[300_000]
        notes.append(
            f"from 300,000 to 1,000,000 outputs the time grows {growth:.2f} times, "
            f"{100 * (growth * 0.3 - 1):+.0f} % against proportion"
        )
    return notes


def kernels_markdown(result: KernelsResult) -> str:
    """Write the content of results.md."""
    lines = [
        f"# {result.title}",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "|".join("---" if at in (0, 2) else "---:" for at in range(len(HEADINGS))) + "|",
        *("| " + " | ".join(_row(case)) + " |" for case in result.cases),
    ]
    notes = kernels_notes(result)
    if notes:
        lines += ["", "Notes:", "", *(f"- {note}" for note in notes)]
    lines += [
        "",
        "A star marks the kernel that the dispatch table takes. *time* is the median of the "
        f"rounds, less a call from Python ({seconds_text(result.call_seconds)}). *B/cycle* counts "
        "packed weights, input and output once; *read B/cycle* is plain reading of as many bytes "
        "in the same rounds; *MAC/cycle* counts true weights, *padding* is stored lanes over true "
        "weights. The limit is the longer of that reading and of the multiply-adds at the core's "
        "peak; the share is limit over time, per round: median [min–max]. Cycles are of the clock "
        "measured in each case.",
        "",
        "## Conditions",
        "",
        *(f"- {line}" for line in conditions(result)),
    ]
    roofs = ", ".join(f"{size >> 10} KiB {rate:.1f}" for size, rate in result.roofs)
    lines.append(f"- reading, bytes per cycle: {roofs}")
    if result.cases:
        hertz = Spread.of([case.hertz for case in result.cases])
        peak = Spread.of([case.peak_macs_per_second / case.hertz for case in result.cases])
        lines.append(
            f"- clock: {hertz.median / 1e9:.2f} GHz [{hertz.min / 1e9:.2f}–{hertz.max / 1e9:.2f}]"
        )
        lines.append(
            f"- peak, multiply-adds per cycle: {peak.median:.1f} [{peak.min:.1f}–{peak.max:.1f}]"
        )
    return "\n".join(lines) + "\n"


def _layer(case: KernelCase) -> str:
    mask = "" if case.mask == "random" else f" {case.mask}"
    values = "" if case.values == "float32" else f" {case.values}"
    return f"{case.in_features} → {case.out_features}, {100 * case.sparsity:.3g} %{mask}{values}"


def _row(case: KernelCase) -> list[str]:
    name = case.kernel + (" *" if case.dispatched else "")
    start = [_layer(case), str(case.batch), name]
    if case.run is None:
        return [*start, "excluded", *[""] * 6]
    share = case.share
    return [
        *start,
        seconds_text(case.run.median),
        f"{case.bytes_per_cycle:.1f}",
        f"{case.read_bytes_per_cycle:.1f}",
        f"{case.macs_per_cycle:.1f}",
        f"{case.padding:.2f}",
        case.limit,
        f"{share.median:.0%} [{share.min:.0%}–{share.max:.0%}]",
    ]
