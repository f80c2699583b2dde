"""One layer, dense against condensed and other runtimes: mask x sparsity x batch."""

from __future__ import annotations

import itertools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from ....ort_ops.format.condensed import CondensedWeight
from ..engines.kernels import pack
from ..engines.peers import DEEPSPARSE_PYTHON
from ..measure.layer_problem import layer_problem
from ..measure.loop import measure
from ..measure.pinning import pinned
from ..measure.timing import Progress, Timing
from ..report.text import threads_text
from ..requirements import require
from ..results.case import Case, make_case
from ..results.result import Recorder, Result
from .layer_engines import ENGINES, FAMILIES, engine_option, layer_engines
from .random_layer import MASKS, random_sparse_layer
from .specs import (
    check_batches,
    check_choices,
    check_dense_size,
    check_features,
    check_seed,
    spec_facts,
    timing_of,
)
from .trained_layer import TrainedLayer

TRAINED = "trained"
"""The mask of a spec's trained layer."""


@dataclass(frozen=True)
class BenchLayerSpec:
    """A layer of random constant fan-in weights at several sparsities and batch sizes.

    ``sparsities`` are the shares of zeros in the whole weight, ablated neurons included;
    ``ablated`` is the share of output neurons without any weight. Each active neuron gets
    round((1 - sparsity) * in_features * out_features / active) weights at random columns.

    ``masks``: see MASKS. ``trained`` is a layer to measure beside random ones of its sizes, under
    the mask ``trained``; then the sizes, sparsity and ablation must be its own: make such a spec
    with ``of_trained``.

    ``engines``: ``dense`` is ONNX Runtime's Gemm on the scattered weight and the baseline,
    ``condensed`` is fanin's op, ``fallback`` the same file without the op library, ``structured``
    ONNX Runtime's MatMul of the active neurons with every output put in its place; ``deepsparse``
    (all graph forms, run by ``deepsparse_python``), ``openvino``, ``torch`` and the others with its
    name, and ``scipy-csr`` are other runtimes. ``dense-int8``, ``openvino-default``,
    ``condensed-float16`` and ``condensed-bfloat16`` compute with narrower types.

    ``turn``, ``budget`` (of a case) and ``warmup`` (at most) are in seconds; they and
    ``conditions`` are Timing's. ``pin``: see pinned.
    """

    in_features: int = 3072
    out_features: int = 768
    sparsities: tuple[float, ...] = (0.8, 0.9, 0.95, 0.99)
    batches: tuple[int, ...] = (1,)
    threads: int = 1
    ablated: float = 0.0
    rounds: int = Timing.rounds
    turn: float = Timing.turn
    budget: float | None = None
    warmup: float = Timing.max_warmup
    pin: bool = True
    conditions: tuple[str, ...] = ()
    seed: int = 0
    engines: tuple[str, ...] = ("dense", "condensed")
    masks: tuple[str, ...] = MASKS[:1]
    trained: TrainedLayer | None = None
    deepsparse_python: Path = DEEPSPARSE_PYTHON

    @classmethod
    def of_trained(cls, layer: TrainedLayer, masks: tuple[str, ...] = (), **others: Any) -> Self:
        """Make the spec of a trained layer, and of random ones of its sizes with ``masks``."""
        weight = layer.weight
        return cls(
            weight.in_features,
            weight.out_features,
            (1 - weight.density,),
            ablated=1 - weight.active / weight.out_features,
            masks=(*masks, TRAINED),
            trained=layer,
            **others,
        )

    def __post_init__(self) -> None:
        known = (*MASKS, TRAINED) if self.trained else MASKS
        check_choices("masks", self.masks, known)
        for name in ("in_features", "out_features"):
            check_features(name, getattr(self, name))
        check_dense_size(self.in_features, self.out_features)
        check_batches(self.batches)
        check_seed(self.seed)
        if not 0 <= self.ablated < 1:
            raise ValueError(f"ablated is {self.ablated}; it must be in [0, 1)")
        check_choices("engines", self.engines, ENGINES)
        if self.engines[0] != "dense":
            raise ValueError(f"engines are {self.engines}; dense comes first")
        if not self.sparsities or len(set(self.sparsities)) < len(self.sparsities):
            raise ValueError(f"sparsities are {self.sparsities}; give one or more, each once")
        for sparsity in self.sparsities:
            if not 0 <= sparsity < 1:
                raise ValueError(f"sparsity {sparsity} is not in [0, 1)")
            if not 1 <= self.fan_in(sparsity) <= self.in_features:
                raise ValueError(
                    f"sparsity {sparsity} with {self.ablated:.0%} of the neurons ablated would "
                    f"give each other one {self.fan_in(sparsity)} of {self.in_features} inputs"
                )
        if self.trained and (self.in_features, self.out_features) != (
            self.trained.weight.in_features,
            self.trained.weight.out_features,
        ):
            raise ValueError("the spec has other sizes than its trained layer; use of_trained")
        self.timing()

    def timing(self) -> Timing:
        """How the cases are timed."""
        return timing_of(self)

    @property
    def active(self) -> int:
        """Neurons that have weights, at least one."""
        return max(1, self.out_features - round(self.ablated * self.out_features))

    def fan_in(self, sparsity: float) -> int:
        """Weights of each active neuron."""
        return round((1 - sparsity) * self.in_features * self.out_features / self.active)

    def weight(self, mask: str, sparsity: float) -> CondensedWeight:
        """Make the layer; the seed decides it."""
        if mask == TRAINED and self.trained is not None:
            return self.trained.weight
        rng = np.random.default_rng([self.seed, round(sparsity * 1e6), MASKS.index(mask)])
        return random_sparse_layer(
            mask, rng, self.in_features, self.out_features, self.active, self.fan_in(sparsity)
        )


def bench_layer(spec: BenchLayerSpec, *, progress: Progress | None = None) -> Result[Case]:
    """Measure the layer of ``spec``; ``progress`` is told each case's title and the share done.

    Raises RequirementError when onnx is missing, SessionError when ONNX Runtime is.
    """
    require("onnx", "the benchmark makes its models with it")
    with pinned(spec.threads, pin=spec.pin):
        return _bench_layer(spec, progress)


def _bench_layer(spec: BenchLayerSpec, progress: Progress | None) -> Result[Case]:
    recorder = Recorder()
    cases: list[Case] = []
    settings = list(itertools.product(spec.sparsities, spec.masks, spec.batches))
    with tempfile.TemporaryDirectory(prefix="fanin-bench-") as folder:
        for sparsity, mask, batch in settings:
            label = "" if spec.masks == MASKS[:1] else f" {mask}"
            title = f"{100 * sparsity:.4g} % sparse{label}, batch {batch}"
            if progress:
                progress(title, len(cases) / len(settings))
            weight = spec.weight(mask, sparsity)
            facts = {"mask": mask}
            cases.append(measure_layer(spec, weight, facts, sparsity, batch, title, Path(folder)))
    title = f"Layer {spec.in_features} → {spec.out_features}, {threads_text(spec.threads)}"
    return recorder.result("layer", title, spec_facts(spec), spec.timing(), tuple(cases))


def measure_layer(
    spec: BenchLayerSpec,
    weight: CondensedWeight,
    facts: dict[str, Any],
    sparsity: float,
    batch: int,
    title: str,
    folder: Path,
) -> Case:
    """Measure one weight at one batch as ``spec`` says; models are written into ``folder``."""
    engines, null = layer_engines(
        spec.engines, weight, batch, spec.threads, folder, spec.deepsparse_python
    )
    facts = {
        **facts,
        "fan_in": weight.fan_in,
        "active": weight.active,
        "sparsity_achieved": 1 - weight.density,
        "dense_bytes": 4 * weight.out_features * (weight.in_features + 1),
        "condensed_bytes": weight.nbytes,
        **packing(weight, batch),
    }
    problem = layer_problem(weight, batch, spec.seed)
    started = time.perf_counter()
    measured, measured_null = measure(engines, problem, spec.timing(), null=null)
    loading = sum(one.load_seconds or 0 for one in measured)
    facts["preparation_seconds"] = round(loading, 1)
    facts["timing_seconds"] = round(time.perf_counter() - started - loading, 1)
    families = {
        family: [one.name for one in measured if engine_option(one.name) in options]
        for family, options in FAMILIES.items()
    }
    return make_case(title, batch, sparsity, facts, measured, measured_null, families)


def packing(weight: CondensedWeight, batch: int) -> dict[str, Any]:
    """Kernel that the dispatch table has for this layer and batch, and what packing does to it.

    ``padding`` is stored lanes over true weights, ``remainder`` the share of the weights outside
    the vector layout.
    """
    packed = pack(weight, batch)
    (info,) = packed.info()
    return {
        "kernel": info.kernel,
        "packed_bytes": info.bytes,
        "padding": info.padding,
        "remainder": info.remainder,
    }
