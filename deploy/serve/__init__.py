"""Serve models over HTTP and gRPC with the Open Inference Protocol V2 (docs/serving.md).

Importing this package loads neither the web framework nor onnxruntime. Only ``app``, ``server`` and
``metrics`` need the extra ``[serve]``; ``ray_app`` needs Ray as well, ``grpc_api`` the extra
``[grpc]``, ``otel`` the extra ``[otel]``.
"""

from .settings import ModelSource, ServeSettings, SettingsError

__all__ = ["ModelSource", "ServeSettings", "SettingsError"]
