"""What is computed in a comparison, and how an output is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .engine import aligned_copy


@dataclass(frozen=True)
class Sample:
    """Inputs by name and the outputs that are right for them (float64, in the model's order)."""

    inputs: Mapping[str, np.ndarray]
    outputs: Sequence[np.ndarray]


class Problem:
    """Two samples of the same shapes: one to time with, another to check with after the timing.

    ``inputs`` are the live arrays that engines bind; ``load`` writes a sample into them.
    An output is right when its type is ``dtype`` and max |y - y64| <= tolerance * max |y64|.
    """

    def __init__(self, timed: Sample, fresh: Sample, *, tolerance: float, dtype: type = np.float32):
        self.timed = timed
        self.fresh = fresh
        self.tolerance = tolerance
        self.dtype = np.dtype(dtype)
        self.inputs = {name: aligned_copy(array) for name, array in timed.inputs.items()}

    def load(self, sample: Sample) -> None:
        """Make ``sample`` the present content of the inputs."""
        for name, array in self.inputs.items():
            array[...] = sample.inputs[name]

    def error(self, outputs: Sequence[np.ndarray], sample: Sample) -> float:
        """Largest error of ``outputs``, relative to the largest right value of each output.

        Raises WrongOutputError when they are not right, NaN included.
        """
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
            if not error <= self.tolerance:
                raise WrongOutputError(
                    f"output {number} is wrong by {error:.1e} relative to its largest value "
                    f"({self.tolerance:.0e} is allowed)"
                )
            worst = max(worst, error)
        return worst


class WrongOutputError(Exception):
    """An engine's output is not what it should be."""
