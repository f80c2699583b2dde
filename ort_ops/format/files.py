"""Condensed layers as one safetensors file (docs/formats.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..._base.atomic import publish, staging_folder
from ..._base.checksums import find_damage, tensor_checksum, with_checksums
from .condensed import CondensedWeight

FORMAT = "fanin.condensed"
FORMAT_VERSION = 1
_PARTS = ("values", "indices", "rows", "bias")


def save_condensed(path: str | Path, layers: Mapping[str, CondensedWeight]) -> None:
    """Write layers by name, atomically replacing an existing file.

    Raises:
        ValueError: ``layers`` is empty, or a layer name is.
        OSError: the folder is missing or cannot be written; an existing file stays unchanged.

    """
    from safetensors.numpy import save_file

    path = Path(path)
    if not layers or not all(layers):
        raise ValueError("save_condensed needs at least one layer, each with a name")
    tensors = {f"{name}.{part}": getattr(w, part) for name, w in layers.items() for part in _PARTS}
    metadata = {"format": FORMAT, "format_version": str(FORMAT_VERSION)}
    metadata |= {f"{name}.in_features": str(w.in_features) for name, w in layers.items()}
    checksums = {name: array_checksum(array) for name, array in tensors.items()}
    metadata = with_checksums(metadata, checksums)
    with staging_folder(path) as scratch:
        save_file(tensors, scratch / path.name, metadata=metadata)
        publish(scratch / path.name, path)


def load_condensed(path: str | Path) -> dict[str, CondensedWeight]:
    """Read a file of :func:`save_condensed` and validate every layer.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, of the wrong kind or version, or a layer breaks the format;
            the message names file, layer and place.

    """
    import ml_dtypes  # noqa: F401, registers bfloat16 with NumPy
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            _require_version(path, metadata)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, AttributeError, TypeError) as error:  # types that NumPy lacks
        raise ValueError(f"{path} is not a safetensors file or is damaged: {error}") from error
    damage = find_damage(metadata, tensors, lambda name: array_checksum(tensors[name]))
    if damage:
        raise ValueError(f"{path} is damaged: {damage}; get it again from where it was written")
    layers = {}
    for key, in_features in metadata.items():
        name, _, field = key.rpartition(".")
        if field == "in_features":
            layers[name] = _layer(path, name, in_features, tensors)
    if tensors:
        raise ValueError(
            f"{path}: {sorted(tensors)[0]} belongs to no layer that the metadata list; "
            "the file was not written by save_condensed or was changed since"
        )
    return layers


def array_checksum(array: np.ndarray) -> str:
    """Return the checksum that fanin's files store for an array."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return tensor_checksum(str(array.dtype), array.shape, data.data)


def _require_version(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} has the format {metadata.get('format')!r} in its metadata, not {FORMAT!r}"
        )
    if metadata.get("format_version") != str(FORMAT_VERSION):
        raise ValueError(
            f"{path} has format version {metadata.get('format_version')!r}, this fanin reads "
            f"{FORMAT_VERSION}; read it with the fanin that wrote it"
        )


def _layer(
    path: Path, name: str, in_features: str, tensors: dict[str, np.ndarray]
) -> CondensedWeight:
    try:
        parts = {part: tensors.pop(f"{name}.{part}") for part in _PARTS}
    except KeyError as error:
        raise ValueError(f"{path}: layer {name!r} lacks the tensor {error}") from error
    bias = parts["bias"]
    try:
        return CondensedWeight(
            **parts,
            in_features=int(in_features),
            out_features=bias.shape[0] if bias.ndim else 0,
        )
    except ValueError as error:
        raise ValueError(f"{path}: layer {name!r}: {error}") from error
