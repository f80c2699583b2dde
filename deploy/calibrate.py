"""Measuring the exporter's cost model on this machine (``fanin calibrate``)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..export.condensed import CondensedWeight
from ..export.cost_model import Calibration
from ..export.forms import structured_layer_model
from ..export.onnx_op import condensed_layer_model, dense_layer_model
from .bench.machine import describe_machine
from .bench.measure import Timing, measure
from .bench.null_model import save_null_model
from .bench.ort_engine import OrtEngine
from .bench.problem import Problem, Sample
from .bench.requirements import require
from .calibrate_conv import ConvCalibrationSpec, calibrate_convolutions
from .errors import SessionError

_SHORTEST = 5e-8
"""Seconds; a difference of two sessions below it is noise."""


@dataclass(frozen=True)
class CalibrationSpec:
    """The grid, and how long each point is measured. Layers are square."""

    batches: tuple[int, ...] = (1, 8, 64, 256)
    sizes: tuple[int, ...] = (64, 256, 768, 1536)
    densities: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.5)
    timing: Timing = field(
        default_factory=lambda: Timing(rounds=5, turn=0.004, max_warmup=0.1, lead_in=0.0005)
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
    dense, condensed, scatter = [], [], []
    total = len(spec.batches) * len(spec.sizes)
    for batch in spec.batches:
        rows = []
        for size in spec.sizes:
            progress(
                f"{size} × {size}, batch {batch}",
                (len(dense) * len(spec.sizes) + len(rows)) / total,
            )
            rows.append(_measure_size(spec, batch, size))
        dense.append(tuple(row[0] for row in rows))
        condensed.append(tuple(row[1] for row in rows))
        scatter.append(tuple(row[2] for row in rows))
    machine = describe_machine()
    return Calibration(
        machine=f"{machine['cpu']}, {machine['kernels']['isa_in_force']}",
        batches=spec.batches,
        weights=tuple(size * size for size in spec.sizes),
        densities=spec.densities,
        dense=tuple(dense),
        condensed=tuple(condensed),
        scatter=tuple(scatter),
        convolutions=calibrate_convolutions(spec.convolutions, progress),
    )


def _measure_size(
    spec: CalibrationSpec, batch: int, size: int
) -> tuple[float, tuple[float, ...], float]:
    """Measure one size and batch: dense, condensed at each density, putting neurons in place.

    The fastest round counts: whatever disturbs a machine only ever makes it slower.
    """
    onnx = require("onnx", "the calibration makes its models with it")
    rng = np.random.default_rng(spec.seed)
    # What a dense kernel multiplies with does not change its time, zeros included.
    layers = {density: _layer(rng, size, density) for density in spec.densities}
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
        models = {
            "dense": (dense_layer_model(whole, batch), whole, False),
            "structured": (structured_layer_model(halved, batch), halved, False),
            "active": (dense_layer_model(active, batch), active, False),
        }
        for density, weight in layers.items():
            models[f"condensed {density}"] = (condensed_layer_model(weight, batch), weight, True)
        seconds = {}
        x = rng.standard_normal((2, batch, size)).astype(np.float32)
        for name, (model, weight, library) in models.items():
            path = folder / "layer.onnx"
            onnx.save(model, path)
            null = folder / "null.onnx"
            save_null_model(null, batch, size, weight.out_features)
            exact = x.astype(np.float64) @ weight.to_dense().T.astype(np.float64) + weight.bias
            problem = Problem(
                *(Sample({"x": a}, [y]) for a, y in zip(x, exact, strict=True)), tolerance=1e-4
            )
            (timed,), base = measure(
                [OrtEngine(name, name, path, 1, library=library)],
                problem,
                spec.timing,
                null=OrtEngine("null", "null", null, 1, library=False),
            )
            if timed.excluded or base.excluded:
                raise SessionError(
                    f"the calibration could not measure {name} at {size} × {size}, "
                    f"batch {batch}: {timed.excluded or base.excluded}",
                    "fanin doctor checks what it needs.",
                )
            difference = min(timed.rounds_seconds) - min(base.rounds_seconds)
            seconds[name] = max(difference, _SHORTEST)
    return (
        seconds["dense"],
        tuple(seconds[f"condensed {density}"] for density in spec.densities),
        max(seconds["structured"] - seconds["active"], _SHORTEST),
    )


def _layer(rng: np.random.Generator, size: int, density: float) -> CondensedWeight:
    """Make a square layer of constant fan-in."""
    fan_in = max(1, round(density * size))
    columns = np.argpartition(rng.random((size, size)), fan_in - 1, axis=1)[:, :fan_in]
    return CondensedWeight(
        values=rng.standard_normal((size, fan_in)).astype(np.float32),
        indices=np.sort(columns, axis=1).astype(np.uint16),
        rows=np.arange(size, dtype=np.int32),
        bias=np.ones(size, np.float32),
        in_features=size,
        out_features=size,
    )
