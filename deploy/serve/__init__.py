"""Serve models over HTTP with the Open Inference Protocol V2 (docs/serving.md).

Importing this loads neither the web framework nor onnxruntime: only ``app``, ``server``,
``metrics`` and ``ray_app`` need the extra ``[serve]``, the last one Ray as well.
"""

from .settings import ModelSource, ServeSettings, SettingsError

__all__ = ["ModelSource", "ServeSettings", "SettingsError"]
