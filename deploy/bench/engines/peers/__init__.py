"""Other runtimes that compute a sparse layer or a model, each in a process of its own."""

from .child_process import DEEPSPARSE_PYTHON
from .int8 import int8_peer_engines
from .runtimes import peer_engines, peer_model

__all__ = ["DEEPSPARSE_PYTHON", "int8_peer_engines", "peer_engines", "peer_model"]
