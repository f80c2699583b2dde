"""Checksums of a safetensors file, stored in its own metadata (docs/formats.md).

The format has none of its own, so a bit flipped on disk or in transit would silently change a
weight. SHA-256 is in the standard library and, with the CPU's instructions for it, takes 0.6 s per
GiB, less than reading as much from a disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence

TENSORS, METADATA = "checksums", "checksum"


def tensor_checksum(dtype: str, shape: Sequence[int], data: memoryview) -> str:
    """Return the checksum of a tensor, which covers its type, shape and content.

    Args:
        dtype: NumPy's name of the type.
        shape: The shape.
        data: The bytes in C order.

    """
    digest = hashlib.sha256(f"{dtype} {list(shape)}\n".encode())
    digest.update(data)
    return digest.hexdigest()


def with_checksums(metadata: Mapping[str, str], tensors: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a file with the tensors' checksums and its own checksum added."""
    complete = {**metadata, TENSORS: json.dumps(tensors, sort_keys=True)}
    return {**complete, METADATA: _of_metadata(complete)}


def find_damage(
    metadata: Mapping[str, str], names: Collection[str], checksum_of: Callable[[str], str]
) -> str | None:
    """Check a file against its checksums.

    Args:
        metadata: The file's metadata.
        names: Names of its tensors.
        checksum_of: Computes the checksum of the tensor with a given name.

    Returns:
        What is damaged, or None if nothing is. Files without checksums are from older versions and
        pass.

    """
    if TENSORS not in metadata and METADATA not in metadata:
        return None
    rest = {key: value for key, value in metadata.items() if key != METADATA}
    if metadata.get(METADATA) != _of_metadata(rest):
        return "its metadata has been changed"
    try:
        written = json.loads(rest[TENSORS])
    except (LookupError, ValueError, RecursionError):
        return f"its metadata has no {TENSORS}"
    if not isinstance(written, dict) or written.keys() != set(names):
        return "its tensors are not those listed in its metadata"
    for name in names:
        if checksum_of(name) != written[name]:
            return f"the checksum of {name} is wrong"
    return None


def _of_metadata(metadata: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode()).hexdigest()
