"""Other runtimes that compute a sparse layer or a model, each in a process of its own."""

from .child_process import DEEPSPARSE_PYTHON
from .runtimes import peer_engines, peer_model

__all__ = ["DEEPSPARSE_PYTHON", "peer_engines", "peer_model"]
