"""How long a layer takes in each form, predicted from measurements of a machine.

``fanin calibrate`` measures dense and condensed layers on a grid of batches, sizes and densities;
between the points times are interpolated linearly in logarithms, which is exact for power laws.
Without a calibration of the user's machine the one that comes with fanin is taken. Each number of
threads has a table of its own; where one is missing, its times are predicted from those on one.
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
from .report import origin_of_times
from .thread_scaling import Work, condensed_seconds, dense_seconds

FORMAT_VERSION = 1

_SHIPPED = "calibration.json"
_SHIPPED_CONVOLUTIONS = "calibration_conv.json"


@dataclass(frozen=True)
class Calibration:
    """Seconds of layers, measured on one machine with one number of threads.

    Attributes:
        machine: the CPU and the kernels that were measured.
        batches: rows of X, increasing.
        weights: entries of the dense weight, increasing.
        densities: shares of entries that are stored, increasing.
        dense: ``[batches][weights]``.
        condensed: ``[batches][weights][densities]``.
        scatter: ``[batches][weights]``: putting the outputs of half of the neurons of a square
            layer in their places.
        convolutions: a table for each kind; without them, which only a table of one thread may be,
            those that come with fanin are taken.
        threads: of the sessions that were measured; files without it are of one thread.

    """

    machine: str
    batches: tuple[int, ...]
    weights: tuple[int, ...]
    densities: tuple[float, ...]
    dense: tuple[tuple[float, ...], ...]
    condensed: tuple[tuple[tuple[float, ...], ...], ...]
    scatter: tuple[tuple[float, ...], ...]
    convolutions: tuple[ConvTable, ...] = ()
    threads: int = 1

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
            if type(table.threads) is not int or table.threads < 1:
                raise ValueError("threads is not a number of threads")
            if convolutions or table.threads > 1:
                ConvCostModel(convolutions)
            sizes = (len(table.batches), len(table.weights), len(table.densities))
            for name, wanted in (("dense", 2), ("condensed", 3), ("scatter", 2)):
                array = np.asarray(getattr(table, name), np.float64)
                if array.shape != sizes[:wanted] or not are_times(array):
                    raise ValueError(f"{name} is not a table of times")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _unusable(where, error) from error
        return table


def _load_for(path: Path, threads: int) -> Calibration:
    """Read a table and require that it is of so many threads."""
    found = Calibration.load(path)
    if found.threads != threads:
        raise ExportError(
            f"{path} holds times on {found.threads} thread{'s' * (found.threads > 1)}, where those "
            f"on {threads} belong; remove it, or measure them with fanin calibrate --threads "
            f"{threads}"
        )
    return found


def _unusable(where: str, error: Exception) -> ExportError:
    return ExportError(
        f"{where} is no calibration of this version ({error}); "
        "delete it, or measure again with fanin calibrate"
    )


def table_path(calibration: Path, threads: int) -> Path:
    """Name the file of the times on so many threads; that of one thread is the calibration."""
    if threads == 1:
        return calibration
    return calibration.with_name(f"{calibration.stem}.{threads}-threads.json")


class CostModel:
    """Predicted seconds of a layer on a number of threads.

    They are interpolated from times on as many threads, or follow from those on one; see
    thread_scaling.

    Attributes:
        machine: that was measured.
        threads: of a session.
        measured_threads: those of the measurement: ``threads`` or 1.

    """

    def __init__(
        self, calibration: Calibration, threads: int = 1, dispatch: DispatchCost = SPINNING
    ) -> None:
        if calibration.threads not in (1, threads):
            raise ValueError(
                f"times on {threads} threads do not follow from those on {calibration.threads}"
            )
        self.machine = calibration.machine
        self.threads = threads
        self.measured_threads = calibration.threads
        # What was measured on all threads needs no prediction for several.
        self._predicted_threads = 1 if calibration.threads == threads else threads
        self._dispatch = dispatch
        if not calibration.convolutions and calibration != Calibration.shipped():
            self.machine += (
                "; convolutions for the machine that came with fanin, since the calibration has "
                "none: run fanin calibrate"
            )
        self.convolutions = ConvCostModel(
            calibration.convolutions or Calibration.shipped_convolutions(),
            self._predicted_threads,
            dispatch,
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
        """Take the user's calibration of so many threads, else of one, else the shipped one.

        From times on one thread those on several are predicted, with the cost of a dispatch that
        was measured on this machine, or else the library's.

        Raises:
            ExportError: a file of the user's calibration is unusable, with the remedy.

        """
        own, note = None, ""
        path = user_calibration_path()
        if path is not None:
            counts = dict.fromkeys((threads, 1))
            try:
                own = next((n for n in counts if table_path(path, n).is_file()), None)
            except OSError as error:  # as where HOME is another user's
                note = f"; {path} cannot be read ({error.strerror})"
        if path is None or own is None:
            calibration = Calibration.shipped()
        else:
            calibration = _load_for(table_path(path, own), own)
        dispatch = SPINNING
        if threads != calibration.threads:
            try:
                measured = DispatchCalibration.of_this_machine()
            except ValueError as error:
                raise ExportError(str(error)) from error
            dispatch = measured.spinning if measured else SPINNING
        model = cls(calibration, threads, dispatch)
        model.machine += note
        return model

    @property
    def origin(self) -> str:
        """Say in a few words where the times come from."""
        return origin_of_times(self.machine, self.threads, self.measured_threads)

    def dense(self, batch: int, out_features: int, in_features: int) -> float:
        """Predict a dense Gemm."""
        weights = out_features * in_features
        seconds = self._at(self._dense, batch, weights)
        return dense_seconds(seconds, batch, weights, self._predicted_threads, self._dispatch)

    def condensed(self, batch: int, out_features: int, in_features: int, stored: int) -> float:
        """Predict a condensed node of ``stored`` entries, padding included."""
        weights = out_features * in_features
        # Rows that store nothing cost what writing their bias costs; never zero.
        density = max(stored, 1) / weights
        seconds = self._at(self._condensed, batch, weights, density)
        work = Work.of_rows(batch, out_features, in_features)
        return condensed_seconds(seconds, work, self._predicted_threads, self._dispatch)

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
