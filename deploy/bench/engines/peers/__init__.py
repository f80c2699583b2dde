"""Other runtimes that compute a sparse layer, each in a process of its own."""

from .csr_forms import csr_engines
from .deepsparse_forms import deepsparse_engines
from .model_forms import deepsparse_model, openvino_model
from .openvino_forms import openvino_engine
from .torch_forms import torch_engine

__all__ = [
    "csr_engines",
    "deepsparse_engines",
    "deepsparse_model",
    "openvino_engine",
    "openvino_model",
    "torch_engine",
]
