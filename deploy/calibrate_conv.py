"""Measuring what the exporter knows of convolutions on this machine (``fanin calibrate``)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..export.condensed import CondensedWeight
from ..export.conv_cost import KINDS, ConvTable
from ..export.conv_geometry import ConvGeometry
from ..export.engines import load_plain
from ..export.onnx_op import IR_VERSION, condensed_conv_model
from .bench.measure import Timing, measure
from .bench.ort_engine import OrtEngine
from .bench.problem import Problem, Sample
from .bench.requirements import require
from .errors import SessionError

if TYPE_CHECKING:
    import onnx

_SHORTEST = 5e-8
"""Seconds; a difference of two sessions below it is noise."""


_FAMILIES = ("1x1", "kxk", "depthwise", "stem")
"""In the order of the channels of a calibration."""


@dataclass(frozen=True)
class ConvCalibrationSpec:
    """The grid, and how long each point is measured. Images and weights are square.

    Attributes:
        sides: sides of the output image.
        channels: input and output channels of kernels of one tap, of several, and of depthwise
            ones; output channels of those that read an image.
        densities: shares of the weights that are stored.
        timing: of every session.
        seed: of weights and images.

    """

    sides: tuple[int, ...] = (7, 14, 28)
    channels: tuple[tuple[int, ...], ...] = (
        (32, 128, 256),
        (32, 64, 128),
        (64, 256, 768),
        (16, 32, 64),
    )
    densities: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5)
    timing: Timing = field(
        default_factory=lambda: Timing(
            rounds=5, turn=0.002, min_repeats=2, max_warmup=0.02, lead_in=0.0005
        )
    )
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.channels) != len(_FAMILIES):
            raise ValueError(
                f"channels has {len(self.channels)} lists; one is needed for each of "
                f"{', '.join(_FAMILIES)}"
            )


@dataclass(frozen=True)
class _Point:
    dense: float
    condensed: tuple[float, ...]
    place: float
    reorder: float


def calibrate_convolutions(
    spec: ConvCalibrationSpec = ConvCalibrationSpec(),
    progress: Callable[[str, float], None] = lambda title, done: None,  # noqa: ARG005
) -> tuple[ConvTable, ...]:
    """Measure dense and condensed convolutions of every kind.

    Raises:
        SessionError: a session could not be measured, with its reason.

    """
    total = len(KINDS) * len(spec.sides) * len(spec.channels[0])
    tables = []
    for kind in KINDS:
        channels = spec.channels[_FAMILIES.index(kind.split()[0])]
        densities = (0.5, 1.0) if kind.startswith("depthwise") else spec.densities
        points: list[list[_Point]] = []
        for side in spec.sides:
            points.append([])
            for count in channels:
                done = len(tables) * len(spec.sides) * len(channels)
                done += (len(points) - 1) * len(channels) + len(points[-1])
                progress(f"{kind}, {count} channels at {side}×{side}", done / total)
                geometry = _geometry(kind, count)
                points[-1].append(_measure_point(spec, geometry, side, densities))
        tables.append(
            ConvTable(
                kind=kind,
                pixels=tuple(side * side for side in spec.sides),
                weights=tuple(math.prod(_geometry(kind, c).weight_shape) for c in channels),
                densities=densities,
                dense=tuple(tuple(p.dense for p in row) for row in points),
                condensed=tuple(tuple(p.condensed for p in row) for row in points),
                place=float(np.median([p.place for row in points for p in row])),
                reorder=float(np.median([p.reorder for row in points for p in row])),
            )
        )
    return tuple(tables)


def _geometry(kind: str, channels: int) -> ConvGeometry:
    """Make the convolution of a kind with so many output channels."""
    taps = 1 if kind.startswith("1x1") else 3
    stem = kind == "stem"
    return ConvGeometry(
        3 if stem else channels,
        channels,
        (taps, taps),
        (2, 2) if "strided" in kind or stem else (1, 1),
        (taps // 2,) * 4,
        group=channels if kind.startswith("depthwise") else 1,
    )


def _measure_point(
    spec: ConvCalibrationSpec, geometry: ConvGeometry, side: int, densities: Sequence[float]
) -> _Point:
    rng = np.random.default_rng(spec.seed)
    channels, stride = geometry.out_channels, geometry.strides[0]
    inputs = geometry.in_channels
    x = rng.standard_normal((2, 1, inputs, side * stride, side * stride)).astype(np.float32)
    seconds = _Stopwatch(spec, x)
    pixel = ConvGeometry(channels, channels, (1, 1))
    alone = seconds(_chain([geometry], side * stride, rng))
    if inputs != channels:
        # Its own layout begins behind the image, which nobody reorders.
        dense = seconds(_chain([geometry, pixel], side * stride, rng)) - _pixels_alone(
            seconds, pixel, side, rng
        )
    elif stride == 1:
        dense = (seconds(_chain([geometry] * 3, side, rng)) - alone) / 2
    else:
        # Strided ones do not chain; among others the runtime keeps its own layout of activations.
        around = _chain([pixel, geometry, pixel], side * stride, rng)
        pooled = _chain([pixel, None, pixel], side * stride, rng)
        dense = seconds(around) - seconds(pooled)
    # Differences of sessions go astray when a machine changes its speed between them.
    dense = float(np.clip(dense, alone / 4, alone))
    null = _Stopwatch(spec, x[..., :1, :1])(_null_model(inputs))
    condensed = []
    for density in densities:
        weight = random_weight(rng, geometry, density)
        model = condensed_conv_model(weight, geometry, x.shape[1:2] + x.shape[3:])
        condensed.append(max(seconds(model, library=True) - null, _SHORTEST))
    placed = seconds(_place_model(inputs, side * stride))
    entries = channels * side * side
    copies = 1 if inputs != channels else 1 + stride * stride
    return _Point(
        dense,
        tuple(condensed),
        place=max(placed - null, _SHORTEST) / (inputs * side * side * stride * stride),
        # One convolution alone has its input and its output reordered.
        reorder=max(alone - null - dense, _SHORTEST) / (entries * copies),
    )


def _pixels_alone(
    seconds: _Stopwatch, pixel: ConvGeometry, side: int, rng: np.random.Generator
) -> float:
    """Time what a chain adds with a convolution of one tap behind others like it."""
    of_pixels = replace(
        seconds,
        x=rng.standard_normal((2, 1, pixel.in_channels, side, side)).astype(np.float32),
    )
    return of_pixels(_chain([pixel] * 2, side, rng)) - of_pixels(_chain([pixel], side, rng))


@dataclass(frozen=True)
class _Stopwatch:
    """Seconds of a model on two images; the fastest round counts, disturbances only slow down."""

    spec: ConvCalibrationSpec
    x: np.ndarray

    def __call__(self, model: onnx.ModelProto, *, library: bool = False) -> float:
        onnx = require("onnx", "the calibration makes its models with it")
        reference = load_plain(model.SerializeToString())
        samples = [
            Sample({"x": image}, [np.asarray(y, np.float64) for y in reference({"x": image})])
            for image in self.x
        ]
        # Its threads would spoil the count of the engine's.
        del reference
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "layer.onnx"
            onnx.save(model, path)
            engine = OrtEngine("layer", "layer", path, 1, library=library)
            problem = Problem(*samples, tolerance=1e-4)
            (timed,), _ = measure([engine], problem, self.spec.timing)
        if timed.excluded:
            raise SessionError(
                f"the calibration could not measure {model.graph.name}: {timed.excluded}",
                "fanin doctor checks what it needs.",
            )
        return min(timed.rounds_seconds)


def random_weight(
    rng: np.random.Generator, geometry: ConvGeometry, density: float
) -> CondensedWeight:
    """Make filters of constant fan-in, with taps anywhere."""
    rows, columns = geometry.out_channels, geometry.in_features
    fan_in = max(1, round(density * columns))
    places = np.argpartition(rng.random((rows, columns)), fan_in - 1, axis=1)[:, :fan_in]
    return CondensedWeight(
        values=(rng.standard_normal((rows, fan_in)) / fan_in**0.5).astype(np.float32),
        indices=np.sort(places, axis=1).astype(np.uint16),
        rows=np.arange(rows, dtype=np.int32),
        bias=np.ones(rows, np.float32),
        in_features=columns,
        out_features=rows,
    )


def _chain(
    layers: Sequence[ConvGeometry | None], side: int, rng: np.random.Generator
) -> onnx.ModelProto:
    """Build dense convolutions one after the other; None stands for a pool that halves images."""
    onnx = require("onnx", "the calibration makes its models with it")
    helper = onnx.helper
    nodes, arrays, sides, value = [], [], [side], "x"
    for number, layer in enumerate(layers):
        output = "y" if number == len(layers) - 1 else f"v{number}"
        if layer is None:
            node = helper.make_node(
                "MaxPool", [value], [output], kernel_shape=[2, 2], strides=[2, 2]
            )
            sides.append(sides[-1] // 2)
        else:
            weight = rng.standard_normal(layer.weight_shape) / layer.in_features**0.5
            arrays.append(onnx.numpy_helper.from_array(weight.astype(np.float32), f"w{number}"))
            attributes = layer.attributes()
            del attributes["in_channels"], attributes["out_channels"]
            node = helper.make_node("Conv", [value, f"w{number}"], [output], **attributes)
            sides.append(layer.output_size(0, sides[-1]))
        nodes.append(node)
        value = output
    outputs = next(layer.out_channels for layer in reversed(layers) if layer)
    return _model(nodes, arrays, (layers[0].in_channels, outputs), (sides[0], sides[-1]))


def _null_model(channels: int) -> onnx.ModelProto:
    """Build what a session costs by itself: a node on one pixel."""
    onnx = require("onnx", "the calibration makes its models with it")
    return _model([onnx.helper.make_node("Neg", ["x"], ["y"])], [], (channels, channels), (1, 1))


def _place_model(channels: int, side: int) -> onnx.ModelProto:
    """Build what the structured form does after its product: a Gather of channels and an Add."""
    onnx = require("onnx", "the calibration makes its models with it")
    helper = onnx.helper
    order = np.arange(channels, dtype=np.int64)[::-1].copy()
    arrays = [
        onnx.numpy_helper.from_array(order, "order"),
        onnx.numpy_helper.from_array(np.ones((channels, 1, 1), np.float32), "bias"),
    ]
    nodes = [
        helper.make_node("Gather", ["x", "order"], ["v"], axis=1),
        helper.make_node("Add", ["v", "bias"], ["y"]),
    ]
    return _model(nodes, arrays, (channels, channels), (side, side))


def _model(
    nodes: list, arrays: list, channels: tuple[int, int], sides: tuple[int, int]
) -> onnx.ModelProto:
    """Put a model together; channels and sides of its input and of its output."""
    onnx = require("onnx", "the calibration makes its models with it")
    helper = onnx.helper

    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, count, side, side])
        for name, count, side in zip(("x", "y"), channels, sides, strict=True)
    )
    graph = helper.make_graph(nodes, "layers", [x], [y], arrays)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=IR_VERSION
    )
