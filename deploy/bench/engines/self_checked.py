"""Engines of different weights or images on one problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ....ort_ops.format.condensed import CondensedWeight
from ..requirements import require
from .ort import OrtEngine
from .protocol import aligned_copy
from .quantized_layer import Grid
from .reference import exact_outputs


class SelfCheckedLayer(OrtEngine):
    """A one-layer model whose output, to the benchmark, is its error against float64.

    So layers of different weights can take turns in the same rounds, on a problem whose right
    output is 0 (``self_checked_problem``).
    """

    def __init__(
        self,
        name: str,
        model: Any,
        weight: CondensedWeight,
        folder: Path,
        threads: int = 1,
        *,
        library: bool,
        entries: Mapping[str, str] = MappingProxyType({}),
        precision: str = "float32",
        y_grid: Grid | None = None,
    ) -> None:
        path = folder / f"{name}.onnx"
        require("onnx", "the benchmark makes its models with it").save(model, path)
        super().__init__(
            name,
            name,
            path,
            threads,
            library=library,
            entries=entries,
            precision=precision,
            y_grid=y_grid,
        )
        self._weight = weight
        self._x = np.zeros(0)
        self._exact: list[tuple[np.ndarray, np.ndarray]] = []
        """Inputs that were seen, with their right outputs: a problem has three, and takes turns."""

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> None:
        """See Engine."""
        self._x = inputs["x"]
        super().prepare(inputs)

    def output(self) -> Sequence[np.ndarray]:
        """Return the largest error, as a share of the largest output: float32 ``[1]``."""
        return _error(super().output(), self._right_output())

    def _right_output(self) -> np.ndarray:
        for seen, exact in self._exact:
            if np.array_equal(seen, self._x):
                return exact
        self._exact.append((self._x.copy(), exact_outputs(self._weight, self._x)))
        return self._exact[-1][1]


class SelfCheckedImage(OrtEngine):
    """A model on an image of its own, whose output, to the benchmark, is its error.

    So models of other images can take turns in the same rounds.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        x: np.ndarray,
        right: np.ndarray,
        threads: int = 1,
        *,
        library: bool,
        precision: str = "float32",
    ) -> None:
        super().__init__(name, name, path, threads, library=library, precision=precision)
        self._x = aligned_copy(x)
        self._right = right

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> None:  # noqa: ARG002
        """See Engine."""
        super().prepare({"x": self._x})

    def output(self) -> Sequence[np.ndarray]:
        """Return the largest error, as a share of the largest output: float32 ``[1]``."""
        return _error(super().output(), self._right)


def _error(outputs: Sequence[np.ndarray], right: np.ndarray) -> list[np.ndarray]:
    (y,) = outputs
    return [np.array([np.abs(y - right).max() / np.abs(right).max()], np.float32)]
