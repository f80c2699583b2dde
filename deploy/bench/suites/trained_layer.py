"""A layer of a trained network, from its run folder or its exported ONNX file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...._base.checksums import find_damage
from ....export.errors import ExportError
from ....ort_ops.format.condensed import CondensedWeight
from ....ort_ops.format.files import array_checksum
from ..requirements import require

_WEIGHTS = "weights.safetensors"
_MASK = ".mask"


class TrainedLayerError(ValueError):
    """The layer does not exist, or its file is damaged."""


@dataclass(frozen=True)
class TrainedLayer:
    """The weights of the layer ``name`` of ``source``, which is a file's or folder's name."""

    source: str
    name: str
    weight: CondensedWeight

    @property
    def title(self) -> str:
        """Name of the layer in reports."""
        return f"{self.name} of {self.source}"


def load_trained_layer(path: Path, name: str | None = None) -> TrainedLayer:
    """Read a sparse layer of a run folder or of an exported ONNX file.

    A convolution's weight becomes that of the equivalent Gemm at each output pixel.

    Args:
        path: the folder or file.
        name: a parameter of the run or a node of the file; None selects the only sparse layer.

    Raises:
        TrainedLayerError: there is no such layer, or the file is damaged.

    """
    layers = _of_run(path) if path.is_dir() else _of_onnx(path)
    listed = ", ".join(layers) or "none"
    if name is None and len(layers) != 1:
        raise TrainedLayerError(f"{path} has these sparse layers: {listed}; name one with --layer")
    if name is not None and name not in layers:
        raise TrainedLayerError(f"{path} has no sparse layer {name!r}; there are: {listed}")
    chosen = name if name is not None else next(iter(layers))
    return TrainedLayer(path.name, chosen, layers[chosen])


def _of_run(folder: Path) -> dict[str, CondensedWeight]:
    safetensors = require("safetensors", "the weights of a run are read with it")
    file = folder / _WEIGHTS
    if not file.is_file():
        raise TrainedLayerError(
            f"{folder} has no {_WEIGHTS}: it is not a run folder, or the run is unfinished; "
            f"fanin train --resume --out {folder} finishes it"
        )
    try:
        with safetensors.safe_open(file, "numpy") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        damage = find_damage(metadata, tensors, lambda name: array_checksum(tensors[name]))
        if damage:
            raise ValueError(f"it is damaged, {damage}")
        masked = sorted(name.removesuffix(_MASK) for name in tensors if name.endswith(_MASK))
        return {
            name: CondensedWeight.from_dense(tensors[name], mask=tensors[name + _MASK])
            for name in masked
        }
    except Exception as error:  # of safetensors or of the format: the file is damaged
        raise TrainedLayerError(f"{file} does not hold a run's weights: {error}") from error


def _of_onnx(path: Path) -> dict[str, CondensedWeight]:
    require("onnx", "models are read with it")
    from ....export.onnx_inspect import condensed_weights

    try:
        return condensed_weights(path)
    except (ExportError, OSError) as error:
        raise TrainedLayerError(str(error)) from error
