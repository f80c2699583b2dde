"""Other runtimes that compute a sparse layer or a model, each in a process of its own."""

from .csr import csr_engines
from .deepsparse import DEEPSPARSE_PYTHON, deepsparse_engines, deepsparse_model
from .openvino import openvino_engine, openvino_model
from .torch import torch_engine

__all__ = [
    "DEEPSPARSE_PYTHON",
    "csr_engines",
    "deepsparse_engines",
    "deepsparse_model",
    "openvino_engine",
    "openvino_model",
    "torch_engine",
]
