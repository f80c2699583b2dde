"""What an ONNX file says of itself, and which other files it wants, without the onnx package.

Serving, benchmarks and export look here before any other reader opens a model.
"""

from .content import ExternalTensor, ModelFile, Node, OpsetImport, read_model_file
from .data_files import DataFileError, external_files, read_checked, require_data_inside
from .wire import ModelFileError

__all__ = [
    "DataFileError",
    "ExternalTensor",
    "ModelFile",
    "ModelFileError",
    "Node",
    "OpsetImport",
    "external_files",
    "read_checked",
    "read_model_file",
    "require_data_inside",
]
