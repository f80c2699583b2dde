"""The doctor's model: a few hundred bytes of ONNX, since a serving environment has no onnx package.

One CondensedGemm of 6 inputs and 4 neurons, the third of them ablated and one row padded, without
the function that other runtimes fall back to. tests/deploy/test_probe_model.py makes it again from
``weight()`` and compares.
"""

from __future__ import annotations

import base64

import numpy as np

INPUT = np.arange(1, 7, dtype=np.float32).reshape(1, 6)
EXPECTED = np.array([[-1.5, 4.5, 2.0, -4.5]], np.float32)

_BASE64 = (
    "CAkSBWZhbmluOtwCCnYKAVgKBnZhbHVlcwoHaW5kaWNlcwoEYmlhcwoEcm93cwoIcmVzaWR1YWwSAVkaBXByb2JlIg1D"
    "b25kZW5zZWRHZW1tKhIKC2luX2ZlYXR1cmVzGAagAQIqEwoMb3V0X2ZlYXR1cmVzGASgAQI6CGFpLmZhbmluEgVwcm9i"
    "ZSo0CAMIAxABQgZ2YWx1ZXNKJAAAgD8AAADAAAAAPwAAgD4AAIA/AAAAAAAAgL8AAIC/AAAAvyojCAMIAxAEQgdpbmRp"
    "Y2VzShIAAAIABQABAAQABAAAAAEAAgAqHAgEEAFCBGJpYXNKEAAAAD8AAIC/AAAAQAAAAAAqGAgDEAZCBHJvd3NKDAAA"
    "AAABAAAAAwAAACoUCAEQAUIIcmVzaWR1YWxKBAAAAABaGAoBWBITChEIARINCgcSBWJhdGNoCgIIBmIYCgFZEhMKEQgB"
    "Eg0KBxIFYmF0Y2gKAggEQgQKABAUQgwKCGFpLmZhbmluEAE="
)


def probe_model() -> bytes:
    """Return the serialized model."""
    return base64.b64decode(_BASE64)
