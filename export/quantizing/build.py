"""Quantize a set of layers, and condense the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ..model_file import EXTERNAL_DATA_THRESHOLD, StagedModel, stage_model
from ..onnx_convert import convert, plan_conversion
from ..report import ExportReport
from .dynamic import quantize_dynamic
from .float_model import FloatModel, Layer
from .samples import Samples
from .static import Grid, Method, quantize_static, read_grids, round_sums_once

_LARGE = 1 << 30
"""Bytes of weights above which the quantizer gets a data file: protobuf ends at 2 GiB."""

_PREPROCESSED = ("onnx.quant.pre_process", "onnxruntime.quant")
"""Metadata that tells the quantizer that norms are folded and shapes are known."""


@dataclass(frozen=True)
class Form:
    """How sparse layers are chosen and checked; as the arguments of convert."""

    policy: str
    batch: int
    threads: int
    min_sparsity: float
    verify: bool


@dataclass(frozen=True)
class Built:
    """A converted file in the scratch folder, and what the conversion says of it."""

    staged: StagedModel
    report: ExportReport


@dataclass
class Builder:
    """Builds files of one float model.

    Attributes:
        floats: the model.
        scratch: a folder.
        name: of the file that is to be.
        samples: to find the ranges of activations on; None lets each run find them.
        method: how they follow from the samples.
        form: of sparse layers.
        compared: whose first run the conversion is compared on.

    """

    floats: FloatModel
    scratch: Path
    name: str
    samples: Samples | None
    method: Method
    form: Form
    compared: Samples
    _made: tuple[frozenset[str], ir.Model] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Write the float model for the quantizer."""
        model, (key, value) = self.floats.model, _PREPROCESSED
        model.metadata_props[key] = value
        staged = stage_model(model, self.scratch / "float.onnx", EXTERNAL_DATA_THRESHOLD)
        del model.metadata_props[key]
        self._float_path = staged.path

    def grids(self, layers: Sequence[Layer]) -> dict[str, Grid] | None:
        """Return the grids of the inputs of layers, by node; None where each run finds them."""
        return None if self.samples is None else read_grids(self._quantized(layers), layers)

    def build(self, layers: Sequence[Layer]) -> Built:
        """Quantize these layers, and convert.

        Raises:
            ExportError: the quantizer refuses, or the conversion does not equal what it wrote.

        """
        form: dict[str, Any] = {
            "policy": self.form.policy,
            "batch": self.form.batch,
            "threads": self.form.threads,
            "min_sparsity": self.form.min_sparsity,
        }
        model, path = self._quantized(layers), self.scratch / "quantized.onnx"
        stage_model(model, path, EXTERNAL_DATA_THRESHOLD)
        if self.samples is not None:
            plan = plan_conversion(path, **form)
            condensed = [x for layer in plan if layer.decision == "condensed" for x in layer.nodes]
            if round_sums_once(model, condensed):
                stage_model(model, path, EXTERNAL_DATA_THRESHOLD)
        self._made = None  # the sums may have been changed
        folder = self.scratch / "converted"
        folder.mkdir(exist_ok=True)
        target = folder / self.name
        report = convert(
            path,
            target,
            **form,
            inputs=[self.compared.feeds[0]],
            verify=self.form.verify,
        )
        data_path = report.data_path and Path(report.data_path)
        return Built(StagedModel(target, data_path or None), report)

    def _quantized(self, layers: Sequence[Layer]) -> ir.Model:
        key = frozenset(layer.node for layer in layers)
        if self._made is None or self._made[0] != key:
            out = self.scratch / "from_quantizer.onnx"
            large = self.floats.nbytes > _LARGE
            if self.samples is None:
                model = quantize_dynamic(self._float_path, out, layers, large)
            else:
                model = quantize_static(
                    self._float_path, out, layers, self.samples, self.method, large
                )
            self._made = (key, model)
        return self._made[1]
