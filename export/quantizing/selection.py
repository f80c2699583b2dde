"""Which layers hurt most in 8 bits, and how many of them have to stay floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .float_model import Layer
from .output_error import compare
from .samples import Samples
from .trial import Trial


@dataclass(frozen=True)
class Ranking:
    """Layers in the order in which they are kept in float32.

    Attributes:
        layers: the one that hurts most first.
        errors: relative error of the outputs where a layer alone is in 8 bits, by its node.

    """

    layers: tuple[Layer, ...]
    errors: dict[str, float]


class Selection:
    """Tries layers in 8 bits on a few samples."""

    def __init__(self, trial: Trial, samples: Samples) -> None:
        """Run the trial with all layers as floats.

        Args:
            trial: the model.
            samples: to compare outputs on.

        """
        self._trial, self._samples = trial, samples
        self._floats = trial.run(samples, ())

    def _error(self, layers: Sequence[Layer]) -> float:
        actual = self._trial.run(self._samples, {layer.node for layer in layers})
        return compare(self._floats, actual).relative

    def rank(self, layers: Sequence[Layer], progress: Callable[[float], None]) -> Ranking:
        """Try each layer alone.

        Args:
            layers: those to try.
            progress: is told the share that is done.

        """
        errors = {}
        for number, layer in enumerate(layers):
            progress(number / len(layers))
            errors[layer.node] = self._error([layer])
        ordered = sorted(layers, key=lambda layer: -errors[layer.node])
        return Ranking(tuple(ordered), errors)

    def fewest_floats(self, ranking: Ranking, max_error: float) -> int:
        """Return how many layers from the front must stay floats; all but one at most."""
        layers = ranking.layers
        for kept in range(len(layers)):
            if self._error(layers[kept:]) <= max_error:
                return kept
        return len(layers) - 1
