"""An onnx-ir model as one file, or as a model file with a data file beside it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from .._base.atomic import named_errors, publish

EXTERNAL_DATA_THRESHOLD = 16 << 20
"""Bytes of weights above which they go to a data file, unless asked otherwise."""

MAX_INLINE_BYTES = 1 << 30
"""Protobuf cannot hold 2 GiB; half of it leaves room for what is not a weight."""

_INLINE_TENSOR_BYTES = 1024
"""Smaller tensors stay in the model file: tools need the values of shapes and bounds."""


@dataclass(frozen=True)
class StagedModel:
    """A model written to a scratch folder under its final names.

    Attributes:
        path: the model file in the scratch folder.
        data_path: its data file there; None when the weights are inline.

    """

    path: Path
    data_path: Path | None

    @property
    def nbytes(self) -> int:
        """Bytes of both files."""
        return sum(p.stat().st_size for p in (self.path, self.data_path) if p is not None)


def stage_model(model: ir.Model, path: Path, external_data_threshold: int) -> StagedModel:
    """Write the model; weights go to a data file when they have more bytes than the threshold.

    The data file's name holds a hash of the weights. So a model file and a data file that do not
    belong together can never meet, even if the process dies between the two renames of an export
    over an older one.
    """
    with named_errors(path.name):
        return _stage(model, path, external_data_threshold)


def _stage(model: ir.Model, path: Path, external_data_threshold: int) -> StagedModel:
    values = [v.const_value for g in model.graphs() for v in g.initializers.values()]
    large = [v for v in values if v is not None and v.nbytes >= _INLINE_TENSOR_BYTES]
    if not large or sum(tensor.nbytes for tensor in large) <= external_data_threshold:
        # What lies in a data file of the source would otherwise be written as a reference to it.
        ir.save(ir.external_data.load_to_model(model), path)
        return StagedModel(path, None)
    digest = hashlib.sha256()
    for tensor in large:
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.tobytes())
    data_path = path.with_name(f"{path.name}.{digest.hexdigest()[:12]}.data")
    ir.save(model, path, external_data=data_path.name, size_threshold_bytes=_INLINE_TENSOR_BYTES)
    return StagedModel(path, data_path)


def link_notes(path: Path, data_path: Path | None) -> tuple[str, ...]:
    """Say for the report where runtimes do not find the data of a model that is named by a link."""
    if data_path is None or not path.is_symlink():
        return ()
    return (
        f"{path} is a link: runtimes look for the weights beside the name that they are given, so "
        f"open {path.resolve()}",
    )


def publish_model(
    staged: StagedModel, target: Path, keep: Collection[Path] = frozenset()
) -> Path | None:
    """Move both files to their final names, data first, and drop data files of older exports.

    Args:
        staged: what was written.
        target: name of the model, no link.
        keep: resolved paths of data files that another model needs.

    Returns:
        The path of the data file; None when the weights are inline.

    """
    data_path = None
    if staged.data_path is not None:
        data_path = target.with_name(staged.data_path.name)
        publish(staged.data_path, data_path)
    publish(staged.path, target)
    ours = re.compile(re.escape(target.name) + r"\.[0-9a-f]{12}\.data")
    for sibling in target.parent.iterdir():
        old = ours.fullmatch(sibling.name) and sibling != data_path
        if old and sibling.is_file() and sibling.resolve() not in keep:
            sibling.unlink()
    return data_path
