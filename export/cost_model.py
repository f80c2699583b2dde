"""How long a layer takes in each form, predicted from measurements of a machine.

``fanin calibrate`` measures dense and condensed layers on a grid of batches, sizes and densities;
between the points times are interpolated linearly in logarithms, which is exact for power laws.
Without a calibration of the user's machine the one that comes with fanin is taken. Each number of
threads has a table of its own; where one is missing, its times are predicted from those on one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from .._base.cpu_name import cpu_name
from ..ort_ops.dispatch_cost import SPINNING, DispatchCost
from .calibration_files import (
    check_threads,
    dispatch_cost,
    own_table,
    parse_table,
    read_table,
    require_threads,
    versioned,
    write_table,
)
from .conv_cost import ConvCostModel, ConvTable
from .layer_costs import LayerCosts, LayerTable
from .quantized_costs import QuantizedCosts
from .report import origin_of_times

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

    @property
    def layers(self) -> LayerTable:
        """The times of dense and condensed layers; raises ValueError if they are no table."""
        return LayerTable(self.batches, self.weights, self.densities, self.dense, self.condensed)

    def save(self, path: Path) -> None:
        """Write the table as JSON; raises OSError with what to do."""
        write_table(path, json.dumps(versioned(asdict(self)), indent=1))

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a table; raises ExportError with the remedy if it is not one of this version."""
        return read_table(path, cls._of)

    @classmethod
    def shipped(cls) -> Calibration:
        """Read the table that comes with fanin."""
        text = resources.files(__package__).joinpath(_SHIPPED).read_text()
        return parse_table(text, _SHIPPED, cls._of)

    @classmethod
    def shipped_convolutions(cls) -> tuple[ConvTable, ...]:
        """Read the tables of convolutions that come with fanin."""
        text = resources.files(__package__).joinpath(_SHIPPED_CONVOLUTIONS).read_text()
        return tuple(map(ConvTable.parse, json.loads(text)))

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Calibration:
        convolutions = tuple(map(ConvTable.parse, fields.pop("convolutions", ())))
        table = cls(**fields, convolutions=convolutions)
        table.layers.require_times("scatter", table.scatter, 2)
        check_threads(table.threads)
        if convolutions or table.threads > 1:
            ConvCostModel(convolutions)
        return table


class CostModel:
    """Predicted seconds of a layer on a number of threads.

    They are interpolated from times on as many threads, or follow from those on one; see
    thread_scaling.

    Attributes:
        machine: that was measured.
        threads: of a session.
        measured_threads: those of the measurement: ``threads`` or 1.
        other_cpu: what to do about a machine that is not this one; empty where it is, or was asked
            for.

    """

    other_cpu = ""

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
        self._layers = LayerCosts(calibration.layers, self._predicted_threads, dispatch)
        self._scatter = np.log(np.asarray(calibration.scatter, np.float64))

    @classmethod
    def of_this_machine(cls, threads: int = 1) -> CostModel:
        """Take the user's calibration of so many threads, else of one, else the shipped one.

        From times on one thread those on several are predicted, with the cost of a dispatch that
        was measured on this machine, or else the library's.

        Raises:
            ExportError: a file of the user's calibration is unusable, with the remedy.

        """
        own = own_table(threads)
        if own.path is None:
            calibration = Calibration.shipped()
        else:
            calibration = Calibration.load(own.path)
            require_threads(own.path, calibration.threads, own.threads)
        dispatch = dispatch_cost() if threads != calibration.threads else SPINNING
        model = cls(calibration, threads, dispatch)
        cpu = cpu_name()
        if cpu is not None and not calibration.machine.startswith(cpu):
            command = "fanin calibrate --of layers" + (f" --threads {threads}" * (threads > 1))
            model.other_cpu = (
                f"those times are of another CPU than this one ({cpu}); {command} measures it"
            )
        model.machine += own.note
        return model

    @cached_property
    def quantized(self) -> QuantizedCosts:
        """The times of 8-bit layers, read where the first one is met.

        Raises:
            ExportError: a file of the user's times of 8-bit layers is unusable, with the remedy.

        """
        return QuantizedCosts.of_this_machine(self.threads)

    @property
    def origin(self) -> str:
        """Say in a few words where the times come from."""
        return origin_of_times(self.machine, self.threads, self.measured_threads)

    def dense(self, batch: int, out_features: int, in_features: int) -> float:
        """Predict a dense Gemm."""
        return self._layers.dense(batch, out_features, in_features)

    def condensed(self, batch: int, out_features: int, in_features: int, stored: int) -> float:
        """Predict a condensed node of ``stored`` entries, padding included."""
        return self._layers.condensed(batch, out_features, in_features, stored)

    def structured(self, batch: int, out_features: int, in_features: int, active: int) -> float:
        """Predict a dense Gemm of the active rows, and putting them in their places.

        The latter as on one thread, whatever their number.
        """
        gemm = self.dense(batch, max(active, 1), in_features)
        if active == out_features:
            return gemm
        return gemm + self._layers.at(self._scatter, batch, out_features * out_features)
