"""A network in 8 bits: quantized by ONNX Runtime's tools with random inputs, and condensed.

Times do not depend on how good the ranges are; accuracy does, and says nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ..engines.ort import OrtEngine
from ..engines.peers import peer_model
from ..engines.peers.deepsparse_int8 import CalibrationInputs, save_for_quantizers
from ..engines.protocol import Engine, UnavailableEngine
from ..requirements import require

_DYNAMIC = ("Gemm", "MatMul")
"""Convolutions stay float32 in the dynamic form: ConvInteger is several times slower than Conv."""


@dataclass(frozen=True)
class QuantizedNetwork:
    """Makes the files of a network in 8 bits, each where an engine first needs it.

    Attributes:
        dense: the dense network in float32.
        folder: where the files go.
        calibration: inputs by name, whose ranges the static form's activations get.
        batch, threads: what ``--policy auto`` condenses for.

    """

    dense: Path
    folder: Path
    calibration: Sequence[Mapping[str, np.ndarray]]
    batch: int
    threads: int

    def path_of(self, name: str) -> Path:
        """Return the file of an engine of ONNX Runtime, such as dense-int8-static.

        Raises whatever the tools raise.
        """
        form, _, kind = name.partition("-int8-")
        make = {"static": self._static, "dynamic": self._dynamic}[kind]
        return self._condensed(make()) if form == "condensed" else make()

    def _float32(self) -> Path:
        # The tools write beside their source, and do not find weights in files of their own.
        return self._once("float32", partial(save_for_quantizers, self.dense))

    def _static(self) -> Path:
        tools = require("onnxruntime.quantization", "networks are quantized by it")
        make = partial(
            tools.quantize_static,
            self._float32(),
            calibration_data_reader=CalibrationInputs(self.calibration),
            quant_format=tools.QuantFormat.QDQ,
            per_channel=True,
            activation_type=tools.QuantType.QUInt8,
            weight_type=tools.QuantType.QInt8,
        )
        return self._once("static", make)

    def _dynamic(self) -> Path:
        tools = require("onnxruntime.quantization", "networks are quantized by it")
        make = partial(
            tools.quantize_dynamic,
            self._float32(),
            per_channel=True,
            weight_type=tools.QuantType.QInt8,
            op_types_to_quantize=list(_DYNAMIC),
        )
        return self._once("dynamic", make)

    def _condensed(self, dense: Path) -> Path:
        from ....export import convert

        path = dense.with_suffix(".condensed.onnx")
        if not path.is_file():
            convert(dense, path, batch=self.batch, threads=self.threads, verify=False)
        return path

    def _once(self, kind: str, make: Callable[[Path], object]) -> Path:
        path = self.folder / f"{kind}.onnx"
        if not path.is_file():
            make(path)
        return path


def int8_model_engine(
    name: str,
    network: QuantizedNetwork,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    deepsparse_python: Path,
) -> Engine:
    """Make an engine of a network in 8 bits, of one input and one output in float32."""
    try:
        if name.startswith(("dense", "condensed")):
            path, library = network.path_of(name), name.startswith("condensed")
            return OrtEngine(
                name, path.name, path, network.threads, library=library, precision="int8"
            )
        deepsparse = name == "deepsparse-int8"
        return peer_model(
            name.removesuffix("-int8"),
            network.dense if deepsparse else network.path_of("dense-int8-static"),
            inputs,
            outputs,
            network.threads,
            network.folder,
            deepsparse_python,
            calibration=network.calibration,
        )
    except Exception as error:  # of the quantizers and of the export: the others go on
        return UnavailableEngine(name, f"{type(error).__name__}: {error}")
