"""Time against the number of threads and against the batch: lines of one layer."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from ...cpus import available_cpus
from ..measure.machine import describe_machine, load_average
from ..measure.pinning import pinned
from ..measure.timing import Progress
from ..report.text import threads_text
from ..results.case import Case
from ..results.result import Result
from .layer import BenchLayerSpec, measure_layer


@dataclass(frozen=True)
class BenchScalingSpec:
    """A layer whose ``axis`` (threads or batch) takes many values; the other one takes few."""

    axis: str
    threads: tuple[int, ...]
    batches: tuple[int, ...]
    in_features: int = 3072
    out_features: int = 768
    sparsities: tuple[float, ...] = (0.9,)
    engines: tuple[str, ...] = ("dense", "condensed")
    rounds: int = 31
    turn: float = 0.02
    seed: int = 0

    @classmethod
    def over_threads(cls, **others: Any) -> BenchScalingSpec:
        """One to all CPUs, at a small and at a large batch."""
        return cls("threads", tuple(range(1, available_cpus() + 1)), (1, 64), **others)

    @classmethod
    def over_batches(cls, **others: Any) -> BenchScalingSpec:
        """Powers of two from 1 to 512, on one thread."""
        return cls("batch", (1,), tuple(2**power for power in range(10)), **others)

    def __post_init__(self):
        if self.axis not in ("threads", "batch"):
            raise ValueError(f"axis is {self.axis!r}; it must be threads or batch")
        self.layer_spec()

    def layer_spec(self) -> BenchLayerSpec:
        """Return what the cases are measured as."""
        fields = asdict(self)
        threads = fields.pop("threads")
        del fields["axis"]
        return BenchLayerSpec(**fields, threads=threads[0])


def bench_scaling(spec: BenchScalingSpec, *, progress: Progress | None = None) -> Result:
    """Measure the layer at each number of threads, batch and sparsity."""
    created, started = datetime.now(UTC), time.perf_counter()
    machine = describe_machine()
    layer = spec.layer_spec()
    settings = list(itertools.product(spec.sparsities, spec.threads, spec.batches))
    cases: list[Case] = []
    for sparsity, threads, batch in settings:
        title = f"{100 * sparsity:.4g} % sparse, batch {batch}, {threads_text(threads)}"
        if progress:
            progress(title, len(cases) / len(settings))
        with tempfile.TemporaryDirectory(prefix="fanin-bench-") as folder, pinned(threads):
            weight = layer.weight("random", sparsity)
            facts = {"mask": "random", "threads": threads}
            own = replace(layer, threads=threads)
            cases.append(measure_layer(own, weight, facts, sparsity, batch, title, Path(folder)))
    return Result(
        kind="layer",
        title=f"Layer {spec.in_features} → {spec.out_features} against {spec.axis}",
        created=created.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - started,
        spec=asdict(spec),
        timing=layer.timing(),
        machine=machine,
        load_average_after=load_average(),
        cases=tuple(cases),
    )


def save_scaling(result: Result, folder: Path) -> list[Path]:
    """Write results.json, results.md and results.png into ``folder``."""
    from .cases_report import markdown, write_report

    def picture(file: IO[bytes]) -> None:
        draw(result, file)

    return write_report(folder, result.to_dict(), markdown(result), picture)


def draw(result: Result, file: IO[bytes]) -> None:
    """Write the figure as PNG: whole runs against the axis, a line per engine and other setting."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for label, xs, runs in _lines(result):
        line = axis.plot(xs, [run.median * 1e6 for run in runs], "o-", label=label, markersize=4)
        quartiles = [[getattr(run, name) * 1e6 for run in runs] for name in ("q1", "q3")]
        axis.fill_between(xs, *quartiles, alpha=0.2, color=line[0].get_color(), linewidth=0)
    values = sorted({_place(case, result) for case in result.cases})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(values, [str(value) for value in values])
    axis.set_xlabel(result.spec["axis"])
    axis.set_ylabel("whole run, µs (band: quartiles)")
    axis.grid(which="major", color="#ddd", linewidth=0.6)
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{result.title}\n{result.machine.get('cpu') or ''}", fontsize=10)
    figure.savefig(file, format="png", dpi=150)


def _lines(result: Result) -> Iterator[tuple[str, list[int], list[Any]]]:
    lines: dict[str, list[tuple[int, Any]]] = {}
    by_threads = result.spec["axis"] == "threads"
    for case in result.cases:
        other = f"batch {case.batch}" if by_threads else threads_text(case.facts["threads"])
        for engine in case.engines:
            if engine.run is not None:
                sparse = "" if engine.name == "dense" else f" {case.sparsity:.0%}"
                place = (_place(case, result), engine.run)
                lines.setdefault(f"{engine.name}{sparse}, {other}", []).append(place)
    for label, places in lines.items():
        xs, runs = zip(*dict(places).items(), strict=True)  # dense once, whatever the sparsity
        yield label, list(xs), list(runs)


def _place(case: Case, result: Result) -> int:
    return case.facts["threads"] if result.spec["axis"] == "threads" else case.batch
