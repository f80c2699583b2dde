"""What a conversion would make of an ONNX file, as a value that prints itself."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from .._base.tables import Printed, Sheet
from .dimensions import Dims
from .forms import Chooser
from .layer_sheet import layer_sheet
from .onnx_convert import plan_conversion
from .report import SPARSE, LayerReport, note_on_sparsity


@dataclass(frozen=True)
class ConversionPlan(Printed):
    """What :func:`.convert` would do.

    Attributes:
        path: the file.
        batch: that "auto" would decide for.
        threads: of a session that "auto" would decide for.
        device: that "auto" would decide for.
        dims: sizes of symbolic dimensions by name.
        layers: every weight of two or more dimensions.
        times: where the predicted times come from.
        quantized_times: where those of layers in 8 bits come from; empty where none decide.
        other_cpu: what to do about times of another CPU than this one; empty for times of this one.
        notes: whatever else the user should know.

    """

    path: str
    batch: int
    threads: int
    device: str
    dims: dict[str, int]
    layers: tuple[LayerReport, ...]
    times: str
    quantized_times: str
    other_cpu: str
    notes: tuple[str, ...]

    def sheet(self) -> Sheet:
        """Lay out the layers, with the origin of the times below."""
        asked = f"--threads {self.threads}" if self.device == "cpu" else f"--device {self.device}"
        sizes = "".join(f" --dim {name}={size}" for name, size in self.dims.items())
        title = f"fanin export {self.path} --batch {self.batch} {asked}{sizes} would write"
        notes = (self.times, self.other_cpu, self.quantized_times, *self.notes)
        return layer_sheet(self.layers, title, tuple(filter(None, notes)))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        return asdict(self) | {"layers": [layer.to_dict() for layer in self.layers]}

    def to_json(self) -> str:
        """Write all fields as a JSON object."""
        return json.dumps(self.to_dict(), indent=2)


def describe_conversion(
    path: str | os.PathLike[str],
    *,
    batch: int = 1,
    threads: int = 1,
    device: str = "cpu",
    dims: Dims | None = None,
) -> ConversionPlan:
    """Say what :func:`.convert` would make of a file; arguments and errors are those of it."""
    layers = plan_conversion(path, batch=batch, threads=threads, device=device, dims=dims)
    return describe_layers(path, layers, batch=batch, threads=threads, device=device, dims=dims)


def describe_layers(
    path: str | os.PathLike[str],
    layers: tuple[LayerReport, ...],
    *,
    batch: int = 1,
    threads: int = 1,
    device: str = "cpu",
    dims: Dims | None = None,
) -> ConversionPlan:
    """Say the same of the layers of a plan that is there already."""
    chooser = Chooser.of("auto", batch, False, threads, device)
    return ConversionPlan(
        path=os.fspath(path),
        batch=batch,
        threads=threads,
        device=device,
        dims=dict(dims or {}),
        layers=layers,
        times=chooser.costs.origin,
        quantized_times=chooser.quantized_times(layers),
        other_cpu=chooser.other_cpu,
        notes=note_on_sparsity(layers, None, SPARSE),
    )
