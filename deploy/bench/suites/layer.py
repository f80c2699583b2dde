"""One layer, dense against condensed and other runtimes: mask x sparsity x batch."""

from __future__ import annotations

import itertools
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from ....ort_ops.format.condensed import CondensedWeight
from ..engines.kernels import pack, pack_int8
from ..engines.peers import DEEPSPARSE_PYTHON
from ..engines.quantized_layer import QuantizedLayer
from ..measure.layer_problem import layer_problem, quantized_layer, quantized_layer_problem
from ..measure.loop import measure
from ..measure.pinning import pinned
from ..measure.timing import Progress
from ..report.text import threads_text
from ..requirements import require
from ..results.case import Case, make_case
from ..results.result import Recorder, Result
from .layer_engines import (
    DEFAULT_ENGINES,
    ENGINES_OF,
    FAMILIES_OF,
    OURS,
    PRECISIONS,
    engine_option,
    layer_engines,
)
from .random_layer import MASKS, random_sparse_layer
from .specs import (
    TimedSpec,
    check_batches,
    check_choices,
    check_dense_size,
    check_features,
    spec_facts,
)
from .trained_layer import TrainedLayer

TRAINED = "trained"
"""The mask of a spec's trained layer."""


@dataclass(frozen=True)
class BenchLayerSpec(TimedSpec):
    """A layer of random constant fan-in weights at several sparsities and batch sizes.

    Each active neuron gets round((1 - sparsity) * in_features * out_features / active) weights at
    random columns.

    Attributes:
        in_features, out_features: sizes of the layer.
        sparsities: shares of zeros in the whole weight, ablated neurons included.
        batches: batch sizes.
        ablated: share of output neurons without any weight.
        engines: ``dense`` is ONNX Runtime's Gemm on the scattered weight and the baseline,
            ``condensed`` is fanin's op, ``fallback`` the same file without the op library,
            ``structured`` ONNX Runtime's MatMul of the active neurons with every output put in its
            place; ``deepsparse`` (all graph forms, run by ``deepsparse_python``), ``openvino``,
            ``torch``, ``torch-…`` and ``scipy-csr`` are other runtimes. ``dense-int8``,
            ``openvino-default``, ``condensed-float16``, ``condensed-bfloat16`` and
            ``condensed-bfloat16-compute`` compute with narrower types. With the precision int8,
            see INT8_ENGINES.
        precision: one of PRECISIONS. With int8 the weights are rounded to 8 bits, one scale for
            each neuron, and compared with engines that compute in 8 bits.
        masks: see MASKS.
        trained: a layer to measure beside random ones of its sizes, under the mask ``trained``;
            sizes, sparsity and ablation must be its own, so make such a spec with ``of_trained``.
        deepsparse_python: interpreter that has DeepSparse.

    """

    in_features: int = 3072
    out_features: int = 768
    sparsities: tuple[float, ...] = (0.8, 0.9, 0.95, 0.99)
    batches: tuple[int, ...] = (1,)
    ablated: float = 0.0
    engines: tuple[str, ...] = DEFAULT_ENGINES["float32"]
    precision: str = "float32"
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
        super().__post_init__()
        known = (*MASKS, TRAINED) if self.trained else MASKS
        check_choices("masks", self.masks, known)
        for name in ("in_features", "out_features"):
            check_features(name, getattr(self, name))
        check_dense_size(self.in_features, self.out_features)
        check_batches(self.batches)
        if not 0 <= self.ablated < 1:
            raise ValueError(f"ablated is {self.ablated}; it must be in [0, 1)")
        check_choices("precision", (self.precision,), PRECISIONS)
        check_choices("engines", self.engines, ENGINES_OF[self.precision])
        if self.engines[0] != "dense":
            raise ValueError(f"engines are {self.engines}; dense comes first")
        if not self.sparsities or len(set(self.sparsities)) < len(self.sparsities):
            raise ValueError(f"sparsities are {self.sparsities}; give one or more, each once")
        for sparsity in self.sparsities:
            if not 0 <= sparsity < 1:
                raise ValueError(f"sparsity {sparsity} is not in [0, 1)")
            if not 1 <= self.fan_in(sparsity) <= self.in_features:
                raise ValueError(
                    f"sparsity {sparsity} with {self.ablated:.0%} of the neurons ablated leaves "
                    f"each other neuron {self.fan_in(sparsity)} of {self.in_features} inputs"
                )
        if self.trained and (self.in_features, self.out_features) != (
            self.trained.weight.in_features,
            self.trained.weight.out_features,
        ):
            raise ValueError("the sizes are not those of the trained layer; use of_trained")

    @property
    def active(self) -> int:
        """Number of neurons with weights, at least one."""
        return max(1, self.out_features - round(self.ablated * self.out_features))

    def fan_in(self, sparsity: float) -> int:
        """Return the number of weights of each active neuron."""
        return round((1 - sparsity) * self.in_features * self.out_features / self.active)

    def weight(self, mask: str, sparsity: float) -> CondensedWeight:
        """Make the layer, which the seed determines."""
        if mask == TRAINED and self.trained is not None:
            return self.trained.weight
        rng = np.random.default_rng([self.seed, round(sparsity * 1e6), MASKS.index(mask)])
        return random_sparse_layer(
            mask, rng, self.in_features, self.out_features, self.active, self.fan_in(sparsity)
        )


class LayerSetting(NamedTuple):
    """One case to be measured: a layer at a batch size and a number of threads."""

    title: str
    threads: int
    batch: int
    sparsity: float
    mask: str
    weight: CondensedWeight

    @classmethod
    def of(
        cls, threads: int, batch: int, sparsity: float, mask: str, weight: CondensedWeight
    ) -> LayerSetting:
        """Make a setting whose title names all of these."""
        label = "" if mask == "random" else f", {mask}"
        title = f"{sparsity_text(sparsity)}{label}, batch {batch}, {threads_text(threads)}"
        return cls(title, threads, batch, sparsity, mask, weight)


def sparsity_text(sparsity: float) -> str:
    """Write "90 % sparse"."""
    return f"{100 * sparsity:.4g} % sparse"


def bench_layer(spec: BenchLayerSpec, *, progress: Progress | None = None) -> Result[Case]:
    """Measure a layer in every engine, at each sparsity, mask and batch size.

    Args:
        spec: what to measure.
        progress: told each case's title and the share done.

    Raises:
        RequirementError: onnx is not installed.
        SessionError: ONNX Runtime is not.

    """
    require("onnx", "the benchmark makes its models with it")
    with pinned(spec.threads, pin=spec.pin):
        recorder = Recorder()
        settings = list(itertools.product(spec.sparsities, spec.masks, spec.batches))
        cases: list[Case] = []
        for sparsity, mask, batch in settings:
            label = "" if spec.masks == MASKS[:1] else f" {mask}"
            title = f"{sparsity_text(sparsity)}{label}, batch {batch}"
            if progress:
                progress(title, len(cases) / len(settings))
            weight = spec.weight(mask, sparsity)
            setting = LayerSetting(title, spec.threads, batch, sparsity, mask, weight)
            cases.append(measure_layer(spec, setting, {"mask": mask}))
        int8 = ", int8" if spec.precision == "int8" else ""
        sizes = f"{spec.in_features} → {spec.out_features}"
        title = f"Layer {sizes}{int8}, {threads_text(spec.threads)}"
        return recorder.result("layer", title, spec_facts(spec), spec.timing(), tuple(cases))


def measure_layer(
    spec: BenchLayerSpec, setting: LayerSetting, facts: dict[str, Any] | None = None
) -> Case:
    """Measure a layer as ``spec`` says, except for the threads, which are the setting's.

    ``facts`` are the first of the case's; by default the mask and the number of threads.
    """
    title, threads, batch, sparsity, mask, weight = setting
    timing = replace(spec.timing(), threads=threads)
    quantized = None
    if spec.precision == "int8":
        quantized = quantized_layer(weight, spec.seed)
        problem = quantized_layer_problem(weight, quantized, batch, spec.seed)
    else:
        problem = layer_problem(weight, batch, spec.seed)
    with tempfile.TemporaryDirectory(prefix="fanin-bench-") as folder:
        engines, null = layer_engines(
            spec.engines,
            weight,
            batch,
            threads,
            Path(folder),
            spec.deepsparse_python,
            quantized,
        )
        started = time.perf_counter()
        measured, measured_null = measure(engines, problem, timing, null=null)
        seconds = time.perf_counter() - started
    loading = sum(one.load_seconds or 0 for one in measured)
    facts = {
        **(facts or {"mask": mask, "threads": threads}),
        "fan_in": weight.fan_in,
        "active": weight.active,
        "sparsity_achieved": 1 - weight.density,
        "dense_bytes": 4 * weight.out_features * (weight.in_features + 1),
        "condensed_bytes": weight.nbytes,
        **packing(weight, batch),
        **(int8_packing(quantized, batch) if quantized else {}),
        "preparation_seconds": round(loading, 1),
        "timing_seconds": round(seconds - loading, 1),
    }
    families = {
        family: [one.name for one in measured if engine_option(one.name) in options]
        for family, options in FAMILIES_OF[spec.precision].items()
    }
    return make_case(title, batch, sparsity, facts, measured, measured_null, families, OURS)


def packing(weight: CondensedWeight, batch: int) -> dict[str, Any]:
    """Return the kernel of the dispatch table for this layer and batch, and its packed size.

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


def int8_packing(layer: QuantizedLayer, batch: int) -> dict[str, Any]:
    """Return the kernel of the dispatch table for a layer in 8 bits, and its packed size."""
    (info,) = pack_int8(layer, batch).info()
    return {
        "int8_kernel": info.kernel,
        "int8_packed_bytes": info.bytes,
        "int8_padding": info.padding,
    }
