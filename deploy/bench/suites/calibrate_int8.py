"""Measures the exporter's cost model of 8-bit layers on this machine (``fanin calibrate``)."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ....export import convert
from ....export.layer_costs import LayerTable
from ....export.quantized_costs import FORMS, QuantizedCalibration
from ..engines.int8_forms import save_int8_form
from ..engines.onnx_models import X_QUANTIZED, null_session
from ..engines.protocol import Engine
from ..engines.self_checked import SelfCheckedLayer
from ..measure.layer_problem import quantized_layer, self_checked_problem
from ..measure.machine import describe_machine
from ..measure.timing import Progress
from ..requirements import require
from .calibrate import CalibrationSpec
from .calibrate_conv import calibrate_convolutions
from .calibrate_grid import above, measure_grid, measure_rounds
from .random_layer import random_sparse_layer

BATCHES = (1, 8, 32, 128)
"""Those of the command. Beyond, times grow with the rows, and a run would take longer than a busy
system leaves it alone."""

_KINDS = {"static": "gemm", "dynamic": "dynamic"}
"""Of the dense layer by the table that its times are for: QGemm, DynamicQuantizeMatMul."""


class _Point(NamedTuple):
    form: str
    batch: int
    size: int

    def __str__(self) -> str:
        return f"{self.form} int8, {self.size} × {self.size}, batch {self.batch}"


def calibrate_int8(
    spec: CalibrationSpec,
    progress: Progress = lambda title, done: None,  # noqa: ARG005
) -> QuantizedCalibration:
    """Measure 8-bit layers and convolutions, dense and condensed.

    Raises:
        SessionError: an engine could not be measured, with its reason.

    """
    points = [
        _Point(form, batch, size) for form in FORMS for batch in spec.batches for size in spec.sizes
    ]
    timing = replace(spec.timing, threads=spec.threads)
    with tempfile.TemporaryDirectory() as scratch:
        cases: dict[_Point, _Case] = {}

        def measure_point(point: _Point) -> dict[str, np.ndarray]:
            if point not in cases:
                folder = Path(scratch) / str(len(cases))
                folder.mkdir()
                cases[point] = _Case(spec, point, folder)
            case = cases[point]
            return measure_rounds(case.engines, case.problem, timing, f"at {point}", null=case.null)

        seconds = measure_grid(points, spec.passes, measure_point, progress, spec.threads)

    def table(form: str) -> LayerTable:
        rows = [
            [seconds[_Point(form, batch, size)] for size in spec.sizes] for batch in spec.batches
        ]
        return LayerTable(
            batches=spec.batches,
            weights=tuple(size * size for size in spec.sizes),
            densities=spec.densities,
            dense=tuple(tuple(above(own, "dense", "null") for own in row) for row in rows),
            condensed=tuple(
                tuple(
                    tuple(above(own, f"condensed {one}", "null") for one in spec.densities)
                    for own in row
                )
                for row in rows
            ),
        )

    machine = describe_machine()
    convolutions = replace(spec.convolutions, threads=spec.threads, precision="int8")
    return QuantizedCalibration(
        machine=f"{machine['cpu']}, {machine['kernels']['isa_in_force']}",
        threads=spec.threads,
        static=table("static"),
        dynamic=table("dynamic"),
        convolutions=calibrate_convolutions(convolutions, progress),
    )


class _Case:
    """What a point measures: sessions, each of a weight of its own, and their inputs."""

    def __init__(self, spec: CalibrationSpec, point: _Point, folder: Path) -> None:
        onnx = require("onnx", "the calibration makes its models with it")
        form, batch, size = point
        rng = np.random.default_rng(spec.seed)
        self.engines: list[Engine] = []
        for density in spec.densities:
            fan_in = max(1, round(density * size))
            weight = random_sparse_layer("random", rng, size, size, size, fan_in)
            layer = quantized_layer(weight, spec.seed)  # all have the grid of the same inputs
            source, target = folder / "source.onnx", folder / "target.onnx"
            save_int8_form(source, _KINDS[form], layer, batch)
            convert(source, target, policy="condensed", min_sparsity=0.0, verify=False)
            models = [(f"condensed {density}", target)]
            if not self.engines:  # what a dense kernel multiplies does not change its time
                models.insert(0, ("dense", source))
                self.problem = self_checked_problem(batch, size, spec.seed, layer.x)
            self.engines += [
                SelfCheckedLayer(
                    name,
                    onnx.load(path),
                    weight,
                    folder,
                    spec.threads,
                    library=path == target,
                    precision="int8",
                    y_grid=None if form == "dynamic" else layer.y,
                )
                for name, path in models
            ]
        x = "x" if form == "dynamic" else X_QUANTIZED
        self.null = null_session(folder, batch, size, size, spec.threads, x)
