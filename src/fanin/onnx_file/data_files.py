"""External data files of a model, which must be in the model's own folder.

A model is untrusted input: one that names ``../../etc/passwd`` as its weights must not make a
process read it. Newer releases of ONNX Runtime check this, too; older ones and other readers do
not.

The cache of Hugging Face keeps files in ``blobs`` and has a folder of links to them for each
revision. So where the model itself is a link, links of its data files may lead to the folder that
its own leads to.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath

from .content import ModelFile, read_model_file
from .wire import ModelFileError

_IN_MEMORY = "*/_ORT"
"""Prefix of ONNX Runtime's in-memory tensors, whose offset is an address in the process."""

_NO_FILE = (errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)


class DataFileError(ModelFileError):
    """A tensor's data is not in a file of the model's own folder."""


def read_checked(model: Path) -> ModelFile:
    """Scan a model and refuse data files outside its folder.

    Args:
        model: The ONNX file.

    Returns:
        Its content.

    Raises:
        DataFileError: If a data file is outside the folder.
        ModelFileError: If it is not an ONNX model.
        OSError: If it cannot be read.

    """
    content = read_model_file(model)
    require_data_inside(model, content)
    return content


def require_data_inside(model: Path, content: ModelFile) -> None:
    """Raise DataFileError if a tensor's location is not a file in the model's folder.

    Nor one beside the file that the model is a link to. Links are followed.

    The caller that opens the model reports a missing file.
    """
    folder = model.parent.resolve()
    linked = model.resolve().parent if model.is_symlink() else folder
    checked: set[str] = set()
    for tensor in content.external:
        if tensor.location in checked:
            continue
        problem = _problem(folder, linked, tensor.location)
        if problem:
            raise DataFileError(f"the weights of '{tensor.name}' {problem}: {tensor.location!r}")
        checked.add(tensor.location)


def _problem(folder: Path, linked: Path, location: str) -> str | None:
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    if not location or location.startswith(_IN_MEMORY) or "\0" in location:
        return "have no file's name as their location"
    outside = "lie outside of the model's folder"
    if posix.is_absolute() or windows.drive or ".." in (*posix.parts, *windows.parts):
        return outside
    try:
        file = (folder / location).resolve()
        if not file.is_relative_to(folder) and file.parent != linked:
            return outside
        mode = os.stat(file).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except RuntimeError:
        return "are behind a loop of links"
    except OSError as error:
        if error.errno in _NO_FILE:
            return f"lie in a file that cannot be looked up ({error.strerror})"
        raise
    return None if stat.S_ISREG(mode) else "lie in what is not a regular file"


def external_files(model: Path, content: ModelFile) -> list[Path]:
    """Return the data files of a model, each once."""
    return sorted({model.parent / tensor.location for tensor in content.external})
