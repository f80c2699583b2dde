"""Inputs and expected outputs of a comparison, and how an output is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..engines.protocol import aligned_copy


@dataclass(frozen=True)
class Sample:
    """Inputs by name and their expected outputs (float64, in the model's order)."""

    inputs: Mapping[str, np.ndarray]
    outputs: Sequence[np.ndarray]


PRECISIONS = ("float32", "float16", "bfloat16", "int8")
"""Types that engines compute in."""

_TOLERANCES = {"float16": 4e-3, "bfloat16": 4e-2}


class Problem:
    """Samples of the same shapes: for timing, and for a check after the timing.

    ``varied`` differs from ``timed`` in the first element of an input; the two alternate in timed
    runs, so that no engine can repeat its previous answer. Without it all timed runs get
    ``timed``. ``fresh`` is used once, at the end.

    ``inputs`` are the live arrays that engines bind, ``present`` is the sample that they hold. An
    output is correct when its type is ``dtype`` and max |y - y64| <= tolerance * max |y64|, for
    engines that compute in float32. Engines of narrower types are allowed more, which catches
    mistakes only: how accurate they are, the measured error in the report says.
    """

    def __init__(
        self,
        timed: Sample,
        fresh: Sample,
        *,
        varied: Sample | None = None,
        tolerance: float,
        int8_tolerance: float = 0.2,
        dtype: type = np.float32,
    ):
        self.timed = self.present = timed
        self.varied = varied or timed
        self.fresh = fresh
        self._tolerances = {**_TOLERANCES, "float32": tolerance, "int8": int8_tolerance}
        self.dtype = np.dtype(dtype)
        self.inputs = {name: aligned_copy(array) for name, array in timed.inputs.items()}

    @classmethod
    def of(
        cls,
        timed: Mapping[str, np.ndarray],
        fresh: Mapping[str, np.ndarray],
        expected: Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]],
        tolerance: float,
        *,
        int8_tolerance: float = 0.2,
        step: float = 8.0,
    ) -> Problem:
        """Make the problem of these inputs; ``expected`` computes their outputs in float64.

        ``step`` is how far the element that varies goes.
        """
        varied = {name: array.copy() for name, array in timed.items()}
        for array in varied.values():
            array.flat[0] += step
            break
        samples = [Sample(inputs, expected(inputs)) for inputs in (timed, fresh, varied)]
        return cls(
            *samples[:2], tolerance=tolerance, int8_tolerance=int8_tolerance, varied=samples[2]
        )

    def load(self, sample: Sample) -> None:
        """Copy ``sample`` into the inputs."""
        self.present = sample
        for name, array in self.inputs.items():
            array[...] = sample.inputs[name]

    def pair(self, round_number: int) -> tuple[Sample, Sample]:
        """Return the two samples that alternate in a round, the one of the last run first."""
        pair = (self.timed, self.varied)
        return pair if round_number % 2 == 0 else pair[::-1]

    def vary(self, sample: Sample) -> None:
        """Change the inputs from the other sample of the pair to ``sample``."""
        self.present = sample
        for name, array in self.inputs.items():
            array.flat[0] = sample.inputs[name].flat[0]

    def error(
        self, outputs: Sequence[np.ndarray], sample: Sample, precision: str = "float32"
    ) -> float:
        """Return the largest error, relative to the largest expected value of each output.

        Raises:
            WrongOutputError: the outputs are wrong, NaN included.

        """
        tolerance = self._tolerances[precision]
        if len(outputs) != len(sample.outputs):
            raise WrongOutputError(f"{len(outputs)} outputs, {len(sample.outputs)} expected")
        worst = 0.0
        for number, (got, want) in enumerate(zip(outputs, sample.outputs, strict=True)):
            if got.shape != want.shape:
                raise WrongOutputError(f"output {number} has shape {got.shape}, not {want.shape}")
            if got.dtype != self.dtype:
                raise WrongOutputError(f"output {number} is {got.dtype}, not {self.dtype}")
            if not want.size:
                continue
            scale = np.abs(want).max() or 1.0
            error = float(np.abs(got.astype(np.float64) - want).max() / scale)
            if not error <= tolerance:
                raise WrongOutputError(
                    f"output {number} is wrong by {error:.1e} relative to its largest value "
                    f"({tolerance:.0e} is allowed)"
                )
            worst = max(worst, error)
        return worst


def rms_error(outputs: Sequence[np.ndarray], sample: Sample) -> float:
    """Return the root mean square error relative to that of the expected values.

    The largest of all outputs; how accurate an engine is that error's tolerance lets pass.
    """
    worst = 0.0
    for got, want in zip(outputs, sample.outputs, strict=True):
        size = float(np.square(want).mean()) if want.size else 0.0
        if size:
            difference = np.square(got.astype(np.float64) - want).mean()
            worst = max(worst, float(np.sqrt(difference / size)))
    return worst


def first_number(sample: Sample) -> float:
    """Return the element in which the samples of a pair differ."""
    return float(next(iter(sample.inputs.values())).flat[0])


class WrongOutputError(Exception):
    """An engine's output is wrong."""
