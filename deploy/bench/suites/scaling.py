"""Time of a layer against the number of threads and against the batch size."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

from ...cpus import available_cpus
from ..measure.pinning import pinned
from ..measure.statistics import Spread
from ..measure.timing import Progress, Timing
from ..report.blocks import figure_title
from ..report.document import Document
from ..report.figure import Axis, Figure, Panel, Series
from ..report.text import threads_text
from ..results.case import Case
from ..results.result import Recorder, Result
from .cases_report import cases_document
from .layer import BenchLayerSpec, LayerSetting, measure_layer


@dataclass(frozen=True)
class BenchScalingSpec:
    """A layer at many values of ``axis`` (threads or batch) and few of the other one."""

    axis: str
    threads: tuple[int, ...]
    batches: tuple[int, ...]
    in_features: int = 3072
    out_features: int = 768
    sparsities: tuple[float, ...] = (0.9,)
    engines: tuple[str, ...] = ("dense", "condensed")
    rounds: int = Timing.rounds
    turn: float = Timing.turn
    seed: int = 0

    @classmethod
    def over_threads(cls, **others: Any) -> BenchScalingSpec:
        """One to all CPUs, at a small and at a large batch."""
        return cls("threads", tuple(range(1, available_cpus() + 1)), (1, 64), **others)

    @classmethod
    def over_batches(cls, **others: Any) -> BenchScalingSpec:
        """Powers of two from 1 to 512, on one thread."""
        return cls("batch", (1,), tuple(2**power for power in range(10)), **others)

    def __post_init__(self) -> None:
        if self.axis not in ("threads", "batch"):
            raise ValueError(f"axis is {self.axis!r}; it must be threads or batch")
        self.layer_spec()

    def layer_spec(self) -> BenchLayerSpec:
        """Return what the cases are measured as."""
        shared = {**asdict(self), "threads": self.threads[0]}
        del shared["axis"]
        return BenchLayerSpec(**shared)


def bench_scaling(spec: BenchScalingSpec, *, progress: Progress | None = None) -> Result[Case]:
    """Measure the layer at each number of threads, batch size and sparsity."""
    recorder = Recorder()
    layer = spec.layer_spec()
    settings = list(itertools.product(spec.sparsities, spec.threads, spec.batches))
    cases: list[Case] = []
    for sparsity, threads, batch in settings:
        weight = layer.weight("random", sparsity)
        setting = LayerSetting.of(threads, batch, sparsity, "random", weight)
        if progress:
            progress(setting.title, len(cases) / len(settings))
        with pinned(threads):
            cases.append(measure_layer(layer, setting))
    title = f"Layer {spec.in_features} → {spec.out_features} against {spec.axis}"
    return recorder.result("scaling", title, asdict(spec), layer.timing(), tuple(cases))


def scaling_document(result: Result[Case]) -> Document:
    """Report on the cases; the figure has a line per engine and value of the other setting."""
    series = [
        Series.of_spreads(label, "line", list(places.items()), scale=1e6)
        for label, places in _lines(result).items()
    ]
    ticks = {place: str(place) for place in sorted({_place(case, result) for case in result.cases})}
    x = Axis(result.spec["axis"], log=2, ticks=ticks)
    panel = Panel(series, x, Axis("whole run, µs (band: quartiles)", log=10))
    return cases_document(result, Figure(figure_title(result), [panel]))


def _lines(result: Result[Case]) -> dict[str, dict[int, Spread]]:
    lines: dict[str, dict[int, Spread]] = {}
    by_threads = result.spec["axis"] == "threads"
    for case in result.cases:
        other = f"batch {case.batch}" if by_threads else threads_text(case.facts["threads"])
        for engine in case.engines:
            if engine.run is not None:
                # Dense once, whatever the sparsity.
                sparse = "" if engine.name == "dense" else f" {case.sparsity:.0%}"
                line = lines.setdefault(f"{engine.name}{sparse}, {other}", {})
                line[_place(case, result)] = engine.run
    return lines


def _place(case: Case, result: Result[Case]) -> int:
    return case.facts["threads"] if result.spec["axis"] == "threads" else case.batch
