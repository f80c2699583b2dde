"""Problems of one layer: random inputs and their expected outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ....ort_ops.format.condensed import CondensedWeight
from ..engines.onnx_models import X_QUANTIZED
from ..engines.quantized_layer import Grid, QuantizedLayer
from ..engines.reference import exact_outputs
from .problem import Problem, Sample

# Of float32 sums relative to the largest float64 one.
_TOLERANCE = 1e-5

_CALIBRATION_ROWS = 256


def layer_problem(
    weight: CondensedWeight,
    batch: int,
    seed: int,
    exact: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Problem:
    """Draw standard normal inputs [batch, in_features], and compute the layer's outputs.

    ``exact`` computes them in float64 where there is something faster than the reference.
    """
    compute = exact or partial(exact_outputs, weight)
    shape = (batch, weight.in_features)
    timed, fresh = (
        {"x": np.random.default_rng([seed, part]).standard_normal(shape, np.float32)}
        for part in (1, 2)
    )
    return Problem.of(timed, fresh, lambda inputs: [compute(inputs["x"])], _TOLERANCE)


def quantized_layer(weight: CondensedWeight, seed: int) -> QuantizedLayer:
    """Quantize a layer: weights by rows, input and output by their range over random inputs.

    256 standard normal inputs, as those of the problem but none of them.
    """
    shape = (_CALIBRATION_ROWS, weight.in_features)
    x = np.random.default_rng([seed, 3]).standard_normal(shape, np.float32)
    return QuantizedLayer.of(weight, Grid.over(x), Grid.over(exact_outputs(weight, x)))


def quantized_layer_problem(
    weight: CondensedWeight, layer: QuantizedLayer, batch: int, seed: int
) -> Problem:
    """Make the problem of layer_problem, with the inputs in uint8 as well.

    The expected outputs are those of the float32 weights, so that errors are what the quantization
    costs.
    """
    problem = layer_problem(weight, batch, seed)
    varied = {"x": problem.timed.inputs["x"].copy()}
    # Another number that the grid has; the inputs of layer_problem vary by more.
    varied["x"].flat[0] = -layer.x.scale * layer.x.zero_point / 2

    def sample(x: np.ndarray) -> Sample:
        inputs = {"x": x, X_QUANTIZED: layer.x.quantize(x)}
        return Sample(inputs, [exact_outputs(weight, x)])

    timed, fresh, other = (
        sample(inputs["x"]) for inputs in (problem.timed.inputs, problem.fresh.inputs, varied)
    )
    return Problem(timed, fresh, varied=other, tolerance=_TOLERANCE)


def self_checked_problem(
    batch: int, in_features: int, seed: int, grid: Grid | None = None
) -> Problem:
    """Draw inputs for engines whose output is their error, which should be 0.

    With a grid, they are there in uint8 as well.
    """
    rng = np.random.default_rng(seed)
    timed, fresh = ({"x": rng.standard_normal((batch, in_features), np.float32)} for _ in range(2))
    if grid is None:
        return Problem.of(timed, fresh, lambda _: [np.zeros(1)], 1e-4)
    varied = {"x": timed["x"].copy()}
    varied["x"].flat[0] = -varied["x"].flat[0]
    samples = [
        Sample({**one, X_QUANTIZED: grid.quantize(one["x"])}, [np.zeros(1)])
        for one in (timed, fresh, varied)
    ]
    # Outputs beyond the range of the layer's other inputs are cut off; wrong ones are off by more.
    return Problem(*samples[:2], varied=samples[2], tolerance=1e-4, int8_tolerance=0.5)
