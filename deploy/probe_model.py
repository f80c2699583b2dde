"""The doctor's model: a few hundred bytes of ONNX, since a serving environment has no onnx package.

One CondensedGemm of 6 inputs and 4 neurons, the third of them ablated and one row padded, without
the function that a runtime without the library falls back to: only the kernel can answer. The bytes
are fanin.export's condensed_layer_model of probe_weight(), which a test compares.
"""

from __future__ import annotations

import base64

import numpy as np

INPUT = np.arange(1, 7, dtype=np.float32).reshape(1, 6)
EXPECTED = np.array([[-1.5, 4.5, 2.0, -4.5]], np.float32)

_BASE64 = (
    "CAkSBWZhbmluOo8DCp4BCgF4CgZ2YWx1ZXMKB2luZGljZXMKBGJpYXMKBHJvd3MKCHJlc2lkdWFsEgF5GgVsYXllciIN"
    "Q29uZGVuc2VkR2VtbSoSCghjbGlwX21heBUAAIB/oAEBKhIKCGNsaXBfbWluFQAAgP+gAQEqEgoLaW5fZmVhdHVyZXMY"
    "BqABAioTCgxvdXRfZmVhdHVyZXMYBKABAjoIYWkuZmFuaW4SD2NvbmRlbnNlZF9sYXllcio0CAMIAxABQgZ2YWx1ZXNK"
    "JAAAgD8AAADAAAAAPwAAgD4AAIA/AAAAAAAAgL8AAIC/AAAAvyojCAMIAxAEQgdpbmRpY2VzShIAAAIABQABAAQABAAA"
    "AAEAAgAqHAgEEAFCBGJpYXNKEAAAAD8AAIC/AAAAQAAAAAAqGAgDEAZCBHJvd3NKDAAAAAABAAAAAwAAACoUCAEQAUII"
    "cmVzaWR1YWxKBAAAAABaGAoBeBITChEIARINCgcSBWJhdGNoCgIIBmIYCgF5EhMKEQgBEg0KBxIFYmF0Y2gKAggEQgQK"
    "ABAUQgwKCGFpLmZhbmluEAE="
)


def probe_model() -> bytes:
    """Return the serialized model, with input ``x`` [batch, 6] and output ``y`` [batch, 4]."""
    return base64.b64decode(_BASE64)


def probe_weight() -> tuple[np.ndarray, np.ndarray]:
    """Return the dense weight [4, 6] and bias [4] of the model; every product of them is exact."""
    weight = np.zeros((4, 6), np.float32)
    weight[0, [0, 2, 5]] = 1, -2, 0.5
    weight[1, [1, 4]] = 0.25, 1
    weight[3, :3] = -1, -1, -0.5
    return weight, np.array([0.5, -1, 2, 0], np.float32)
