"""The report of a kernel bench."""

from __future__ import annotations

from statistics import median

from ...._base.figure_style import BLUE, GRAY, PURPLE, SKY
from ..measure.statistics import Spread
from ..report.blocks import busy_note, conditions, figure_title
from ..report.document import Document, Notes, Table, Text
from ..report.figure import Axis, Figure, Panel, Series
from ..report.text import seconds_text
from ..results.result import Result
from .kernels import KernelCase, KernelFigures

_Counted = tuple[KernelCase, KernelFigures]

_HEADINGS = (
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


def kernels_document(result: Result[KernelCase]) -> Document:
    """Report on the kernels."""
    blocks = [
        Table(_HEADINGS, [_row(case) for case in result.cases], words=3),
        Notes(kernel_notes(result)),
        Text(
            "A star marks the kernel that the dispatch table takes. *time* is the median of the "
            f"rounds, less a call from Python ({seconds_text(result.facts['call_seconds'])}). "
            "*B/cycle* counts packed weights, input and output once; *read B/cycle* is plain "
            "reading of as many bytes in the same rounds; *MAC/cycle* counts true weights, "
            "*padding* is stored lanes over true weights. The limit is the longer of that reading "
            "and of the multiply-adds at the core's peak; the share is limit over time, per "
            "round: median [min–max]. Cycles are of the clock measured in each case."
        ),
        *conditions(result, *_rates(result)),
    ]
    return Document(result.title, blocks, [_screen_table(result)], _figure(result))


def kernel_notes(result: Result[KernelCase]) -> list[str]:
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


def _screen_table(result: Result[KernelCase]) -> Table:
    """Lay out a line per layer and batch, below it its kernels."""
    rows: list[list[str]] = []
    previous = None
    for case in result.cases:
        heading = f"{_layer(case)}, batch {case.batch}"
        if heading != previous:
            rows.append([heading])
        previous = heading
        cells = dict(zip(_HEADINGS, _row(case), strict=True))
        share = f"{case.share.median:.0%}" if case.share else ""
        names = ("kernel", "time", "B/cycle", "MAC/cycle", "padding")
        rows.append([*(cells[name] for name in names), share])
    return Table(
        ("kernel", "time", "B/cyc", "MAC/cyc", "pad", "limit"), rows, words=1, title=result.title
    )


def _rates(result: Result[KernelCase]) -> list[str]:
    roofs = ", ".join(f"{size >> 10} KiB {rate:.1f}" for size, rate in result.facts["roofs"])
    lines = [f"reading, bytes per cycle: {roofs}"]
    if result.cases:
        hertz = Spread.of([case.hertz / 1e9 for case in result.cases])
        peak = Spread.of([case.peak_macs_per_second / case.hertz for case in result.cases])
        lines += [
            f"clock: {hertz.median:.2f} GHz [{hertz.min:.2f}–{hertz.max:.2f}]",
            f"peak, multiply-adds per cycle: {peak.median:.1f} [{peak.min:.1f}–{peak.max:.1f}]",
        ]
    return lines


def _layer(case: KernelCase) -> str:
    mask = "" if case.mask == "random" else f" {case.mask}"
    values = "" if case.values == "float32" else f" {case.values}"
    return f"{case.in_features} → {case.out_features}, {100 * case.sparsity:.3g} %{mask}{values}"


def _row(case: KernelCase) -> list[str]:
    name = case.kernel + (" *" if case.dispatched else "")
    start = [_layer(case), str(case.batch), name]
    figures = case.figures
    if figures is None:
        return [*start, "excluded", *[""] * 6]
    share = figures.share
    return [
        *start,
        seconds_text(figures.run.median),
        f"{figures.bytes_per_cycle:.1f}",
        f"{figures.read_bytes_per_cycle:.1f}",
        f"{figures.macs_per_cycle:.1f}",
        f"{case.padding:.2f}",
        figures.limit,
        f"{share.median:.0%} [{share.min:.0%}–{share.max:.0%}]",
    ]


def _figure(result: Result[KernelCase]) -> Figure:
    """Show a roofline, or time against outputs where only their number differs."""
    cases = [(case, figures) for case in result.cases if (figures := case.figures) is not None]
    settings = {
        (case.sparsity, case.batch, case.mask, case.values, case.in_features) for case, _ in cases
    }
    scaling = len(settings) == 1 and len({case.out_features for case, _ in cases}) > 2
    panel = _scaling(cases, result) if scaling else _roofline(cases, result)
    return Figure(figure_title(result), [panel])


def _scaling(cases: list[_Counted], result: Result[KernelCase]) -> Panel:
    """Show time against outputs, and what reading the footprint takes from each memory level."""
    outputs = [case.out_features for case, _ in cases]
    limits = [
        max(figures.read.median, case.macs / case.peak_macs_per_second) for case, figures in cases
    ]
    hertz = median(case.hertz for case, _ in cases)
    series = [
        Series(
            "kernel (share of the limit beside)",
            "line",
            outputs,
            [figures.run.median * 1e6 for _, figures in cases],
            texts=[f"{figures.share.median:.0%}" for _, figures in cases],
            marker="o",
        ),
        Series("limit", "line", outputs, [1e6 * one for one in limits], color=GRAY, style="--"),
    ]
    shades = (SKY, BLUE, PURPLE)
    for (size, rate), shade in zip(result.facts["roofs"], shades, strict=False):
        label = f"reading as from {_size(size)}, {rate * hertz / 1e9:.1f} GB/s"
        times = [case.footprint_bytes / (rate * hertz) * 1e6 for case, _ in cases]
        series.append(Series(label, "line", outputs, times, color=shade, style=":"))
    first, _ = cases[0]
    x = Axis(f"outputs, {first.fan_in} of {first.in_features} inputs each", log=10)
    return Panel(series, x, Axis("µs", log=10))


def _roofline(cases: list[_Counted], result: Result[KernelCase]) -> Panel:
    """Show multiply-adds per cycle against those per byte, under what reading and units allow."""
    x = Axis("multiply-adds per byte of packed weights, input and output", log=10)
    y = Axis("multiply-adds per cycle", log=10)
    if not cases:
        return Panel([], x, y)
    intensity = [case.macs / case.footprint_bytes for case, _ in cases]
    low, high = min(intensity) / 1.5, max(intensity) * 1.5
    peak = median(case.peak_macs_per_second / case.hertz for case, _ in cases)
    series = []
    for (size, rate), style in zip(result.facts["roofs"], ("-", "--", ":"), strict=False):
        ends = [low, high] if high * rate < peak else [low, max(low, peak / rate), high]
        roof = [min(peak, end * rate) for end in ends]
        label = f"reading {_size(size)}, {rate:.1f} B/cycle"
        series.append(Series(label, "line", ends, roof, color=GRAY, style=style))
    for kernel in dict.fromkeys(case.kernel for case, _ in cases):
        own = [(case, figures) for case, figures in cases if case.kernel == kernel]
        xs = [case.macs / case.footprint_bytes for case, _ in own]
        series.append(Series(kernel, "points", xs, [figures.macs_per_cycle for _, figures in own]))
    return Panel(series, x, y, reference=peak)


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
