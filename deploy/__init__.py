"""Run exported models in stock ONNX Runtime: sessions, benchmarks, the doctor.

Importing this loads neither torch nor onnxruntime. ``fanin.deploy.bench`` and
``fanin.deploy.doctor`` are imported by name.
"""

from .errors import SessionError
from .session import open_session

__all__ = ["SessionError", "open_session"]
