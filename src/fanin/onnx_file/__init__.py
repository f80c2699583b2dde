"""Scans ONNX files without the onnx package: nodes, opset imports, external data files.

Serving, benchmarks and export scan a model before any other reader opens it.
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
