"""How long a layer takes in each form, predicted from measurements of a machine.

``fanin calibrate`` measures dense and condensed layers on a grid of batches, sizes and densities;
between the points times are interpolated linearly in logarithms, which is exact for power laws.
Without a calibration of the user's machine the one that comes with fanin is taken.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from .._base.atomic import output_folder, write_file
from .._base.texts import parse_json, read_text
from .._base.user_folders import user_calibration_path
from ..ort_ops.dispatch_cost import SPINNING, DispatchCalibration, DispatchCost
from .conv_cost import ConvCostModel, ConvTable
from .errors import ExportError
from .interpolation import are_times, interpolate, require_axis
from .thread_scaling import Work, condensed_seconds, dense_seconds

FORMAT_VERSION = 1

_SHIPPED = "calibration.json"
_SHIPPED_CONVOLUTIONS = "calibration_conv.json"


@dataclass(frozen=True)
class Calibration:
    """Seconds of layers, measured on one machine with one thread.

    Attributes:
        machine: the CPU and the kernels that were measured.
        batches: rows of X, increasing.
        weights: entries of the dense weight, increasing.
        densities: shares of entries that are stored, increasing.
        dense: ``[batches][weights]``.
        condensed: ``[batches][weights][densities]``.
        scatter: ``[batches][weights]``: putting the outputs of half of the neurons of a square
            layer in their places.
        convolutions: a table for each kind; without them those that come with fanin are taken.

    """

    machine: str
    batches: tuple[int, ...]
    weights: tuple[int, ...]
    densities: tuple[float, ...]
    dense: tuple[tuple[float, ...], ...]
    condensed: tuple[tuple[tuple[float, ...], ...], ...]
    scatter: tuple[tuple[float, ...], ...]
    convolutions: tuple[ConvTable, ...] = ()

    def save(self, path: Path) -> None:
        """Write the table as JSON; raises OSError with what to do."""
        text = json.dumps({"format_version": FORMAT_VERSION} | asdict(self), indent=1)
        output_folder(path.parent)
        write_file(path, text + "\n")

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a table.

        Raises:
            ExportError: it is not one of this version, with the remedy.

        """
        try:
            text = read_text(path)
        except ValueError as error:
            raise _unusable(str(path), error) from error
        return cls._parse(text, str(path))

    @classmethod
    def shipped(cls) -> Calibration:
        """Read the table that comes with fanin."""
        return cls._parse(resources.files(__package__).joinpath(_SHIPPED).read_text(), _SHIPPED)

    @classmethod
    def shipped_convolutions(cls) -> tuple[ConvTable, ...]:
        """Read the tables of convolutions that come with fanin."""
        text = resources.files(__package__).joinpath(_SHIPPED_CONVOLUTIONS).read_text()
        return tuple(map(ConvTable.parse, json.loads(text)))

    @classmethod
    def _parse(cls, text: str, where: str) -> Calibration:
        try:
            fields = parse_json(text)
            if fields.pop("format_version") != FORMAT_VERSION:
                raise ValueError("its format version is not supported")
            convolutions = tuple(map(ConvTable.parse, fields.pop("convolutions", ())))
            table = cls(**fields, convolutions=convolutions)
            for name in ("batches", "weights", "densities"):
                require_axis(name, getattr(table, name))
            if convolutions:
                ConvCostModel(convolutions)
            sizes = (len(table.batches), len(table.weights), len(table.densities))
            for name, wanted in (("dense", 2), ("condensed", 3), ("scatter", 2)):
                array = np.asarray(getattr(table, name), np.float64)
                if array.shape != sizes[:wanted] or not are_times(array):
                    raise ValueError(f"{name} is not a table of times")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _unusable(where, error) from error
        return table


def _unusable(where: str, error: Exception) -> ExportError:
    return ExportError(
        f"{where} is no calibration of this version ({error}); "
        "delete it, or measure again with fanin calibrate"
    )


class CostModel:
    """Predicted seconds of a layer on a number of threads; see thread_scaling for several."""

    def __init__(
        self, calibration: Calibration, threads: int = 1, dispatch: DispatchCost = SPINNING
    ) -> None:
        self.machine = calibration.machine
        self.threads = threads
        self._dispatch = dispatch
        if not calibration.convolutions and calibration != Calibration.shipped():
            self.machine += (
                "; convolutions for the machine that came with fanin, since the calibration has "
                "none: run fanin calibrate"
            )
        self.convolutions = ConvCostModel(
            calibration.convolutions or Calibration.shipped_convolutions(), threads, dispatch
        )
        self._axes = [
            np.log(np.asarray(axis, np.float64))
            for axis in (calibration.batches, calibration.weights, calibration.densities)
        ]
        self._dense, self._condensed, self._scatter = (
            np.log(np.asarray(table, np.float64))
            for table in (calibration.dense, calibration.condensed, calibration.scatter)
        )

    @classmethod
    def of_this_machine(cls, threads: int = 1) -> CostModel:
        """Take the user's calibration if there is one, else the shipped one.

        Times on several threads are predicted from those on one, with the cost of a dispatch that
        was measured on this machine, or else the library's.

        Raises:
            ExportError: a file of the user's calibration is unusable, with the remedy.

        """
        dispatch = SPINNING
        if threads > 1:
            try:
                measured = DispatchCalibration.of_this_machine()
            except ValueError as error:
                raise ExportError(str(error)) from error
            dispatch = measured.spinning if measured else SPINNING
        path = user_calibration_path()
        if path is None:
            return cls(Calibration.shipped(), threads, dispatch)
        try:
            own = path.is_file()
        except OSError as error:  # as where HOME is another user's
            model = cls(Calibration.shipped(), threads, dispatch)
            model.machine += f"; {path} cannot be read ({error.strerror})"
            return model
        return cls(Calibration.load(path) if own else Calibration.shipped(), threads, dispatch)

    def dense(self, batch: int, out_features: int, in_features: int) -> float:
        """Predict a dense Gemm."""
        weights = out_features * in_features
        seconds = self._at(self._dense, batch, weights)
        return dense_seconds(seconds, batch, weights, self.threads, self._dispatch)

    def condensed(self, batch: int, out_features: int, in_features: int, stored: int) -> float:
        """Predict a condensed node of ``stored`` entries, padding included."""
        weights = out_features * in_features
        # Rows that store nothing cost what writing their bias costs; never zero.
        density = max(stored, 1) / weights
        seconds = self._at(self._condensed, batch, weights, density)
        work = Work.of_rows(batch, out_features, in_features)
        return condensed_seconds(seconds, work, self.threads, self._dispatch)

    def structured(self, batch: int, out_features: int, in_features: int, active: int) -> float:
        """Predict a dense Gemm of the active rows, and putting them in their places.

        The latter as on one thread, whatever their number.
        """
        gemm = self.dense(batch, max(active, 1), in_features)
        if active == out_features:
            return gemm
        return gemm + self._at(self._scatter, batch, out_features * out_features)

    def _at(self, table: np.ndarray, *point: float) -> float:
        return float(np.exp(interpolate(table, self._axes, np.log(point))))
