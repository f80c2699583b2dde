"""Random cases of CondensedGemm, each compared with the float64 reference within a stated bound.

A *group* is one layer and one input, for which the reference is computed once; its *cases* run
different kernels on different slices of the input, each with its own threads, alignment, residual
and clip. (seed, group number) determines everything, so a failure can be replayed from its message.

The bound: each float32 result lies between the float32 numbers next to ``clip(want - e)`` and
``clip(want + e)`` with ``e = (fan_in + 3) * (2^-24 * m + 2^-149)``, where m is the sum of the
magnitudes of the products, the bias and the residual: what n roundings in any order can lose,
denormals included. float16 results are the rounding of such a number. NaN and infinities are those
of the oracle, exactly. Outputs are poisoned with NaN before a run and lie between guards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from onnx import helper

from fanin.ort_ops import _native
from fanin.ort_ops.reference import condensed_gemm

from ._models import Layer, open_session, spec_of
from ._random_tally import RandomCaseError, Tally, forced_isa

CASES_PER_GROUP = 20
_MAX_BATCH = 300
_VALUE_TYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
_SPECIALS = (np.nan, np.inf, -np.inf)
# One in this many cases runs in an ONNX Runtime session.
_SESSION_SHARE = 100


@dataclass(frozen=True)
class Case:
    """How one slice of the group's input is run."""

    route: str  # "kernel NAME", "isa NAME", "plain" or "session ISA"
    start: int
    batch: int
    threads: int
    offset: int  # of x, the residual and the output: elements past a cache line
    with_residual: bool
    clip: tuple[float, float]


@dataclass(frozen=True)
class Group:
    """A layer, an input and a residual, with the reference results before the clip."""

    layer: Layer
    x: np.ndarray
    residual: np.ndarray
    sums: np.ndarray
    magnitude: np.ndarray
    cases: tuple[Case, ...]


def check_group(seed: int, number: int) -> Tally:
    """Run the cases of one group; raises RandomCaseError with the numbers to replay it."""
    group = draw_group(seed, number)
    tally = Tally()
    for case in group.cases:
        slice_ = slice(case.start, case.start + case.batch)
        try:
            y = _run(group, case)
            error = _compare(group, case, y)
        except Exception as error:
            raise RandomCaseError(
                f"{error}\n  in {_describe(group, case)}\n"
                f"  replay: python tools/random_cases.py --seed {seed} --group {number}"
            ) from error
        tally.cases += 1
        tally.worst = max(tally.worst, error)
        tally.routes[case.route] += 1
        tally.with_special += not np.isfinite(group.x[slice_]).all()
    return tally


def draw_group(seed: int, number: int) -> Group:
    """Draw a group, determined by the two numbers on a given CPU."""
    rng = np.random.default_rng([seed, number])
    # Most groups are small, so that many run; one in sixteen is large enough to use threads.
    budget = 10 ** rng.uniform(2.0, 5.3) if rng.random() < 15 / 16 else 3e6
    layer = _draw_layer(rng, budget)
    x, residual = _draw_inputs(rng, layer, budget)
    names = {**layer.weights, "values": np.abs(layer.values.astype(np.float64))}
    names["bias"] = np.abs(layer.bias)
    sizes = {"in_features": layer.in_features, "out_features": layer.out_features}
    with np.errstate(invalid="ignore"):
        magnitude = condensed_gemm(np.abs(x), **names, **sizes)
    cases = tuple(_draw_case(rng, layer, len(x)) for _ in range(CASES_PER_GROUP))
    return Group(layer, x, residual, layer.expected(x), magnitude, cases)


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))


def _draw_layer(rng: np.random.Generator, budget: float) -> Layer:
    wide = rng.random() < 0.05
    if wide:
        # Around and beyond the range of 16 bits.
        in_features = int(rng.choice([65_535, 65_536, 65_537, _log_uniform(rng, 65_538, 300_000)]))
    else:
        in_features = _log_uniform(rng, 1, min(4000, int(budget)))
    index_type = np.uint16 if rng.random() < 0.5 else np.int32
    columns = min(in_features, 65_536) if index_type == np.uint16 else in_features
    fan_in = int(
        rng.choice(
            [
                1,
                min(columns, 4000),
                _log_uniform(rng, 1, min(columns, 4000)),
                max(1, round(columns * rng.uniform(0.005, 0.3))),
            ],
            p=[0.1, 0.1, 0.4, 0.4],
        )
    )
    fan_in = min(fan_in, 4000, max(1, int(budget)))
    # Forced on a wide layer, layouts that go over all columns cost columns x outputs.
    most = max(1, min(4000, int(budget / fan_in), 2_000_000 // in_features * 4))
    out_features = _log_uniform(rng, 1, most)
    ablated = rng.choice([0.0, rng.random(), 1.0], p=[0.5, 0.45, 0.05])
    active = round((1 - ablated) * out_features)
    indices = _draw_columns(rng, active, fan_in, columns)
    values = rng.standard_normal((active, fan_in))
    values[rng.random(values.shape) < 0.02] = 0.0
    values[rng.random(values.shape) < 0.01] *= 1e-30
    # With large sums, float16 results overflow.
    values *= 10.0 ** rng.choice([0, -3, 3], p=[0.8, 0.1, 0.1])
    values = np.clip(values, -60_000, 60_000)
    bias = rng.standard_normal(out_features).astype(np.float32)
    if rng.random() < 0.3:
        # Rows of different lengths: the last column again, holding +0.
        true = rng.integers(1, fan_in + 1, size=active)
        padding = np.arange(fan_in) >= true[:, None]
        last = np.take_along_axis(indices, true[:, None] - 1, axis=1)
        indices = np.where(padding, last, indices)
        values[padding] = 0.0
    kind = _VALUE_TYPES[rng.choice(3, p=[0.6, 0.2, 0.2])]
    rows = np.sort(rng.permutation(out_features)[:active]).astype(np.int32)
    return Layer(
        in_features, out_features, values.astype(kind), indices.astype(index_type), bias, rows
    )


def _draw_columns(rng: np.random.Generator, rows: int, count: int, below: int) -> np.ndarray:
    """Ascending distinct columns [rows, count]: uniform, in strata, or in receptive fields."""
    form = rng.choice(["uniform", "strata", "fields"])
    width = min(below, 2 * count) if form == "fields" else below
    if form == "strata" or rows * width > 2_000_000:
        edges = np.arange(count + 1, dtype=np.int64) * width // count
        columns = edges[:-1] + (rng.random((rows, count)) * np.diff(edges)).astype(np.int64)
    else:
        columns = np.sort(np.argsort(rng.random((rows, width)), axis=1)[:, :count], axis=1)
    return columns + rng.integers(below - width + 1, size=(rows, 1))


def _draw_inputs(
    rng: np.random.Generator, layer: Layer, budget: float
) -> tuple[np.ndarray, np.ndarray]:
    products = max(1, layer.values.size, layer.out_features)
    most = max(1, min(_MAX_BATCH, int(budget / products), 4_000_000 // layer.in_features))
    batch = most if rng.random() < 0.3 else int(rng.integers(1, most + 1))
    kind = np.float16 if rng.random() < 0.2 else np.float32
    x = rng.standard_normal((batch, layer.in_features), np.float32)
    if rng.random() < 0.1:
        x *= np.float32(1e-4 if kind == np.float16 else 1e-37)
    x = x.astype(kind)
    if rng.random() < 0.4:
        count = int(rng.integers(1, 5))
        columns = rng.integers(layer.in_features, size=count)
        if layer.indices.size and rng.random() < 0.5:
            columns = rng.choice(layer.indices.reshape(-1), size=count)
        x[rng.integers(batch, size=count), columns] = rng.choice(_SPECIALS, size=count)
    residual = rng.standard_normal((batch, layer.out_features)).astype(kind)
    if rng.random() < 0.1:
        residual.reshape(-1)[rng.integers(residual.size)] = rng.choice(_SPECIALS)
    return x, residual


def _draw_case(rng: np.random.Generator, layer: Layer, samples: int) -> Case:
    most = int(rng.choice([samples, min(samples, 8)]))
    batch = int(rng.integers(1, most + 1))
    return Case(
        route=_draw_route(rng, layer),
        start=int(rng.integers(samples - batch + 1)),
        batch=batch,
        threads=int(rng.choice([1, 2, 3, 7], p=[0.7, 0.1, 0.1, 0.1])),
        offset=int(rng.integers(0, 33)),
        with_residual=bool(rng.random() < 0.4),
        clip=(
            (-np.inf, np.inf),
            (0.0, np.inf),
            (0.0, 6.0),
            (-0.5, 0.25),
            (-np.inf, -1.0),
        )[rng.choice(5, p=[0.4, 0.2, 0.1, 0.2, 0.1])],
    )


def _draw_route(rng: np.random.Generator, layer: Layer) -> str:
    draw = rng.random()
    if draw < 1 / _SESSION_SHARE:
        return f"session {rng.choice(_native.supported_isas())}"
    if draw < 0.04:
        return "plain"
    if draw < 0.2:
        return f"isa {rng.choice(_native.supported_isas())}"
    takes = ("float32", layer.values.dtype.name)
    return "kernel " + rng.choice(
        [
            row.name
            for row in _native.kernel_table()
            if row.supported and row.weights in takes and row.compute == "float32"
        ]
    )


def _arrays(layer: Layer) -> dict[str, object]:
    sizes = {"in_features": layer.in_features, "out_features": layer.out_features}
    return {**layer.weights, **sizes}


@dataclass
class _Guarded:
    """An array ``offset`` elements past a cache line, between guards of NaN."""

    array: np.ndarray
    before: np.ndarray
    behind: np.ndarray

    @classmethod
    def like(cls, shape: tuple[int, ...], dtype: np.dtype, offset: int) -> _Guarded:
        count, guard = int(np.prod(shape)), 128
        whole = np.full(count + 2 * guard, np.nan, dtype)
        first = (-whole.ctypes.data % 64) // whole.itemsize + offset
        end = first + count
        return cls(whole[first:end].reshape(shape), whole[:first], whole[end:])

    def intact(self) -> bool:
        return bool(np.isnan(self.before).all() and np.isnan(self.behind).all())


def _run(group: Group, case: Case) -> np.ndarray:
    layer, part = group.layer, slice(case.start, case.start + case.batch)
    x = _Guarded.like(group.x[part].shape, group.x.dtype, case.offset).array
    x[...] = group.x[part]
    residual = None
    if case.with_residual:
        residual = _Guarded.like(group.residual[part].shape, x.dtype, case.offset // 2).array
        residual[...] = group.residual[part]
    out = _Guarded.like((case.batch, layer.out_features), x.dtype, case.offset // 3)
    runs = _runner(layer, case)
    runs(x, residual, out.array)
    if not out.intact():
        raise RandomCaseError("wrote outside the output")
    if not np.array_equal(x, group.x[part], equal_nan=True):
        raise RandomCaseError("wrote into the input")
    return out.array


Runs = Callable[[np.ndarray, "np.ndarray | None", np.ndarray], None]


def _runner(layer: Layer, case: Case) -> Runs:
    route, _, name = case.route.partition(" ")
    clip = {"clip_min": case.clip[0], "clip_max": case.clip[1]}
    if route == "session":
        return lambda x, residual, out: _run_session(layer, case, name, x, residual, out)
    if route == "plain":

        def plain(x: np.ndarray, residual: np.ndarray | None, out: np.ndarray) -> None:
            out[...] = _native.run_plain(**_arrays(layer), x=x, residual=residual, **clip)

        return plain
    # Half of the layers are packed for this batch only, the others for all batches.
    limits = {"min_batch": case.batch, "max_batch": case.batch} if case.offset % 2 else {}
    gemm = _native.PackedGemm(**_arrays(layer), **{route: name}, **limits, threads=case.threads)

    def packed(x: np.ndarray, residual: np.ndarray | None, out: np.ndarray) -> None:
        gemm.run(x, residual=residual, **clip, threads=case.threads, out=out)
        if case.threads > 1:
            alone = gemm.run(x, residual=residual, **clip)
            bits = np.uint32 if out.dtype == np.float32 else np.uint16
            same = (alone.view(bits) == out.view(bits)) | (np.isnan(alone) & np.isnan(out))
            if not same.all():
                raise RandomCaseError(f"differs between 1 and {case.threads} threads")

    return packed


def _run_session(
    layer: Layer,
    case: Case,
    isa: str,
    x: np.ndarray,
    residual: np.ndarray | None,
    out: np.ndarray,
) -> None:
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    low, high = case.clip
    spec = replace(
        spec_of(layer, residual=np.zeros(1, x.dtype), clip_min=low, clip_max=high),
        x_type=element,
        y_type=element,
        x_shape=("batch" if case.offset % 2 else case.batch, layer.in_features),
        fed={"residual": None} if case.with_residual else {},
    )
    with forced_isa(isa):
        session = open_session(spec.build(), threads=case.threads)
    binding = session.io_binding()
    feeds = {"X": x} if residual is None else {"X": x, "residual": residual}
    for name, array in feeds.items():
        binding.bind_input(name, "cpu", 0, element, array.shape, array.ctypes.data)
    binding.bind_output("Y", "cpu", 0, element, out.shape, out.ctypes.data)
    session.run_with_iobinding(binding)


def _compare(group: Group, case: Case, y: np.ndarray) -> float:
    """Return the largest error as a share of its bound; raises if it exceeds the bound."""
    part = slice(case.start, case.start + case.batch)
    want, magnitude = group.sums[part], group.magnitude[part]
    if case.with_residual:
        residual = group.residual[part].astype(np.float64)
        with np.errstate(invalid="ignore"):
            want, magnitude = want + residual, magnitude + np.abs(residual)
    finite = np.isfinite(want)
    terms = group.layer.values.shape[1] + 3
    bound = np.where(finite, terms * (2.0**-24 * magnitude + 2.0**-149), 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        low = np.clip(want - bound, *case.clip).astype(y.dtype)
        high = np.clip(want + bound, *case.clip).astype(y.dtype)
        # NaN, which only special values of x or the residual cause, must be at the same places.
        right = np.where(np.isnan(want), np.isnan(y), (low <= y) & (y <= high))
        if not right.all():
            b, o = np.argwhere(~right)[0]
            raise RandomCaseError(
                f"{np.count_nonzero(~right)} of {right.size} outputs are wrong, first y[{b}, {o}] "
                f"= {y[b, o]!r}, which should be in [{low[b, o]!r}, {high[b, o]!r}]"
            )
        if y.dtype != np.float32:
            return 0.0
        clipped = np.clip(want, *case.clip)
        error = np.abs(y - clipped)[finite] / bound[finite]
    return float(error.max(initial=0.0))


def _describe(group: Group, case: Case) -> str:
    layer = group.layer
    return (
        f"{layer.in_features} -> {layer.out_features}, active {len(layer.rows)}, fan-in "
        f"{layer.values.shape[1]}, values {layer.values.dtype}, indices {layer.indices.dtype}, "
        f"x {group.x.dtype}, {case}"
    )
