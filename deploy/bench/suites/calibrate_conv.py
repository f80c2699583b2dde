"""Measures the exporter's cost model of convolutions on this machine (``fanin calibrate``)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....export.conv_cost import KINDS, QUANTIZED_KINDS, ConvTable
from ....export.engines import load_plain
from ....ort_ops.format.conv_geometry import ConvGeometry
from ..engines.self_checked import SelfCheckedImage
from ..measure.problem import Problem, Sample
from ..measure.timing import Progress, Timing
from ..requirements import require
from .calibrate_conv_models import MODELS, place_model
from .calibrate_grid import SHORTEST, above, measure_grid, measure_rounds
from .random_layer import random_sparse_layer

if TYPE_CHECKING:
    import onnx

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
        passes: over the whole grid.
        timing: of every session.
        threads: of every session.
        seed: of weights and images.
        precision: "float32", or "int8": uint8 images, of which condensed convolutions read and
            write the channels last.

    """

    sides: tuple[int, ...] = (7, 14, 28)
    channels: tuple[tuple[int, ...], ...] = (
        (32, 128, 256),
        (32, 64, 128),
        (64, 256, 768),
        (16, 32, 64),
    )
    densities: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5)
    passes: int = 3
    timing: Timing = field(
        default_factory=lambda: Timing(
            rounds=4, turn=0.002, min_repeats=2, max_warmup=0.02, lead_in=0.0005
        )
    )
    threads: int = 1
    seed: int = 0
    precision: str = "float32"

    def __post_init__(self) -> None:
        if len(self.channels) != len(_FAMILIES):
            raise ValueError(
                f"channels has {len(self.channels)} lists; one is needed for each of "
                f"{', '.join(_FAMILIES)}"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of convolutions that are measured."""
        return QUANTIZED_KINDS if self.precision == "int8" else KINDS

    def channels_of(self, kind: str) -> tuple[int, ...]:
        """Channels of the points of a kind."""
        return self.channels[_FAMILIES.index(kind.split()[0])]

    def densities_of(self, kind: str) -> tuple[float, ...]:
        """Densities of the points of a kind; most depthwise ones are dense."""
        return (0.5, 1.0) if kind.startswith("depthwise") else self.densities


class _Point(NamedTuple):
    """One convolution to be measured."""

    kind: str
    channels: int
    side: int
    densities: tuple[float, ...]

    @property
    def geometry(self) -> ConvGeometry:
        return _geometry(self.kind, self.channels)

    def __str__(self) -> str:
        return f"{self.kind}, {self.channels} channels at {self.side}×{self.side}"


class _Seconds(NamedTuple):
    """What a point takes; see ConvTable."""

    dense: float
    condensed: tuple[float, ...]
    place: float
    reorder: float


def calibrate_convolutions(
    spec: ConvCalibrationSpec = ConvCalibrationSpec(),
    progress: Progress = lambda title, done: None,  # noqa: ARG005
) -> tuple[ConvTable, ...]:
    """Measure dense and condensed convolutions of every kind.

    Raises:
        SessionError: a session could not be measured, with its reason.

    """
    points = [
        _Point(kind, channels, side, spec.densities_of(kind))
        for kind in spec.kinds
        for side in spec.sides
        for channels in spec.channels_of(kind)
    ]
    unused = Sample({"unused": np.zeros(1, np.float32)}, [np.zeros(1)])  # they have images
    problem = Problem(unused, unused, tolerance=1e-4)
    timing = replace(spec.timing, threads=spec.threads)
    with tempfile.TemporaryDirectory() as scratch:
        engines: dict[_Point, list[SelfCheckedImage]] = {}

        def measure_point(point: _Point) -> dict[str, np.ndarray]:
            if point not in engines:
                folder = Path(scratch) / str(len(engines))
                folder.mkdir()
                engines[point] = list(_engines(point, folder, spec))
            return measure_rounds(engines[point], problem, timing, f"of {point}")

        seconds = measure_grid(points, spec.passes, measure_point, progress, spec.threads)
    return tuple(
        _table(kind, spec, [_seconds(one, own) for one, own in seconds.items() if one.kind == kind])
        for kind in spec.kinds
    )


def _table(kind: str, spec: ConvCalibrationSpec, found: Sequence[_Seconds]) -> ConvTable:
    channels = spec.channels_of(kind)
    rows = [found[at : at + len(channels)] for at in range(0, len(found), len(channels))]
    return ConvTable(
        kind=kind,
        pixels=tuple(side * side for side in spec.sides),
        weights=tuple(math.prod(_geometry(kind, count).weight_shape) for count in channels),
        densities=spec.densities_of(kind),
        dense=tuple(tuple(one.dense for one in row) for row in rows),
        condensed=tuple(tuple(one.condensed for one in row) for row in rows),
        place=float(np.median([one.place for one in found])),
        reorder=float(np.median([one.reorder for one in found])),
    )


def _geometry(kind: str, channels: int) -> ConvGeometry:
    """Make the convolution of a kind with ``channels`` output channels."""
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


def _engines(point: _Point, folder: Path, spec: ConvCalibrationSpec) -> Iterator[SelfCheckedImage]:
    """Make the engines of a point, with the names that _seconds reads."""
    rng = np.random.default_rng(spec.seed)
    models = MODELS[spec.precision](rng)
    geometry, side = point.geometry, point.side
    inputs, outputs, before = geometry.in_channels, geometry.out_channels, _side_before(point)
    pixel = ConvGeometry(outputs, outputs, (1, 1))
    images = {
        (channels, size): models.image(channels, size)
        for channels, size in {(inputs, before), (outputs, side), (inputs, 1)}
    }

    def engine(
        name: str, model: onnx.ModelProto, x: np.ndarray, *, library: bool = False
    ) -> SelfCheckedImage:
        path = folder / f"{len(list(folder.iterdir()))}.onnx"
        expected = _save_case(model, path, x)
        return SelfCheckedImage(
            name, path, x, expected, spec.threads, library=library, precision=spec.precision
        )

    def dense(name: str, *layers: ConvGeometry | None) -> SelfCheckedImage:
        image = (outputs, side) if layers[0] is pixel and inputs != outputs else (inputs, before)
        return engine(name, models.chain(layers, image[1]), images[image])

    yield dense("alone", geometry)
    if inputs != outputs:
        yield dense("in front", geometry, pixel)
        yield dense("pixels", pixel)
        yield dense("pixels twice", pixel, pixel)
    elif geometry.strides[0] == 1:
        yield dense("three", geometry, geometry, geometry)
    else:
        yield dense("around", pixel, geometry, pixel)
        yield dense("pooled", pixel, None, pixel)
    yield engine("null", models.null(inputs), images[inputs, 1])
    if spec.precision == "float32":
        yield engine("placed", place_model(inputs, before), images[inputs, before])
    for density in point.densities:
        rows, columns = geometry.out_channels, geometry.in_features
        fan_in = max(1, round(density * columns))
        weight = random_sparse_layer("random", rng, columns, rows, rows, fan_in)
        case = models.condensed(weight, geometry, images[inputs, before])
        yield engine(f"condensed {density}", *case, library=True)


def _seconds(point: _Point, seconds: Mapping[str, float]) -> _Seconds:
    """Return the cost of a convolution among others, where the runtime keeps its own layout.

    A single convolution has its input and its output reordered. One of stride 1 is timed in a chain
    with itself, a strided one in place of a pool; after an image, which is not reordered, the
    runtime's layout begins with the convolution.
    """
    geometry, side, before = point.geometry, point.side, _side_before(point)
    inputs, outputs, stride = geometry.in_channels, geometry.out_channels, geometry.strides[0]
    alone, null = seconds["alone"], seconds["null"]
    if inputs != outputs:
        dense = seconds["in front"] - (seconds["pixels twice"] - seconds["pixels"])
    elif stride == 1:
        dense = (seconds["three"] - alone) / 2
    else:
        dense = seconds["around"] - seconds["pooled"]
    # A small difference of large times may be far off.
    dense = float(np.clip(dense, alone / 4, alone))
    copies = 1 if inputs != outputs else 1 + stride * stride
    condensed = tuple(above(seconds, f"condensed {density}", "null") for density in point.densities)
    if "placed" not in seconds:
        return _Seconds(dense, condensed, place=0.0, reorder=0.0)
    return _Seconds(
        dense,
        condensed,
        place=above(seconds, "placed", "null") / (inputs * before * before),
        reorder=max(alone - null - dense, SHORTEST) / (outputs * side * side * copies),
    )


def _side_before(point: _Point) -> int:
    """Side of the input image."""
    return point.side * point.geometry.strides[0]


def _save_case(model: onnx.ModelProto, path: Path, x: np.ndarray) -> np.ndarray:
    """Save a model; returns its expected output for the image, float64."""
    require("onnx", "the calibration makes its models with it").save(model, path)
    (expected,) = load_plain(model.SerializeToString())({"x": x})
    return np.asarray(expected, np.float64)
