"""One layer, dense against condensed: sparsity x batch."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from .engine import Engine
from .machine import describe_machine, load_average
from .measure import Timing, measure
from .null_model import save_null_model
from .ort_engine import OrtEngine
from .problem import Problem, Sample
from .requirements import require
from .result import Case, Result, make_case, threads_text

ENGINES = ("dense", "condensed", "fallback")

# Of float32 sums against float64 ones, relative to the largest output.
_TOLERANCE = 1e-5

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class BenchLayerSpec:
    """A layer of random constant fan-in weights at several sparsities and batch sizes.

    ``sparsities`` are the shares of zeros in the whole weight, ablated neurons included;
    ``ablated`` is the share of output neurons without any weight. Each active neuron gets
    round((1 - sparsity) * in_features * out_features / active) weights at random columns.

    ``engines``: ``dense`` is ONNX Runtime's Gemm on the scattered weight and the baseline,
    ``condensed`` is fanin's op, ``fallback`` the same file without the op library. ``turn`` is in
    seconds (see Timing).
    """

    in_features: int = 3072
    out_features: int = 768
    sparsities: tuple[float, ...] = (0.8, 0.9, 0.95, 0.99)
    batches: tuple[int, ...] = (1,)
    threads: int = 1
    ablated: float = 0.0
    rounds: int = Timing.rounds
    turn: float = Timing.turn
    seed: int = 0
    engines: tuple[str, ...] = ("dense", "condensed")

    def __post_init__(self):
        for name in ("in_features", "out_features"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not self.batches or min(self.batches) < 1:
            raise ValueError(f"batches are {self.batches}; give one or more, each at least 1")
        if not 0 <= self.ablated < 1:
            raise ValueError(f"ablated is {self.ablated}; it must be in [0, 1)")
        unknown = set(self.engines) - set(ENGINES)
        if unknown:
            raise ValueError(f"unknown engines {sorted(unknown)}; there are {', '.join(ENGINES)}")
        if self.engines[:1] != ("dense",) or len(set(self.engines)) < len(self.engines):
            raise ValueError(f"engines are {self.engines}; dense comes first, and each one once")
        if not self.sparsities:
            raise ValueError("no sparsities given")
        for sparsity in self.sparsities:
            if not 0 <= sparsity < 1:
                raise ValueError(f"sparsity {sparsity} is not in [0, 1)")
            if not 1 <= self.fan_in(sparsity) <= self.in_features:
                raise ValueError(
                    f"sparsity {sparsity} with {self.ablated:.0%} of the neurons ablated would "
                    f"give each other one {self.fan_in(sparsity)} of {self.in_features} inputs"
                )
        self.timing()

    def timing(self) -> Timing:
        """How the cases are timed."""
        return Timing(threads=self.threads, rounds=self.rounds, turn=self.turn)

    @property
    def active(self) -> int:
        """Neurons that have weights, at least one."""
        return max(1, self.out_features - round(self.ablated * self.out_features))

    def fan_in(self, sparsity: float) -> int:
        """Weights of each active neuron."""
        return round((1 - sparsity) * self.in_features * self.out_features / self.active)


def bench_layer(spec: BenchLayerSpec, *, progress: Progress | None = None) -> Result:
    """Measure the layer of ``spec``; ``progress`` is told each case's title and the share done.

    Raises RequirementError when onnx is missing, SessionError when ONNX Runtime is.
    """
    require("onnx", "the benchmark makes its models with it")
    created, started = datetime.now(UTC), time.perf_counter()
    machine = describe_machine()
    cases: list[Case] = []
    settings = [(sparsity, batch) for sparsity in spec.sparsities for batch in spec.batches]
    with tempfile.TemporaryDirectory(prefix="fanin-bench-") as folder:
        for sparsity, batch in settings:
            title = f"{100 * sparsity:.4g} % sparse, batch {batch}"
            if progress:
                progress(title, len(cases) / len(settings))
            cases.append(_measure_case(spec, sparsity, batch, title, Path(folder)))
    return Result(
        kind="layer",
        title=f"Layer {spec.in_features} → {spec.out_features}, {threads_text(spec.threads)}",
        created=created.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - started,
        spec=asdict(spec),
        timing=spec.timing(),
        machine=machine,
        load_average_after=load_average(),
        cases=tuple(cases),
    )


def random_weight(spec: BenchLayerSpec, sparsity: float) -> tuple[np.ndarray, np.ndarray]:
    """Weight [out_features, in_features] and bias [out_features], float32, of the spec's seed."""
    rng = np.random.default_rng([spec.seed, round(sparsity * 1e6)])
    fan_in = spec.fan_in(sparsity)
    weight = np.zeros((spec.out_features, spec.in_features), np.float32)
    for row in rng.permutation(spec.out_features)[: spec.active]:
        columns = rng.choice(spec.in_features, fan_in, replace=False)
        weight[row, columns] = rng.standard_normal(fan_in, np.float32) / np.sqrt(fan_in)
    return weight, rng.standard_normal(spec.out_features, np.float32)


def _measure_case(
    spec: BenchLayerSpec, sparsity: float, batch: int, title: str, folder: Path
) -> Case:
    weight, bias = random_weight(spec, sparsity)
    engines, null, facts = _engines(spec, weight, bias, batch, folder)
    facts = {"fan_in": spec.fan_in(sparsity), "active": spec.active, **facts}
    problem = Problem(
        *(_sample(spec, weight, bias, batch, seed) for seed in (1, 2)), tolerance=_TOLERANCE
    )
    measured, measured_null = measure(engines, problem, spec.timing(), null=null)
    return make_case(title, batch, sparsity, facts, measured, measured_null)


def _engines(
    spec: BenchLayerSpec, weight: np.ndarray, bias: np.ndarray, batch: int, folder: Path
) -> tuple[list[Engine], Engine, dict[str, Any]]:
    import onnx

    from ...export.condensed import CondensedWeight
    from ...export.onnx_op import condensed_layer_model, dense_layer_model

    condensed = CondensedWeight.from_dense(weight, bias)
    paths = {name: folder / f"{name}.onnx" for name in ("dense", "condensed", "null")}
    onnx.save(dense_layer_model(condensed, batch), paths["dense"])
    onnx.save(condensed_layer_model(condensed, batch), paths["condensed"])
    null_form = save_null_model(paths["null"], batch, spec.in_features, spec.out_features)

    def engine(name: str, form: str, file: str, library: bool) -> Engine:
        return OrtEngine(name, form, paths[file], spec.threads, library=library)

    every = {
        "dense": engine("dense", "Gemm on the scattered weight", "dense", False),
        "condensed": engine("condensed", "ai.fanin::CondensedGemm", "condensed", True),
        "fallback": engine("fallback", "CondensedGemm's function, no library", "condensed", False),
    }
    facts = {
        "sparsity_achieved": 1 - condensed.density,
        "dense_bytes": weight.nbytes + bias.nbytes,
        "condensed_bytes": condensed.nbytes,
        "kernel": kernel_of(condensed, batch),
    }
    return [every[name] for name in spec.engines], engine("null", null_form, "null", False), facts


def kernel_of(weight: Any, batch: int) -> str:
    """Name of the kernel that a CondensedWeight gets for this batch size, by the dispatch table."""
    from ...ort_ops import _native

    packed = _native.PackedGemm(
        weight.values,
        weight.indices,
        weight.rows,
        weight.bias,
        weight.in_features,
        weight.out_features,
        min_batch=batch,
        max_batch=batch,
    )
    return ", ".join(info.kernel for info in packed.info())


def _sample(
    spec: BenchLayerSpec, weight: np.ndarray, bias: np.ndarray, batch: int, seed: int
) -> Sample:
    x = np.random.default_rng([spec.seed, seed]).standard_normal(
        (batch, spec.in_features), np.float32
    )
    y = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
    return Sample({"x": x}, [y])
