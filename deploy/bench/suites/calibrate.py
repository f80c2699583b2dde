"""Measures the exporter's cost model on this machine (``fanin calibrate``)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from ....export.cost_model import Calibration
from ....export.onnx_op import dense_layer_model
from ....export.passes.standard_forms import structured_layer_model
from ...cpus import MAX_THREADS, default_threads
from ..engines.onnx_models import null_session
from ..engines.self_checked import SelfCheckedLayer
from ..measure.layer_problem import self_checked_problem
from ..measure.machine import describe_machine
from ..measure.timing import Progress, Timing
from .calibrate_conv import ConvCalibrationSpec, calibrate_convolutions
from .calibrate_grid import above, dense_and_condensed, measure_grid, measure_rounds
from .random_layer import random_sparse_layer

_T = TypeVar("_T")


@dataclass(frozen=True)
class CalibrationSpec:
    """The grid of square layers, and how often and how long each point is measured.

    ``threads`` are those of every session, of convolutions as well.

    Raises:
        ValueError: there are fewer CPUs for this process than threads.

    """

    batches: tuple[int, ...] = (1, 8, 32, 64, 256)
    sizes: tuple[int, ...] = (64, 256, 768, 1536)
    densities: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.5)
    passes: int = 3
    timing: Timing = field(
        default_factory=lambda: Timing(rounds=9, turn=0.004, max_warmup=0.1, lead_in=0.0005)
    )
    convolutions: ConvCalibrationSpec = field(default_factory=ConvCalibrationSpec)
    threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        most = min(default_threads(), MAX_THREADS)
        if not 1 <= self.threads <= most:
            raise ValueError(
                f"threads is {self.threads}, it must be 1 to {most}, the CPUs of this process: "
                "times on more threads than CPUs say nothing"
            )


class _Point(NamedTuple):
    batch: int
    size: int

    def __str__(self) -> str:
        return f"{self.size} × {self.size}, batch {self.batch}"


def calibrate(
    spec: CalibrationSpec = CalibrationSpec(),
    progress: Progress = lambda title, done: None,  # noqa: ARG005
) -> Calibration:
    """Measure layers and convolutions in each form; op times are minus those of a null session.

    Raises:
        SessionError: an engine could not be measured, with its reason.

    """
    points = [_Point(batch, size) for batch in spec.batches for size in spec.sizes]
    measure_point = partial(_measure_point, spec)
    seconds = measure_grid(points, spec.passes, measure_point, progress, spec.threads)

    def table(value: Callable[[dict[str, float]], _T]) -> tuple[tuple[_T, ...], ...]:
        return tuple(
            tuple(value(seconds[_Point(batch, size)]) for size in spec.sizes)
            for batch in spec.batches
        )

    machine = describe_machine()
    return Calibration(
        machine=f"{machine['cpu']}, {machine['kernels']['isa_in_force']}",
        batches=spec.batches,
        weights=tuple(size * size for size in spec.sizes),
        densities=spec.densities,
        dense=table(lambda own: above(own, "dense", "null")),
        condensed=table(
            lambda own: tuple(above(own, f"condensed {one}", "null") for one in spec.densities)
        ),
        scatter=table(lambda own: above(own, "structured", "active")),
        convolutions=calibrate_convolutions(
            replace(spec.convolutions, threads=spec.threads), progress
        ),
        threads=spec.threads,
    )


def _measure_point(spec: CalibrationSpec, point: _Point) -> dict[str, np.ndarray]:
    """Measure one size and batch: dense, condensed at each density, scattering half the neurons."""
    batch, size = point
    rng = np.random.default_rng(spec.seed)
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
    scattered = (
        ("structured", structured_layer_model(halved, batch), halved),
        ("active", dense_layer_model(active, batch), active),
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        engines = dense_and_condensed(layers, batch, folder, spec.threads)
        engines += [
            SelfCheckedLayer(*one, folder, spec.threads, library=False) for one in scattered
        ]
        return measure_rounds(
            engines,
            self_checked_problem(batch, size, spec.seed),
            replace(spec.timing, threads=spec.threads),
            f"at {point}",
            null=null_session(folder, batch, size, size, spec.threads),
        )
