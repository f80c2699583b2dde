"""Every kernel of the dispatch table, through the binding, against the limits of the core.

No runtime takes part: this is what a kernel itself does, one thread, hot weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from ....ort_ops import _native, kernel_table
from ....ort_ops.format.condensed import VALUE_TYPES, CondensedWeight
from ..engines.child.conditions import cache_sizes
from ..engines.kernels import KernelEngine, ReadEngine, call_seconds, read_bytes_per_cycle
from ..measure.layer_problem import layer_problem
from ..measure.loop import measure
from ..measure.statistics import Spread
from ..measure.timing import Measurement, Progress, Timing
from ..results.plain import RAW
from ..results.result import Recorder, Result
from .random_layer import MASKS, random_sparse_layer
from .specs import check_batches, check_choices, check_features, check_seed, spec_facts
from .trained_layer import TrainedLayer

# Where the system does not tell the sizes of its caches.
_USUAL_CACHES = {2: 1 << 20, 3: 16 << 20}


@dataclass(frozen=True)
class BenchKernelsSpec:
    """Kernels x shapes (in, out) x sparsity x mask x type of the weights x batch, on one thread.

    Each neuron has round((1 - sparsity) * in) weights. ``trained`` adds a layer of a network at all
    ``batches``. With ``dispatched`` only the kernel that the dispatch table takes is measured, else
    every one that this CPU runs and whose row admits the case. ``turn`` is in seconds (see Timing).
    """

    shapes: tuple[tuple[int, int], ...] = ((3072, 768), (768, 3072))
    sparsities: tuple[float, ...] = (0.8, 0.9, 0.95, 0.99)
    batches: tuple[int, ...] = (1, 8, 16, 64, 256)
    masks: tuple[str, ...] = MASKS[:1]
    values: tuple[str, ...] = VALUE_TYPES[:1]
    trained: TrainedLayer | None = None
    dispatched: bool = False
    rounds: int = 11
    turn: float = 0.01
    seed: int = 0

    @classmethod
    def scaling(cls, **others: Any) -> BenchKernelsSpec:
        """Layers of 1,000 to 1,000,000 outputs, 32 of 1,024 inputs each, at batch 1."""
        rows = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
        return cls(
            shapes=tuple((1024, out) for out in rows),
            sparsities=(1 - 32 / 1024,),
            batches=(1,),
            dispatched=True,
            **others,
        )

    def __post_init__(self) -> None:
        check_batches(self.batches)
        check_seed(self.seed)
        if not set(self.masks) <= set(MASKS) or not (self.masks or self.trained):
            raise ValueError(f"masks are {self.masks}; there are {', '.join(MASKS)}")
        check_choices("values", self.values, VALUE_TYPES)
        if not self.shapes or len(set(self.shapes)) < len(self.shapes):
            raise ValueError(f"shapes are {self.shapes}; give one or more, each once")
        for features, outputs in self.shapes:
            check_features("shapes: inputs", features)
            check_features("shapes: outputs", outputs)
        for sparsity, (features, _) in itertools.product(self.sparsities, self.shapes):
            if not 0 <= sparsity < 1 or not round((1 - sparsity) * features):
                raise ValueError(f"sparsity {sparsity} leaves no weights of {features} inputs")
        self.timing()

    def timing(self) -> Timing:
        """How the cases are timed."""
        return Timing(rounds=self.rounds, turn=self.turn, max_warmup=0.5)

    def layers(self) -> Iterator[tuple[str, CondensedWeight]]:
        """Make the layers, in every type, with the name of their mask, one at a time."""
        for mask, weight in self._float32_layers():
            for values in self.values:
                yield mask, weight.astype(values)

    def _float32_layers(self) -> Iterator[tuple[str, CondensedWeight]]:
        for (features, outputs), sparsity, mask in itertools.product(
            self.shapes, self.sparsities, self.masks
        ):
            rng = np.random.default_rng([self.seed, round(sparsity * 1e6), MASKS.index(mask)])
            fan_in = round((1 - sparsity) * features)
            yield mask, random_sparse_layer(mask, rng, features, outputs, outputs, fan_in)
        if self.trained:
            yield self.trained.title, self.trained.weight


@dataclass(frozen=True)
class KernelFigures:
    """What follows from a kernel's times; see KernelCase."""

    run: Spread
    read: Spread
    share: Spread
    limit: Literal["read", "multiply-add"]
    bytes_per_cycle: float
    macs_per_cycle: float
    read_bytes_per_cycle: float


@dataclass(frozen=True)
class KernelCase:
    """One kernel on one layer. Times are in seconds, less what a call costs from Python.

    ``footprint_bytes`` are the packed weights, the input and the output: what a run reads and
    writes at least once. ``read`` is the time to read as many bytes in the same rounds. The limit
    of a round is the longer of ``read`` and of the true multiply-adds at the core's peak;
    ``share`` is limit over time, and ``limit`` says which it is. ``padding`` is stored lanes over
    true weights, ``remainder`` the share of the weights outside the vector layout.
    """

    in_features: int
    out_features: int
    sparsity: float
    mask: str
    values: str
    fan_in: int
    batch: int
    kernel: str
    dispatched: bool
    macs: int
    packed_bytes: int
    footprint_bytes: int
    padding: float
    remainder: float
    pack_seconds: float
    hertz: float
    peak_macs_per_second: float
    error_before: float | None
    error_after: float | None
    excluded: str | None
    run: Spread | None = None
    read: Spread | None = None
    share: Spread | None = None
    limit: Literal["read", "multiply-add"] | None = None
    bytes_per_cycle: float | None = None
    macs_per_cycle: float | None = None
    read_bytes_per_cycle: float | None = None
    rounds_seconds: tuple[float, ...] = field(default=(), metadata=RAW)
    read_rounds_seconds: tuple[float, ...] = field(default=(), metadata=RAW)

    @property
    def figures(self) -> KernelFigures | None:
        """What follows from the times; None where the kernel or the reading does not count."""
        found = [getattr(self, one.name) for one in fields(KernelFigures)]
        return None if None in found else KernelFigures(*found)


KernelsResult = Result[KernelCase]
"""A finished kernel bench. Its ``facts``: ``call_seconds``, and ``roofs``, (bytes, bytes per cycle)
of plain reading."""


def bench_kernels(spec: BenchKernelsSpec, *, progress: Progress | None = None) -> KernelsResult:
    """Measure the kernels; ``progress`` is called with each layer's title and the share done."""
    recorder = Recorder()
    cases: list[KernelCase] = []
    calls = call_seconds()
    random_layers = len(spec.shapes) * len(spec.sparsities) * len(spec.masks)
    count = (random_layers + bool(spec.trained)) * len(spec.values)
    for number, (mask, weight) in enumerate(spec.layers()):
        if progress:
            sizes = f"{weight.in_features} → {weight.out_features}"
            sparse = f"{100 * (1 - weight.density):.4g} % sparse"
            progress(f"{sizes}, {sparse}, {mask}, {weight.values.dtype}", number / count)
        for batch in spec.batches:
            cases += _measure_layer(spec, mask, weight, batch, calls)
    return recorder.result(
        "kernels",
        "Kernels, 1 thread",
        spec_facts(spec),
        spec.timing(),
        tuple(cases),
        call_seconds=calls[0],
        roofs=tuple((size, read_bytes_per_cycle(size, calls[1])) for size in roof_sizes()),
    )


def roof_sizes() -> tuple[int, ...]:
    """Return a size that fills half of each level of the caches, and one that fits into none.

    Not of the first level: reading that much takes less time than the call does.
    """
    known = {level: size for level, size in cache_sizes().items() if level > 1}
    caches = list((known or _USUAL_CACHES).values())
    return (*(size // 2 for size in caches), 2 * max(caches))


def admitted_kernels(weight: CondensedWeight, batch: int) -> list[str]:
    """Kernels that this CPU runs and whose row of the dispatch table admits the case.

    Kernels of float32 weights take 16-bit ones too, widened when packed: nothing new to measure.
    """
    density = weight.fan_in / weight.in_features

    def within(value: float, low: float, high: float | None) -> bool:
        return low <= value and (high is None or value <= high)

    return [
        row.name
        for row in kernel_table()
        if row.supported
        and row.weights == weight.values.dtype.name
        and row.compute == "float32"
        and within(batch, row.min_batch, row.max_batch)
        and within(weight.fan_in, row.min_fan_in, row.max_fan_in)
        and within(density, row.min_density, row.max_density)
    ]


def _measure_layer(
    spec: BenchKernelsSpec,
    mask: str,
    weight: CondensedWeight,
    batch: int,
    calls: tuple[float, float],
) -> Iterator[KernelCase]:
    """Measure the kernel that is dispatched, and the others unless ``spec`` leaves them out."""
    problem = layer_problem(weight, batch, spec.seed)
    engine = KernelEngine(weight, batch, None)
    names = [] if spec.dispatched else admitted_kernels(weight, batch)
    others = [name for name in names if name != engine.name]
    for name in (None, *others):
        engine = KernelEngine(weight, batch, name) if name else engine
        footprint = engine.info.bytes + 4 * batch * (weight.in_features + weight.out_features)
        (kernel,), read = measure([engine], problem, spec.timing(), null=ReadEngine(footprint))
        macs = batch * int(weight.is_entry().sum())
        hertz, peak = _native.clock_hertz(), _native.peak_macs_per_second()
        yield KernelCase(
            in_features=weight.in_features,
            out_features=weight.out_features,
            sparsity=1 - weight.density,
            mask=mask,
            values=weight.values.dtype.name,
            fan_in=weight.fan_in,
            batch=batch,
            kernel=engine.name,
            dispatched=name is None,
            macs=macs,
            packed_bytes=engine.info.bytes,
            footprint_bytes=footprint,
            padding=engine.info.padding,
            remainder=engine.info.remainder,
            pack_seconds=engine.pack_seconds,
            hertz=hertz,
            peak_macs_per_second=peak,
            rounds_seconds=tuple(kernel.rounds_seconds),
            read_rounds_seconds=tuple(read.rounds_seconds),
            error_before=kernel.error_before,
            error_after=kernel.error_after,
            excluded=kernel.excluded or read.excluded,
            **_figures(kernel, read, calls, footprint, macs, hertz, peak),
        )


def _figures(
    kernel: Measurement,
    read: Measurement,
    calls: tuple[float, float],
    footprint: int,
    macs: int,
    hertz: float,
    peak: float,
) -> dict[str, Any]:
    """Return what follows from the times; nothing when one of the two does not count."""
    if kernel.excluded or read.excluded:
        return {}
    # A run as short as the call itself is not told from it: it counts as a nanosecond.
    runs = [max(seconds - calls[0], 1e-9) for seconds in kernel.rounds_seconds]
    reads = [max(seconds - calls[1], 1e-9) for seconds in read.rounds_seconds]
    shares = [max(low, macs / peak) / own for low, own in zip(reads, runs, strict=True)]
    run, reading = Spread.of(runs), Spread.of(reads)
    return {
        "run": run,
        "read": reading,
        "share": Spread.of(shares),
        "limit": "read" if reading.median >= macs / peak else "multiply-add",
        "bytes_per_cycle": footprint / (run.median * hertz),
        "macs_per_cycle": macs / (run.median * hertz),
        "read_bytes_per_cycle": footprint / (reading.median * hertz),
    }
