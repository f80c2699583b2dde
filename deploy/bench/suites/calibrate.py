"""Measuring the exporter's cost model on this machine (``fanin calibrate``)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ....export.cost_model import Calibration
from ....export.onnx_op import condensed_layer_model, dense_layer_model
from ....export.passes.standard_forms import structured_layer_model
from ..engines.onnx_models import save_null_model
from ..engines.ort import OrtEngine
from ..engines.self_checked import SelfCheckedLayer
from ..measure.layer_problem import self_checked_problem
from ..measure.machine import describe_machine
from ..measure.timing import Timing
from .calibrate_conv import ConvCalibrationSpec, calibrate_convolutions
from .calibrate_rounds import SHORTEST, fastest_rounds, measure_rounds
from .random_layer import random_sparse_layer


@dataclass(frozen=True)
class CalibrationSpec:
    """The grid of square layers, and how often and how long each point is measured."""

    batches: tuple[int, ...] = (1, 8, 32, 64, 256)
    sizes: tuple[int, ...] = (64, 256, 768, 1536)
    densities: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.5)
    passes: int = 3
    timing: Timing = field(
        default_factory=lambda: Timing(rounds=9, turn=0.004, max_warmup=0.1, lead_in=0.0005)
    )
    convolutions: ConvCalibrationSpec = field(default_factory=ConvCalibrationSpec)
    seed: int = 0


def calibrate(
    spec: CalibrationSpec = CalibrationSpec(),
    progress: Callable[[str, float], None] = lambda title, done: None,  # noqa: ARG005
) -> Calibration:
    """Measure layers and convolutions in each form; op time is a session's less a null one's.

    Raises:
        SessionError: an engine could not be measured, with its reason.

    """
    passes: dict[tuple[int, int], list[dict[str, np.ndarray]]] = {}
    total = spec.passes * len(spec.batches) * len(spec.sizes)
    for number in range(total):
        rest, column = divmod(number, len(spec.sizes))
        batch, size = spec.batches[rest % len(spec.batches)], spec.sizes[column]
        progress(f"{size} × {size}, batch {batch}", number / total)
        passes.setdefault((batch, size), []).append(_measure_size(spec, batch, size))
    table = [
        [_summarise(passes[batch, size], spec.densities) for size in spec.sizes]
        for batch in spec.batches
    ]
    machine = describe_machine()
    return Calibration(
        machine=f"{machine['cpu']}, {machine['kernels']['isa_in_force']}",
        batches=spec.batches,
        weights=tuple(size * size for size in spec.sizes),
        densities=spec.densities,
        dense=tuple(tuple(point.dense for point in row) for row in table),
        condensed=tuple(tuple(point.condensed for point in row) for row in table),
        scatter=tuple(tuple(point.scatter for point in row) for row in table),
        convolutions=calibrate_convolutions(spec.convolutions, progress),
    )


@dataclass(frozen=True)
class _Point:
    """Seconds of one size and batch; condensed at each density."""

    dense: float
    condensed: tuple[float, ...]
    scatter: float


def _summarise(passes: list[dict[str, np.ndarray]], densities: Sequence[float]) -> _Point:
    seconds = fastest_rounds(passes)

    def above(name: str, base: str) -> float:
        return max(seconds[name] - seconds[base], SHORTEST)

    return _Point(
        above("dense", "null"),
        tuple(above(_condensed_name(density), "null") for density in densities),
        above("structured", "active"),
    )


def _condensed_name(density: float) -> str:
    return f"condensed {density}"


def _measure_size(spec: CalibrationSpec, batch: int, size: int) -> dict[str, np.ndarray]:
    """Measure one size and batch: dense, condensed at each density, putting neurons in place.

    All forms take turns in the same rounds. Returns the seconds of each in each round.
    """
    rng = np.random.default_rng(spec.seed)
    # What a dense kernel multiplies with does not change its time, zeros included.
    layers = {
        density: random_sparse_layer("random", rng, size, size, size, max(1, round(density * size)))
        for density in spec.densities
    }
    whole = layers[spec.densities[0]]
    halved = replace(
        whole, values=whole.values[::2], indices=whole.indices[::2], rows=whole.rows[::2]
    )
    active = replace(
        halved,
        rows=np.arange(halved.active, dtype=np.int32),
        bias=whole.bias[::2],
        out_features=halved.active,
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        engines = [
            SelfCheckedLayer(name, model, layer, folder, library=False)
            for name, model, layer in (
                ("dense", dense_layer_model(whole, batch), whole),
                ("structured", structured_layer_model(halved, batch), halved),
                ("active", dense_layer_model(active, batch), active),
            )
        ]
        for density, weight in layers.items():
            model = condensed_layer_model(weight, batch)
            engines.append(
                SelfCheckedLayer(_condensed_name(density), model, weight, folder, library=True)
            )
        null = folder / "null.onnx"
        save_null_model(null, batch, size, size)
        return measure_rounds(
            engines,
            self_checked_problem(batch, size, spec.seed),
            spec.timing,
            f"at {size} × {size}, batch {batch}",
            null=OrtEngine("null", "null", null, 1, library=False),
        )
