"""Measured times of linear layers, dense and condensed, and predictions from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ort_ops.dispatch_cost import SPINNING, DispatchCost
from .interpolation import are_times, as_numbers, interpolate, require_axis
from .thread_scaling import Work, condensed_seconds, dense_seconds


@dataclass(frozen=True)
class LayerTable:
    """Seconds of layers, with the threads of their calibration.

    Attributes:
        batches: rows of X, increasing.
        weights: entries of the dense weight, increasing.
        densities: shares of entries that are stored, increasing.
        dense: ``[batches][weights]``.
        condensed: ``[batches][weights][densities]``.

    """

    batches: tuple[int, ...]
    weights: tuple[int, ...]
    densities: tuple[float, ...]
    dense: tuple[tuple[float, ...], ...]
    condensed: tuple[tuple[tuple[float, ...], ...], ...]

    def __post_init__(self) -> None:
        for name in ("batches", "weights", "densities"):
            require_axis(name, getattr(self, name))
        self.require_times("dense", self.dense, 2)
        self.require_times("condensed", self.condensed, 3)

    def require_times(self, name: str, table: object, axes: int) -> None:
        """Raise ValueError unless ``table`` holds times over the first of the axes."""
        sizes = (len(self.batches), len(self.weights), len(self.densities))
        array = as_numbers(table)
        if array.shape != sizes[:axes] or not are_times(array):
            raise ValueError(f"{name} is not a table of times")


class LayerCosts:
    """Predicted seconds of a layer; between the points linear in logarithms.

    Args:
        table: measured times.
        threads: to predict for from a table of one thread; 1 takes the table as it is.
        dispatch: cost of starting several threads.
        weight_bytes: of an entry of a dense weight.

    """

    def __init__(
        self,
        table: LayerTable,
        threads: int = 1,
        dispatch: DispatchCost = SPINNING,
        weight_bytes: int = 4,
    ) -> None:
        self._threads, self._dispatch, self._weight_bytes = threads, dispatch, weight_bytes
        self._axes = [
            np.log(np.asarray(axis, np.float64))
            for axis in (table.batches, table.weights, table.densities)
        ]
        self._dense, self._condensed = (
            np.log(np.asarray(times, np.float64)) for times in (table.dense, table.condensed)
        )

    def dense(self, batch: int, out_features: int, in_features: int) -> float:
        """Predict a dense layer."""
        weights = out_features * in_features
        seconds = self.at(self._dense, batch, weights)
        room = weights * self._weight_bytes // 4
        return dense_seconds(seconds, batch, room, self._threads, self._dispatch)

    def condensed(self, batch: int, out_features: int, in_features: int, stored: int) -> float:
        """Predict a condensed node of ``stored`` entries, padding included."""
        weights = out_features * in_features
        # Rows that store nothing cost what writing their bias costs; never zero.
        density = max(stored, 1) / weights
        seconds = self.at(self._condensed, batch, weights, density)
        work = Work.of_rows(batch, out_features, in_features)
        return condensed_seconds(seconds, work, self._threads, self._dispatch)

    def at(self, log_times: np.ndarray, *point: float) -> float:
        """Read a table of logarithms over the first axes of this one."""
        return float(np.exp(interpolate(log_times, self._axes, np.log(point))))
