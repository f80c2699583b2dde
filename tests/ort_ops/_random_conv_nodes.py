"""Random convolutions in ONNX Runtime: CondensedConv and the dense Conv of its scattered weight.

(seed, case number) determines everything, so a failure can be replayed from its message.

The bound: with ``e = (fan_in + 3) * (2^-24 * m + 2^-149)``, where m is the sum of the magnitudes of
the products, the bias and the residual, a float32 result of either lies between the float32 numbers
next to ``clip(want - e)`` and ``clip(want + e)``; want is the float64 sum over the dense weight
(im2col, which knows nothing of the condensed format). float16 results are the rounding of such a
number. The dense Conv has no residual and no clip, so it is held to the bound before them. A NaN or
Inf in x reaches the outputs with a weight on it and no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnxruntime

from fanin.ort_ops import _native
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ._conv_models import ConvLayer, conv_spec, dense_conv_model
from ._models import open_session, run
from ._random_convs import HARD_SWISH, OPEN_GATE, gated
from ._random_tally import RandomCaseError, Tally, forced_isa

_VALUE_TYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
_SPECIALS = (np.nan, np.inf, -np.inf)
_CLIPS = ((-np.inf, np.inf), (0.0, np.inf), (0.0, 6.0), (-0.5, 0.25))


@dataclass(frozen=True)
class ConvCase:
    """A convolution, its input, and how it is run."""

    layer: ConvLayer
    x: np.ndarray
    residual: np.ndarray | None
    clip: tuple[float, float]
    isa: str
    threads: int
    static: tuple[bool, ...]  # batch and each spatial axis of the model's input
    variable_weights: bool
    gate: tuple[float, float] = OPEN_GATE


def check_conv(seed: int, number: int) -> Tally:
    """Run one case; raises RandomCaseError with the numbers to replay it."""
    case = draw_conv(seed, number)
    try:
        worst = _check(case)
    except Exception as error:
        raise RandomCaseError(
            f"{error}\n  in {_describe(case)}\n"
            f"  replay: python tools/random_cases.py --op conv-node --seed {seed} --group {number}"
        ) from error
    special = int(not np.isfinite(case.x).all())
    return Tally(1, worst, Counter(_kinds(case)), special)


def draw_conv(seed: int, number: int) -> ConvCase:
    """Draw a case, determined by the two numbers on a given CPU."""
    rng = np.random.default_rng([seed, number])
    geometry = draw_geometry(rng)
    layer = _draw_layer(rng, geometry)
    kind = np.float16 if rng.random() < 0.15 else np.float32
    sizes = tuple(draw_length(rng, geometry, axis) for axis in range(geometry.axes))
    batch = int(rng.choice([1, 2, 3, 5], p=[0.6, 0.2, 0.1, 0.1]))
    x = rng.standard_normal((batch, geometry.in_channels, *sizes)).astype(kind)
    if rng.random() < 0.15 and x.size:
        count = int(rng.integers(1, 4))
        x.reshape(-1)[rng.integers(x.size, size=count)] = rng.choice(_SPECIALS, size=count)
    residual = None
    if rng.random() < 0.35:
        shape = (batch, geometry.out_channels, *geometry.output_sizes(sizes))
        residual = rng.standard_normal(shape).astype(kind)
    return ConvCase(
        layer,
        x,
        residual,
        _CLIPS[rng.choice(len(_CLIPS), p=[0.4, 0.25, 0.15, 0.2])],
        str(rng.choice(_native.supported_isas())),
        int(rng.choice([1, 2, 3], p=[0.6, 0.2, 0.2])),
        tuple(bool(flag) for flag in rng.random(1 + geometry.axes) < rng.choice([0.0, 0.5, 1.0])),
        bool(rng.random() < 0.05),
        HARD_SWISH if rng.random() < 0.25 else OPEN_GATE,
    )


def dense_sums(layer: ConvLayer, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The convolution of the scattered weight in float64, and the sum of its magnitudes.

    Places of x that are not finite count as 0.
    """
    geometry = layer.geometry
    weight = layer.dense().astype(np.float64)
    axes = geometry.axes
    margins = zip(geometry.pads[:axes], geometry.pads[axes:], strict=True)
    known = np.where(np.isfinite(x), x, 0).astype(np.float64)
    padded = np.pad(known, [(0, 0), (0, 0), *margins])
    reach = [
        d * (k - 1) + 1 for d, k in zip(geometry.dilations, geometry.kernel_shape, strict=True)
    ]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(range(2, 2 + axes)))
    steps = tuple(slice(None, None, s) for s in geometry.strides)
    taps = tuple(slice(None, None, d) for d in geometry.dilations)
    windows = windows[(slice(None), slice(None), *steps, *taps)]
    per_group = geometry.in_channels // geometry.group
    outputs = geometry.out_channels // geometry.group
    sums, magnitude = [], []
    for group in range(geometry.group):
        seen = windows[:, group * per_group : (group + 1) * per_group]
        filters = weight[group * outputs : (group + 1) * outputs]
        over = ([1, *range(2 + axes, 2 + 2 * axes)], [1, *range(2, 2 + axes)])
        sums.append(np.moveaxis(np.tensordot(seen, filters, over), -1, 1))
        magnitude.append(np.moveaxis(np.tensordot(np.abs(seen), np.abs(filters), over), -1, 1))
    bias = layer.bias.astype(np.float64).reshape(-1, *[1] * axes)
    return np.concatenate(sums, 1) + bias, np.concatenate(magnitude, 1) + np.abs(bias)


def log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))


def draw_geometry(rng: np.random.Generator) -> ConvGeometry:
    axes = 1 if rng.random() < 0.25 else 2
    kind = rng.choice(["plain", "group", "depthwise"], p=[0.6, 0.25, 0.15])
    group = 1 if kind == "plain" else log_uniform(rng, 2, 12)
    inputs = 1 if kind == "depthwise" else log_uniform(rng, 1, 40)
    outputs = log_uniform(rng, 1, 3 if kind == "depthwise" else 70)
    if rng.random() < 0.25:
        kernel = [1] * axes
    else:
        square = int(rng.integers(1, 6))
        kernel = [square if rng.random() < 0.7 else int(rng.integers(1, 8)) for _ in range(axes)]
    one = rng.random() < 0.5
    strides = [1 if one else int(rng.integers(1, 4)) for _ in range(axes)]
    close = rng.random() < 0.6
    dilations = [1 if close else int(rng.integers(1, 4)) for _ in range(axes)]
    reach = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    form = rng.choice(["none", "same", "any"], p=[0.3, 0.4, 0.3])
    if form == "any":
        # Pads may exceed the kernel: some outputs then read zeros only.
        pads = [int(rng.integers(0, r + 3)) for r in reach * 2]
    else:
        pads = [r // 2 if form == "same" else 0 for r in reach]
        pads += [r - r // 2 if form == "same" else 0 for r in reach]
    channels = (group * inputs, group * outputs)
    lists = map(tuple, (kernel, strides, pads, dilations))
    return ConvGeometry(*channels, *lists, group)


def draw_length(rng: np.random.Generator, geometry: ConvGeometry, axis: int) -> int:
    reach = geometry.dilations[axis] * (geometry.kernel_shape[axis] - 1) + 1
    pads = geometry.pads[axis] + geometry.pads[geometry.axes + axis]
    least = max(1, reach - pads)
    most = 60 if geometry.axes == 1 else 20
    if rng.random() < 0.05:
        most *= 3
    return int(rng.integers(least, least + most)) if rng.random() < 0.9 else least


def _draw_layer(rng: np.random.Generator, geometry: ConvGeometry) -> ConvLayer:
    columns = geometry.in_features
    fan_in = int(
        rng.choice([1, columns, log_uniform(rng, 1, columns), max(1, round(columns * 0.1))])
    )
    ablated = rng.choice([0.0, rng.random(), 1.0], p=[0.6, 0.35, 0.05])
    layer = ConvLayer.random(
        geometry,
        min(fan_in, 400),
        active=round((1 - ablated) * geometry.out_channels),
        padded=bool(rng.random() < 0.3),
        index_type=np.uint16 if rng.random() < 0.5 else np.int32,
        value_type=_VALUE_TYPES[rng.choice(3, p=[0.7, 0.15, 0.15])],
        seed=rng.integers(1 << 62),
    )
    true = np.ones(layer.values.shape, bool)
    true[:, 1:] = layer.indices[:, 1:] != layer.indices[:, :-1]
    layer.values[true & (rng.random(true.shape) < 0.02)] = 0  # a stored zero is a weight
    return layer


def _check(case: ConvCase) -> float:
    """Return the largest error as a share of its bound; raises if it exceeds the bound."""
    layer, x = case.layer, case.x
    sums, magnitude = dense_sums(layer, x)
    terms = layer.values.shape[1] + 3
    finite = bool(np.isfinite(x).all())
    if finite:
        error = terms * (2.0**-24 * magnitude + 2.0**-149)
        dense = onnxruntime.InferenceSession(
            dense_conv_model(layer).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        y = run(dense, X=x.astype(np.float32))
        _compare("the dense Conv", y, sums, error, (-np.inf, np.inf))

    y = _run_condensed(case)
    with np.errstate(invalid="ignore"):
        exact = sums if finite else layer.expected(x)
        if case.residual is not None:
            residual = case.residual.astype(np.float64)
            exact, sums = exact + residual, sums + residual
            magnitude = magnitude + np.abs(residual)
        error = terms * (2.0**-24 * magnitude + 2.0**-149)
        special = ~np.isfinite(exact)
        ended, _ = gated(np.clip(exact[special], *case.clip), 0, case.gate)
        if not np.array_equal(y[special], ended.astype(y.dtype), equal_nan=True):
            raise RandomCaseError("an output that sees a NaN or Inf is wrong")
    ordinary = ~special
    where = np.nonzero(ordinary)
    return _compare(
        "CondensedConv",
        y[where],
        sums[where],
        error[where],
        case.clip,
        np.argwhere(ordinary),
        case.gate,
    )


def _run_condensed(case: ConvCase) -> np.ndarray:
    layer, x = case.layer, case.x
    names = ("batch", "height", "width") if layer.geometry.axes == 2 else ("batch", "length")
    given = (len(x), *x.shape[2:])
    size = [
        number if static else name
        for number, name, static in zip(given, names, case.static, strict=True)
    ]
    fed, feeds = {}, {"X": x}
    if case.residual is not None:
        fed["residual"], feeds["residual"] = None, case.residual
    if case.variable_weights:
        fed["rows"], feeds["rows"] = layer.rows.shape, layer.rows
    low, high = case.clip
    end = {"clip_min": low, "clip_max": high}
    if case.gate != OPEN_GATE:
        end |= dict(zip(("gate_scale", "gate_shift"), case.gate, strict=True))
    spec = conv_spec(layer, size, dtype=x.dtype.type, fed=fed, **end)
    with forced_isa(case.isa):
        session = open_session(spec.build(), threads=case.threads)
    y = run(session, **feeds)
    if y.shape != layer.y_shape(x):
        raise RandomCaseError(f"shape {y.shape}, it should be {layer.y_shape(x)}")
    return y


def _compare(
    name: str,
    y: np.ndarray,
    want: np.ndarray,
    error: np.ndarray,
    clip: tuple[float, float],
    places: np.ndarray | None = None,
    gate: tuple[float, float] = OPEN_GATE,
) -> float:
    if y.shape != want.shape:
        raise RandomCaseError(f"{name}: shape {y.shape}, it should be {want.shape}")
    with np.errstate(over="ignore"):
        low, high = np.clip(want - error, *clip), np.clip(want + error, *clip)
        want = np.clip(want, *clip)
        if gate != OPEN_GATE:
            want, error = gated(want, error, gate)
            low, high = want - error, want + error
        low, high = low.astype(y.dtype), high.astype(y.dtype)
    right = (low <= y) & (y <= high)
    if not right.all():
        wrong = tuple(np.argwhere(~right)[0])
        place = wrong if places is None else places[wrong[0]]
        raise RandomCaseError(
            f"{name}: {np.count_nonzero(~right)} of {right.size} outputs are wrong, first "
            f"y{[int(i) for i in place]} = {y[wrong]!r}, which should be in "
            f"[{low[wrong]!r}, {high[wrong]!r}]"
        )
    if y.dtype != np.float32:
        return 0.0
    return float((np.abs(y - want) / error).max(initial=0.0))


def _kinds(case: ConvCase) -> Iterator[str]:
    geometry = case.layer.geometry
    yield f"isa {case.isa}"
    yield f"x {case.x.dtype}"
    yield f"values {case.layer.values.dtype}"
    yield f"{geometry.axes} axes"
    if geometry.group > 1:
        yield "depthwise" if geometry.in_channels == geometry.group else "groups"
    if max(geometry.kernel_shape) == 1:
        yield "pointwise"
    if max(geometry.strides) > 1:
        yield "strided"
    if max(geometry.dilations) > 1:
        yield "dilated"
    if geometry.pads[: geometry.axes] != geometry.pads[geometry.axes :]:
        yield "asymmetric"
    if not np.isfinite(case.x).all():
        yield "with NaN or Inf"
    if case.gate != OPEN_GATE:
        yield "gate"
    if case.variable_weights:
        yield "variable weights"
    if all(case.static):
        yield "static size"


def _describe(case: ConvCase) -> str:
    layer = case.layer
    return (
        f"{layer.geometry}, active {len(layer.rows)}, fan-in {layer.values.shape[1]}, values "
        f"{layer.values.dtype}, indices {layer.indices.dtype}, x {case.x.dtype} "
        f"{list(case.x.shape)}, residual {case.residual is not None}, clip {case.clip}, "
        f"gate {case.gate}, ISA {case.isa}, {case.threads} threads, static {case.static}, "
        f"variable weights {case.variable_weights}"
    )
