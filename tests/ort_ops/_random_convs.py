"""Random convolutions through the kernels of CondensedConv, each compared with float64.

(seed, number) determines a case, so a failure can be replayed from its message. The bound is that
of ``_random_cases.py``: each result lies between the float32 numbers next to ``clip(want - e)`` and
``clip(want + e)`` with ``e = (fan_in + 3) * (2^-24 * m + 2^-149)``, where m is the sum of the
magnitudes of the products, the bias and the residual. NaN and infinities are those of the
reference, exactly.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from fanin.ort_ops import _native

from ._random_tally import RandomCaseError, Tally

_SPECIALS = (np.nan, np.inf, -np.inf)
_VALUE_TYPES = (np.float32, np.float16, ml_dtypes.bfloat16)


@dataclass(frozen=True)
class ConvLayer:
    """A condensed convolution: arrays as in the format, attributes as in ONNX."""

    values: np.ndarray
    indices: np.ndarray
    rows: np.ndarray
    bias: np.ndarray
    in_channels: int
    kernel_shape: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    group: int = 1

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "values": self.values,
            "indices": self.indices,
            "rows": self.rows,
            "bias": self.bias,
        }

    @property
    def attributes(self) -> dict[str, object]:
        return {
            "in_channels": self.in_channels,
            "out_channels": len(self.bias),
            "kernel_shape": self.kernel_shape,
            "strides": self.strides,
            "pads": self.pads,
            "dilations": self.dilations,
            "group": self.group,
        }

    def pack(self, **options: object) -> _native.PackedConv:
        return _native.PackedConv(**self.arrays, **self.attributes, **options)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the output; below 1 if the window does not fit."""
        padded = (height + self.pads[0] + self.pads[2], width + self.pads[1] + self.pads[3])
        windows = [d * (k - 1) + 1 for d, k in zip(self.dilations, self.kernel_shape, strict=True)]
        return tuple(
            (p - w) // s + 1 for p, w, s in zip(padded, windows, self.strides, strict=True)
        )

    def sums(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums and sums of magnitudes in float64, both of the output's shape."""
        top, left, bottom, right = self.pads
        padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
        height, width = self.output_size(*x.shape[2:])
        total = np.empty((len(x), len(self.bias), height, width))
        total[...] = self.bias[:, None, None]
        magnitude = np.abs(total)
        kh, kw = self.kernel_shape
        for i, o in enumerate(self.rows):
            first = int(o) // (len(self.bias) // self.group) * (self.in_channels // self.group)
            for j, at in enumerate(self.indices[i].astype(np.int64)):
                if j and at == self.indices[i, j - 1]:
                    break  # padding of the format
                channel, row, column = np.unravel_index(at, (self.in_channels, kh, kw))
                row, column = row * self.dilations[0], column * self.dilations[1]
                pixels = padded[
                    :,
                    first + channel,
                    row : row + (height - 1) * self.strides[0] + 1 : self.strides[0],
                    column : column + (width - 1) * self.strides[1] + 1 : self.strides[1],
                ]
                with np.errstate(invalid="ignore"):
                    product = np.float64(self.values[i, j]) * pixels
                    total[:, o] += product
                    magnitude[:, o] += np.abs(product)
        return total, magnitude


def random_layer(
    rng: np.random.Generator,
    in_channels: int,
    out_channels: int,
    kernel_shape: tuple[int, int],
    fan_in: int,
    *,
    group: int = 1,
    active: int | None = None,
    **attributes: object,
) -> ConvLayer:
    """A layer of standard normal weights at uniformly random positions."""
    active = out_channels if active is None else active
    window = in_channels // group * kernel_shape[0] * kernel_shape[1]
    order = np.argsort(rng.random((active, window)), axis=1)[:, :fan_in]
    return ConvLayer(
        rng.standard_normal((active, fan_in)).astype(np.float32),
        np.sort(order, axis=1).astype(np.int32),
        np.sort(rng.permutation(out_channels)[:active]).astype(np.int32),
        rng.standard_normal(out_channels).astype(np.float32),
        in_channels,
        kernel_shape,
        group=group,
        **attributes,
    )


def kernels(*, whole_depthwise: bool = False) -> list[str]:
    """Convolution kernels of this CPU: those for any layer, or those for depthwise layers only."""
    names = (
        row.name
        for row in _native.conv_kernel_table()
        if row.supported and row.whole_depthwise == whole_depthwise
    )
    return list(dict.fromkeys(names))


OPEN_GATE, HARD_SWISH = (0.0, 1.0), (1 / 6, 0.5)


def ends(
    clip: tuple[float, float] = (-np.inf, np.inf), gate: tuple[float, float] = OPEN_GATE
) -> dict[str, float]:
    """The arguments of a run that define its epilogue."""
    names = ("clip_min", "clip_max", "gate_scale", "gate_shift")
    return dict(zip(names, (*clip, *gate), strict=True))


def gated(
    value: np.ndarray, bound: np.ndarray, gate: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Apply a gate to values and to their error bounds; both float64."""
    if gate == OPEN_GATE:
        return value, bound
    scale, shift = map(float, np.float32(gate))
    with np.errstate(invalid="ignore"):
        result = value * np.clip(scale * value + shift, 0, 1)
        # The slope is at most this, and three roundings follow.
        slope = 1 + max(abs(shift), abs(1 - shift))
        return result, slope * bound + 4 * (2.0**-24 * np.abs(result) + 2.0**-149)


def check_case(seed: int, number: int) -> Tally:
    """Run one case; raises RandomCaseError with the numbers to replay it."""
    rng = np.random.default_rng([seed, number])
    route = str(rng.choice(["kernel", "kernel", "kernel", "isa", "plain", "depthwise"]))
    depthwise = kernels(whole_depthwise=True)
    if route == "depthwise" and not depthwise:
        route = "kernel"
    layer, x = _draw_depthwise(rng) if route == "depthwise" else _draw(rng)
    names = {"kernel": kernels(), "isa": _native.supported_isas(), "plain": [""]}
    name = str(rng.choice(names.get(route, depthwise)))
    route = "kernel" if route == "depthwise" else route
    threads = int(rng.choice([1, 2, 3], p=[0.7, 0.15, 0.15]))
    clip = ((-np.inf, np.inf), (0.0, np.inf), (0.0, 6.0), (-0.5, 0.25))[rng.integers(4)]
    total, magnitude = layer.sums(x)
    gate = HARD_SWISH if rng.random() < 0.3 else OPEN_GATE
    residual = None
    if rng.random() < 0.4:
        residual = rng.standard_normal(total.shape).astype(np.float32)
    try:
        y = _run(rng, layer, x, residual, ends(clip, gate), f"{route} {name}".strip(), threads)
        worst = compare(layer, total, magnitude, y, residual, clip, gate)
    except Exception as error:
        raise RandomCaseError(
            f"{error}\n  in {layer.attributes}, active {len(layer.rows)}, fan-in "
            f"{layer.values.shape[1]} of {layer.values.dtype}, x {x.shape}, {route} {name}, "
            f"{threads} threads, residual {residual is not None}, clip {clip}, gate {gate}\n"
            f"  replay: python tools/random_cases.py --op conv --seed {seed} --group {number}"
        ) from error
    special = int(not np.isfinite(x).all())
    return Tally(1, worst, Counter([f"{route} {name}".strip()]), special)


def compare(
    layer: ConvLayer,
    total: np.ndarray,
    magnitude: np.ndarray,
    y: np.ndarray,
    residual: np.ndarray | None = None,
    clip: tuple[float, float] = (-np.inf, np.inf),
    gate: tuple[float, float] = OPEN_GATE,
) -> float:
    """Return the largest error as a share of its bound; raises if it exceeds the bound."""
    if y.dtype != np.float32 or y.shape != total.shape:
        raise RandomCaseError(f"the result is {y.dtype} of {y.shape}, not of {total.shape}")
    if residual is not None:
        total, magnitude = total + residual, magnitude + np.abs(residual)
    finite = np.isfinite(total)
    terms = layer.values.shape[1] + 3
    with np.errstate(over="ignore", invalid="ignore"):
        bound = np.where(finite, terms * (2.0**-24 * magnitude + 2.0**-149), 0.0)
        low, high = np.clip(total - bound, *clip), np.clip(total + bound, *clip)
        total, wide = gated(np.clip(total, *clip), bound, gate)
        if gate != OPEN_GATE:
            bound = np.where(finite, wide, 0.0)
            low, high = total - bound, total + bound
        low, high = low.astype(np.float32), high.astype(np.float32)
        right = np.where(np.isnan(total), np.isnan(y), (low <= y) & (y <= high))
        if not right.all():
            place = tuple(np.argwhere(~right)[0])
            raise RandomCaseError(
                f"{np.count_nonzero(~right)} of {right.size} outputs are wrong, first y{place} = "
                f"{y[place]!r}, which should be in [{low[place]!r}, {high[place]!r}]"
            )
        error = np.abs(y - total)[finite] / bound[finite]
    return float(error.max(initial=0.0))


def guarded(shape: tuple[int, ...], offset: int) -> tuple[np.ndarray, np.ndarray]:
    """An array ``offset`` floats past a cache line, and the NaN-filled array around it."""
    count = int(np.prod(shape))
    whole = np.full(count + 160, np.nan, np.float32)
    first = (-whole.ctypes.data % 64) // 4 + 64 + offset
    return whole[first : first + count].reshape(shape), whole


def _run(
    rng: np.random.Generator,
    layer: ConvLayer,
    x: np.ndarray,
    residual: np.ndarray | None,
    end: dict[str, float],
    route: str,
    threads: int,
) -> np.ndarray:
    placed, _ = guarded(x.shape, int(rng.integers(16)))
    placed[...] = x
    if route == "plain":
        return _native.run_plain_conv(
            **layer.arrays, **layer.attributes, x=placed, residual=residual, **end
        )
    option, name = route.split()
    conv = layer.pack(**{option: name}, threads=threads)
    out, whole = guarded((len(x), len(layer.bias), *layer.output_size(*x.shape[2:])), 5)
    conv.run(placed, residual=residual, **end, threads=threads, out=out)
    inside = np.count_nonzero(np.isnan(out))
    if np.count_nonzero(np.isnan(whole)) != whole.size - out.size + inside:
        raise RandomCaseError("wrote outside the output")
    if threads > 1:
        alone = conv.run(x, residual=residual, **end)
        same = (alone.view(np.uint32) == out.view(np.uint32)) | (np.isnan(alone) & np.isnan(out))
        if not same.all():
            raise RandomCaseError(f"differs between 1 and {threads} threads")
    return out


def _draw(rng: np.random.Generator) -> tuple[ConvLayer, np.ndarray]:
    while True:
        group = int(rng.choice([1, 1, 1, 2, 3, 7]))
        one_dimensional = rng.random() < 0.1
        kernel = tuple(int(k) for k in rng.choice([1, 1, 2, 3, 3, 5, 7], size=2))
        if rng.random() < 0.3:
            kernel = (1, 1)
        strides = tuple(int(s) for s in rng.choice([1, 1, 1, 2, 2, 3, 5], size=2))
        dilations = tuple(int(d) for d in rng.choice([1, 1, 1, 2, 3], size=2))
        pads = tuple(int(p) for p in rng.integers(0, 4, size=4)) if rng.random() < 0.7 else (0,) * 4
        height, width = (int(s) for s in np.exp(rng.uniform(0, np.log(40), size=2)))
        if one_dimensional:
            kernel, height, pads = (1, kernel[1]), 1, (0, pads[1], 0, pads[3])
        inputs = group * int(np.exp(rng.uniform(0, np.log(100))))
        outputs = group * int(np.exp(rng.uniform(0, np.log(60))))
        window = inputs // group * kernel[0] * kernel[1]
        fan_in = max(1, min(window, int(window * rng.choice([0.03, 0.1, 0.2, 1.0]))))
        batch = int(rng.choice([1, 1, 2, 5]))
        active = int(rng.choice([outputs, rng.integers(outputs + 1)]))
        attributes = {"strides": strides, "pads": pads, "dilations": dilations}
        layer = random_layer(
            rng, inputs, outputs, kernel, fan_in, group=group, active=active, **attributes
        )
        pixels = batch * np.prod(layer.output_size(height, width))
        # The reference goes weight by weight.
        if (
            min(layer.output_size(height, width)) >= 1
            and active * fan_in <= 4000
            and (pixels * outputs <= 200_000)
        ):
            break
    return _vary(rng, layer), _draw_input(rng, (batch, inputs, height, width))


def _draw_depthwise(rng: np.random.Generator) -> tuple[ConvLayer, np.ndarray]:
    """A depthwise layer without pruned positions; any attributes."""
    while True:
        channels = int(np.exp(rng.uniform(0, np.log(50))))
        kernel = tuple(int(k) for k in rng.choice([1, 2, 3, 3, 5, 7], size=2))
        layer = random_layer(
            rng,
            channels,
            channels,
            kernel,
            kernel[0] * kernel[1],
            group=channels,
            strides=tuple(int(s) for s in rng.choice([1, 1, 1, 2, 2, 3, 9], size=2)),
            pads=tuple(int(p) for p in rng.integers(0, 4, size=4)),
            dilations=tuple(int(d) for d in rng.choice([1, 1, 1, 2, 3], size=2)),
        )
        height, width = (int(s) for s in np.exp(rng.uniform(0, np.log(60), size=2)))
        batch = int(rng.choice([1, 1, 2, 5]))
        size = layer.output_size(height, width)
        if min(size) >= 1 and batch * channels * np.prod(size) <= 100_000:
            break
    return _widened(rng, layer), _draw_input(rng, (batch, channels, height, width))


def _vary(rng: np.random.Generator, layer: ConvLayer) -> ConvLayer:
    """Other types, stored zeros, and rows of different lengths."""
    values, indices = layer.values.copy(), layer.indices.copy()
    values[rng.random(values.shape) < 0.02] = 0.0
    if rng.random() < 0.3:
        true = rng.integers(1, values.shape[1] + 1, size=len(values))
        padding = np.arange(values.shape[1]) >= true[:, None]
        last = np.take_along_axis(indices, true[:, None] - 1, axis=1)
        indices = np.where(padding, last, indices)
        values[padding] = 0.0
    return _widened(rng, replace(layer, values=values, indices=indices))


def _widened(rng: np.random.Generator, layer: ConvLayer) -> ConvLayer:
    """Any types that the format allows."""
    kind = _VALUE_TYPES[rng.choice(3, p=[0.6, 0.2, 0.2])]
    index_type = np.uint16 if rng.random() < 0.5 else np.int32
    return replace(
        layer, values=layer.values.astype(kind), indices=layer.indices.astype(index_type)
    )


def _draw_input(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    x = rng.standard_normal(shape).astype(np.float32)
    if rng.random() < 0.3:
        flat = x.reshape(-1)
        flat[rng.integers(flat.size, size=int(rng.integers(1, 4)))] = rng.choice(_SPECIALS)
    return x
