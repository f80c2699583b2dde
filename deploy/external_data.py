"""Refuse weights that a model file looks for outside of its own folder.

A model is data from somewhere else: one that names ``../../etc/passwd`` as its weights must not
make a process read it. Newer releases of ONNX Runtime check this, too; older ones do not.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from .errors import SessionError
from .model_file import ModelFile


def check_external_data(model: Path, content: ModelFile) -> None:
    """Raise SessionError for a location that is absolute, has ``..`` or leads out by a link."""
    folder = model.parent.resolve()
    for tensor in content.external:
        location = tensor.location
        parts = PurePosixPath(location).parts
        outside = PurePosixPath(location).is_absolute() or ".." in parts
        outside = outside or bool(PureWindowsPath(location).drive) or "\0" in location
        if not outside:
            outside = not (folder / location).resolve().is_relative_to(folder)
        if outside:
            raise SessionError(
                f"the weights of '{tensor.name}' lie outside of the model's folder: {location!r}",
                "External data belong beside the model. Do not open this file unless you know "
                "where it comes from; onnx.load and onnx.save_model write it anew.",
                model=model,
            )


def external_files(model: Path, content: ModelFile) -> list[Path]:
    """List the data files that the model is opened with, each once."""
    return sorted({model.parent / tensor.location for tensor in content.external})
