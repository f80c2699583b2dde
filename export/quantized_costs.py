"""How long an 8-bit layer takes, dense in ONNX Runtime and condensed.

The tables that come with fanin were measured on two CPUs with AVX-512 VBMI, with and without AMX.
For other instruction sets their condensed times are scaled; see quantized_cpus. A user's own tables
are taken as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from ..ort_ops.dispatch_cost import SPINNING, DispatchCost
from ..ort_ops.format.conv_geometry import ConvGeometry
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
from .conv_cost import QUANTIZED_KINDS, ConvCostModel, ConvTable, output_pixels
from .layer_costs import LayerCosts, LayerTable
from .quantized_cpus import Cpu
from .report import origin_of_times

Form = Literal["static", "dynamic"]
"""Whether the graph quantizes the input of a layer before it, or the layer does."""

FORMS: tuple[Form, ...] = get_args(Form)

_SHIPPED, _SHIPPED_AMX = "calibration.int8.json", "calibration.int8.amx.json"

_REMEDY = "run fanin calibrate --of int8 to measure this one"


@dataclass(frozen=True)
class QuantizedCalibration:
    """Seconds of 8-bit layers, measured on one machine with one number of threads.

    Attributes:
        machine: the CPU and the kernels that were measured.
        threads: of the sessions that were measured.
        static: of layers from uint8 to uint8: QGemm and QLinearCondensedGemm.
        dynamic: of layers from float32 to float32 that quantize their input:
            DynamicQuantizeMatMul and DynamicQuantizeCondensedGemm.
        convolutions: a table for each of QUANTIZED_KINDS: QLinearConv and QLinearCondensedConv,
            both with the channels last, as in a network.

    """

    machine: str
    threads: int
    static: LayerTable
    dynamic: LayerTable
    convolutions: tuple[ConvTable, ...]

    def save(self, path: Path) -> None:
        """Write the tables as JSON; raises OSError with what to do."""
        write_table(path, _compact(versioned(asdict(self))))

    @classmethod
    def load(cls, path: Path) -> QuantizedCalibration:
        """Read such a file; raises ExportError with the remedy if it is not of this version."""
        return read_table(path, cls._of, " --of int8")

    @classmethod
    def shipped(cls, amx: bool = False) -> QuantizedCalibration:
        """Read the tables that come with fanin, for CPUs with AMX or without."""
        name = _SHIPPED_AMX if amx else _SHIPPED
        text = resources.files(__package__).joinpath(name).read_text()
        return parse_table(text, name, cls._of)

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> QuantizedCalibration:
        for form in FORMS:
            fields[form] = LayerTable(**fields[form])
        tables = [ConvTable.parse(one, quantized=True) for one in fields["convolutions"]]
        fields["convolutions"] = tuple(tables)
        table = cls(**fields)
        if not isinstance(table.machine, str):
            raise ValueError("machine is not a text")
        check_threads(table.threads)
        ConvCostModel(tables, kinds=QUANTIZED_KINDS)
        return table


class QuantizedCosts:
    """Predicted seconds of an 8-bit layer on a number of threads.

    Args:
        calibration: measured times.
        threads: of a session.
        dispatch: cost of starting several threads.
        cpu: whose instruction set the times are scaled to; None takes them as they are.

    Attributes:
        machine: that was measured, and how times follow from it.
        threads: of a session.
        measured_threads: those of the measurement: ``threads`` or 1.

    """

    def __init__(
        self,
        calibration: QuantizedCalibration,
        threads: int = 1,
        dispatch: DispatchCost = SPINNING,
        cpu: Cpu | None = None,
    ) -> None:
        if calibration.threads not in (1, threads):
            raise ValueError(
                f"times on {threads} threads do not follow from those on {calibration.threads}"
            )
        self.machine, self.threads = calibration.machine, threads
        self.measured_threads = calibration.threads
        predicted = 1 if calibration.threads == threads else threads
        self._layers = {
            form: LayerCosts(table, predicted, dispatch, weight_bytes=1)
            for form, table in (("static", calibration.static), ("dynamic", calibration.dynamic))
        }
        self._convolutions = ConvCostModel(
            calibration.convolutions, predicted, dispatch, QUANTIZED_KINDS, weight_bytes=1
        )
        self._cpu = cpu

    @classmethod
    def of_this_machine(cls, threads: int = 1) -> QuantizedCosts:
        """Take the user's tables of so many threads, else of one, else the shipped ones.

        The shipped ones are scaled to the CPU's instruction set, or to that FANIN_ISA names.

        Raises:
            ExportError: a file of the user's is unusable, with the remedy.
            ValueError: FANIN_ISA names no instruction set of this CPU.

        """
        own = own_table(threads, quantized=True)
        if own.path is None:
            cpu = Cpu.of_this_machine()
            shipped = QuantizedCalibration.shipped(cpu.amx)
            model = cls(shipped, threads, dispatch_cost() if threads > 1 else SPINNING, cpu)
            model.machine += f", which came with fanin{cpu.note}: {_REMEDY}{own.note}"
            return model
        calibration = QuantizedCalibration.load(own.path)
        require_threads(own.path, calibration.threads, own.threads)
        predicted = threads != calibration.threads
        return cls(calibration, threads, dispatch_cost() if predicted else SPINNING)

    @property
    def origin(self) -> str:
        """Say in a few words where the times come from."""
        times = origin_of_times(self.machine, self.threads, self.measured_threads)
        return f"8-bit layers: {times}"

    def dense(self, form: Form, batch: int, out_features: int, in_features: int) -> float:
        """Predict ONNX Runtime's own layer."""
        return self._layers[form].dense(batch, out_features, in_features)

    def condensed(
        self, form: Form, batch: int, out_features: int, in_features: int, stored: int
    ) -> float:
        """Predict a condensed node of ``stored`` entries, padding included."""
        seconds = self._layers[form].condensed(batch, out_features, in_features, stored)
        return seconds * self._slowdown(batch)

    def dense_conv(self, geometry: ConvGeometry, batch: int, sizes: Sequence[int]) -> float:
        """Predict ONNX Runtime's own convolution of images of ``sizes``."""
        return self._convolutions.dense(geometry, batch, sizes)

    def condensed_conv(
        self, geometry: ConvGeometry, batch: int, sizes: Sequence[int], stored: int
    ) -> float:
        """Predict a condensed convolution of ``stored`` entries, padding included."""
        seconds = self._convolutions.condensed(geometry, batch, sizes, stored)
        return seconds * self._slowdown(batch * output_pixels(geometry, sizes))

    def _slowdown(self, rows: int) -> float:
        return 1.0 if self._cpu is None else self._cpu.slowdown(rows)


_LAST_AXIS = re.compile(r"\[[^\[\]{}]*\]")


def _compact(fields: object) -> str:
    """Write JSON with each list of numbers on a line, and four digits of each."""
    text = json.dumps(_rounded(fields), indent=1)
    return _LAST_AXIS.sub(lambda found: "[" + " ".join(found[0][1:-1].split()) + "]", text)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
