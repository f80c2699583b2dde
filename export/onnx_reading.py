"""The one way in which an ONNX file from elsewhere is read."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from ..onnx_file import DataFileError, ModelFileError, read_checked
from .errors import ExportError


def read_proto(path: Path, *, weights: bool = False) -> onnx.ModelProto:
    """Read a model, once it is known that its weights lie in files of its own folder.

    Args:
        path: the model, in protobuf whatever its name ends in.
        weights: read the data files, too.

    Raises:
        FileNotFoundError: there is no such file.
        ExportError: it is no ONNX model, its weights lie elsewhere, or a data file is missing.
        OSError: it cannot be read.

    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file")
    try:
        read_checked(path)
        # With a format by the name, another parser would see another model than the check saw.
        return onnx.load(path, "protobuf", load_external_data=weights)
    except DataFileError as error:
        raise ExportError(f"{path}: {error}; external data belong beside the model") from error
    except (ModelFileError, DecodeError) as error:
        raise ExportError(f"{path} is not an ONNX model or is damaged: {error}") from error
    except onnx.checker.ValidationError as error:
        raise ExportError(f"{path}: its data file is missing or damaged: {error}") from error
