"""Time of a layer against the number of threads and against the batch size."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

from ...cpus import default_threads
from ..measure.pinning import pinned
from ..measure.timing import Progress, Timing
from ..results.case import Case
from ..results.plain import to_plain
from ..results.result import Recorder, Result
from .layer import BenchLayerSpec, LayerSetting, measure_layer, sparsity_text
from .planned import Planned, plan_layer
from .specs import thread_counts


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
        """Powers of two up to all CPUs and all of them, at small and large batches."""
        return cls("threads", thread_counts(default_threads()), (1, 16, 64, 256), **others)

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
    return recorder.result(
        "scaling",
        title,
        asdict(spec),
        layer.timing(),
        tuple(cases),
        **({"planned": to_plain(_plans(spec, layer))} if spec.axis == "threads" else {}),
    )


def _plans(spec: BenchScalingSpec, layer: BenchLayerSpec) -> list[Planned]:
    settings = itertools.product(spec.sparsities, spec.batches)
    return [
        plan
        for sparsity, batch in settings
        for plan in plan_layer(
            f"{sparsity_text(sparsity)}, batch {batch}", layer.weight("random", sparsity), batch
        )
    ]
