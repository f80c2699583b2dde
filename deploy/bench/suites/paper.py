"""The paper's figures on CPUs as one benchmark: threads, batch sizes, sparsities, all engines.

SRigL, arXiv 2305.02299, section 4.4 and appendix: the 3072 -> 768 layer of ViT-B/16 at batch sizes
of 1 to 256 and sparsities of 80 to 99 %.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..engines.peers import DEEPSPARSE_PYTHON
from ..measure.pinning import pinned
from ..measure.timing import Progress
from ..report.text import threads_text
from ..results.case import Case
from ..results.result import Recorder, Result
from ..results.store import CaseStore
from .layer import BenchLayerSpec, LayerSetting, measure_layer
from .layer_engines import COMPILED, ENGINES, INT8_ENGINES, NARROW
from .specs import spec_facts
from .trained_layer import TrainedLayer

SUITE = tuple(name for name in ENGINES if name not in (*NARROW, "fallback"))
"""All engines that compute in float32."""

SUITE_OF = {"float32": SUITE, "int8": INT8_ENGINES}


@dataclass(frozen=True)
class BenchPaperSpec:
    """Layers of ``in_features`` x ``out_features``, random masks at each of the ``sparsities``.

    ``ablated`` is the share of neurons without weights, which the paper's ``structured`` form
    relies on. ``trained`` layers are measured beside them, at their own sizes and sparsity.
    ``minutes`` limit the timed part of all cases together; each case gets an equal share of what is
    left. ``conditions`` are measured at batch 1 only. ``precision`` is as in BenchLayerSpec.
    """

    in_features: int = 3072
    out_features: int = 768
    threads: tuple[int, ...] = (1, 2)
    batches: tuple[int, ...] = (1, 8, 64, 256)
    sparsities: tuple[float, ...] = (0.8, 0.9, 0.95, 0.99)
    ablated: float = 0.3
    engines: tuple[str, ...] = SUITE
    precision: str = "float32"
    trained: tuple[TrainedLayer, ...] = ()
    rounds: int = 31
    minutes: float = 38.0
    conditions: tuple[str, ...] = ("cold", "paced")
    seed: int = 0
    deepsparse_python: Path = DEEPSPARSE_PYTHON

    @classmethod
    def quick(cls, **others: Any) -> BenchPaperSpec:
        """Make a spec of fewer cases and rounds, without compiled engines."""
        suite = SUITE_OF[others.get("precision", "float32")]
        engines = tuple(name for name in suite if name not in COMPILED)
        fields = {"batches": (1, 64), "sparsities": (0.9, 0.99), "rounds": 7, "minutes": 1.5}
        return cls(**{"engines": engines, "conditions": (), **fields, **others})

    def __post_init__(self) -> None:
        if not self.threads or min(self.threads) < 1 or len(set(self.threads)) < len(self.threads):
            raise ValueError(f"threads are {self.threads}; give one or more, each once")
        if not self.minutes > 0:
            raise ValueError(f"minutes is {self.minutes}; it must be above 0")
        self.layer_spec()

    def layer_spec(self) -> BenchLayerSpec:
        """Return what the cases of the first number of threads are measured as."""
        names = {one.name for one in fields(BenchLayerSpec)} - {"threads", "trained", "conditions"}
        shared = {name: value for name, value in vars(self).items() if name in names}
        return BenchLayerSpec(**shared, threads=self.threads[0])


@dataclass(frozen=True)
class PaperResult:
    """A result for each number of threads, and how many cases are still to be measured."""

    results: tuple[Result[Case], ...]
    missing: int


def bench_paper(
    spec: BenchPaperSpec,
    folder: Path,
    *,
    stop_after: float | None = None,
    progress: Progress | None = None,
) -> PaperResult:
    """Measure the cases that ``folder`` does not hold yet.

    Args:
        spec: what to measure.
        folder: keeps finished cases.
        stop_after: minutes after which no further case is started; another call resumes.
        progress: told each case's title and the share done.

    Raises:
        StoreError: the folder holds cases of another benchmark.

    """
    started = time.perf_counter()
    recorder = Recorder()
    names = ("cpu", "cpus_available", "fanin", "onnxruntime")
    fixed = {name: recorder.machine[name] for name in names}
    fixed |= {name: value for name, value in spec_facts(spec).items() if name != "minutes"}
    store = CaseStore(folder / "cases", fixed)
    settings = list(_settings(spec))
    stored = [store.get(one.title) for one in settings]
    done = {case.title: case for case in stored if case is not None}
    for setting in settings:
        minutes = (time.perf_counter() - started) / 60
        if setting.title in done or (stop_after is not None and minutes > stop_after):
            continue
        if progress:
            progress(setting.title, len(done) / len(settings))
        spent = sum(case.facts["timing_seconds"] for case in done.values())
        left = max(0.0, 60 * spec.minutes - spent) / (len(settings) - len(done))
        layer_spec = replace(
            spec.layer_spec(),
            budget=max(left, 1e-3),
            conditions=spec.conditions if setting.batch == 1 else (),
        )
        with pinned(setting.threads):
            case = measure_layer(layer_spec, setting)
        store.put(case)
        done[case.title] = case
    results = tuple(
        recorder.result(
            "layer",
            f"Layer {spec.in_features} → {spec.out_features}"
            f"{', int8' if spec.precision == 'int8' else ''}, {threads_text(threads)}",
            spec_facts(spec),
            replace(spec.layer_spec().timing(), threads=threads),
            tuple(
                done[one.title] for one in settings if one.title in done and one.threads == threads
            ),
        )
        for threads in spec.threads
    )
    return PaperResult(results, len(settings) - len(done))


def _settings(spec: BenchPaperSpec) -> Iterator[LayerSetting]:
    layer_spec = spec.layer_spec()
    layers = [
        (sparsity, "random", layer_spec.weight("random", sparsity)) for sparsity in spec.sparsities
    ]
    layers += [(1 - layer.weight.density, layer.title, layer.weight) for layer in spec.trained]
    for threads, batch, layer in itertools.product(spec.threads, spec.batches, layers):
        yield LayerSetting.of(threads, batch, *layer)
