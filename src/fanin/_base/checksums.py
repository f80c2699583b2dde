"""Checksums of a safetensors file, kept in its own metadata (docs/formats.md).

safetensors has none of its own: a bit that flips on a disk or on the way changes a weight, and
nothing shows it. SHA-256 is in the standard library and takes 0.6 s for a GiB with the CPU's own
instructions for it, less than reading as much from a disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence

TENSORS, METADATA = "checksums", "checksum"


def tensor_checksum(dtype: str, shape: Sequence[int], data: memoryview) -> str:
    """Return the checksum of a tensor: ``dtype`` as NumPy names it, ``data`` its bytes in C order.

    It covers all three.
    """
    digest = hashlib.sha256(f"{dtype} {list(shape)}\n".encode())
    digest.update(data)
    return digest.hexdigest()


def with_checksums(metadata: Mapping[str, str], tensors: Mapping[str, str]) -> dict[str, str]:
    """Add to a file's metadata the checksums of its tensors by name, and that of the metadata."""
    complete = {**metadata, TENSORS: json.dumps(tensors, sort_keys=True)}
    return {**complete, METADATA: _of_metadata(complete)}


def find_damage(
    metadata: Mapping[str, str], names: Collection[str], checksum_of: Callable[[str], str]
) -> str | None:
    """Say what of a file is not as it was written; None when all of it is.

    Files without checksums are older ones: nothing is known of them, and nothing is said.

    Args:
        metadata: of the file.
        names: of its tensors.
        checksum_of: computes the checksum of the tensor of a name.

    """
    if TENSORS not in metadata and METADATA not in metadata:
        return None
    rest = {key: value for key, value in metadata.items() if key != METADATA}
    if metadata.get(METADATA) != _of_metadata(rest):
        return "its metadata are not what was written"
    try:
        written = json.loads(rest[TENSORS])
    except (LookupError, ValueError, RecursionError):
        return f"its metadata have no {TENSORS}"
    if not isinstance(written, dict) or written.keys() != set(names):
        return "its tensors are not those that its metadata list"
    for name in names:
        if checksum_of(name) != written[name]:
            return f"the checksum of {name} is wrong"
    return None


def _of_metadata(metadata: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode()).hexdigest()
