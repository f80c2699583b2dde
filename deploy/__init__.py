"""Run exported models in stock ONNX Runtime: sessions, server, benchmarks, doctor.

Importing this package loads neither torch nor onnxruntime. Import ``fanin.deploy.bench``,
``fanin.deploy.doctor`` and ``fanin.deploy.serve`` by name.
"""

from .errors import SessionError
from .session import open_session

__all__ = ["SessionError", "open_session"]
