"""The figure of a kernel bench: a roofline, or time against the number of outputs."""

from __future__ import annotations

from statistics import median
from typing import IO, TYPE_CHECKING

from .kernels import KernelCase, KernelsResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(result: KernelsResult, file: IO[bytes]) -> None:
    """Write the figure as PNG.

    Layers of many sizes at one sparsity and batch are drawn as time against outputs, with the time
    of plain reading; anything else as a roofline: multiply-adds per cycle against multiply-adds per
    byte, under the roofs of reading and of the multiply-add units.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    cases = [case for case in result.cases if case.run is not None]
    axis.set_xscale("log")
    axis.set_yscale("log")
    if cases:
        settings = {
            (case.sparsity, case.batch, case.mask, case.values, case.in_features) for case in cases
        }
        if len(settings) == 1 and len({case.out_features for case in cases}) > 2:
            _draw_scaling(axis, cases, result)
        else:
            _draw_roofline(axis, cases, result)
        axis.legend(fontsize=7, frameon=False)
    axis.grid(which="major", color="#ddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{result.title}\n{result.machine.get('cpu') or ''}", fontsize=10)
    figure.savefig(file, format="png", dpi=150)


def _draw_scaling(axis: Axes, cases: list[KernelCase], result: KernelsResult) -> None:
    """Draw time against outputs, and what reading the footprint takes from each level of memory."""
    outputs = [case.out_features for case in cases]
    axis.plot(outputs, [case.run.median * 1e6 for case in cases], "o-", label="kernel")
    limits = [max(case.read.median, case.macs / case.peak_macs_per_second) for case in cases]
    axis.plot(outputs, [limit * 1e6 for limit in limits], "--", color="#777", label="limit")
    hertz = median(case.hertz for case in cases)
    shades = ("#6baed6", "#3182bd", "#08519c")
    for (size, rate), shade in zip(result.roofs, shades, strict=False):
        times = [case.footprint_bytes / (rate * hertz) * 1e6 for case in cases]
        label = f"reading as from {_size(size)}, {rate * hertz / 1e9:.1f} GB/s"
        axis.plot(outputs, times, ":", color=shade, linewidth=1.2, label=label)
    for case in cases:
        axis.annotate(
            f"{case.share.median:.0%}",
            (case.out_features, case.run.median * 1e6),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )
    axis.set_xlabel(f"outputs, {cases[0].fan_in} of {cases[0].in_features} inputs each")
    axis.set_ylabel("µs (share of the limit beside)")


def _draw_roofline(axis: Axes, cases: list[KernelCase], result: KernelsResult) -> None:
    intensity = [case.macs / case.footprint_bytes for case in cases]
    low, high = min(intensity) / 1.5, max(intensity) * 1.5
    peak = median(case.peak_macs_per_second / case.hertz for case in cases)
    for (size, rate), style in zip(result.roofs, ("-", "--", ":"), strict=False):
        label = f"reading {_size(size)}, {rate:.1f} B/cycle"
        ends = [low, high] if high * rate < peak else [low, max(low, peak / rate), high]
        roof = [min(peak, end * rate) for end in ends]
        axis.plot(ends, roof, style, color="#777", linewidth=1, label=label)
    for kernel in dict.fromkeys(case.kernel for case in cases):
        own = [case for case in cases if case.kernel == kernel]
        xs = [case.macs / case.footprint_bytes for case in own]
        axis.plot(xs, [case.macs_per_cycle for case in own], "o", markersize=4, label=kernel)
    axis.axhline(peak, color="#777", linewidth=1)
    axis.set_xlabel("multiply-adds per byte of packed weights, input and output")
    axis.set_ylabel("multiply-adds per cycle")


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
