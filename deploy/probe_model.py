"""The doctor's tiny models, as bytes, because serving environments lack the onnx package.

Each has a single node without a fallback function, so only the kernel can answer. A test compares
the bytes with what fanin.export writes for the layers of probe_layers().
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Probe:
    """A model of one node with input ``x`` and output ``y``, and one test case for it."""

    op: str
    encoded: str
    x: np.ndarray
    expected: np.ndarray

    @property
    def model(self) -> bytes:
        """The serialized model; its batch is symbolic."""
        return base64.b64decode(self.encoded)


_GEMM = (
    "CAkSBWZhbmluOo8DCp4BCgF4CgZ2YWx1ZXMKB2luZGljZXMKBGJpYXMKBHJvd3MKCHJlc2lkdWFsEgF5GgVsYXllciIN"
    "Q29uZGVuc2VkR2VtbSoSCghjbGlwX21heBUAAIB/oAEBKhIKCGNsaXBfbWluFQAAgP+gAQEqEgoLaW5fZmVhdHVyZXMY"
    "BqABAioTCgxvdXRfZmVhdHVyZXMYBKABAjoIYWkuZmFuaW4SD2NvbmRlbnNlZF9sYXllcio0CAMIAxABQgZ2YWx1ZXNK"
    "JAAAgD8AAADAAAAAPwAAgD4AAIA/AAAAAAAAgL8AAIC/AAAAvyojCAMIAxAEQgdpbmRpY2VzShIAAAIABQABAAQABAAA"
    "AAEAAgAqHAgEEAFCBGJpYXNKEAAAAD8AAIC/AAAAQAAAAAAqGAgDEAZCBHJvd3NKDAAAAAABAAAAAwAAACoUCAEQAUII"
    "cmVzaWR1YWxKBAAAAABaGAoBeBITChEIARINCgcSBWJhdGNoCgIIBmIYCgF5EhMKEQgBEg0KBxIFYmF0Y2gKAggEQgQK"
    "ABAUQgwKCGFpLmZhbmluEAE="
)
_CONV = (
    "CAkSBWZhbmluOuIDCvwBCgF4CgZ2YWx1ZXMKB2luZGljZXMKBGJpYXMKBHJvd3MKCHJlc2lkdWFsEgF5GgVsYXllciINQ2"
    "9uZGVuc2VkQ29udioSCghjbGlwX21heBUAAIB/oAEBKhIKCGNsaXBfbWluFQAAgP+gAQEqEgoJZGlsYXRpb25zQAFAAaAB"
    "ByoMCgVncm91cBgBoAECKhIKC2luX2NoYW5uZWxzGAKgAQIqFQoMa2VybmVsX3NoYXBlQAJAAqABByoTCgxvdXRfY2hhbm"
    "5lbHMYA6ABAioRCgRwYWRzQABAAUABQACgAQcqEAoHc3RyaWRlc0ABQAKgAQc6CGFpLmZhbmluEg5jb25kZW5zZWRfY29u"
    "diooCAIIAxABQgZ2YWx1ZXNKGAAAgD8AAADAAAAAPwAAgD4AAIA/AAAAACodCAIIAxAEQgdpbmRpY2VzSgwBAAYABwAAAA"
    "UABQAqGAgDEAFCBGJpYXNKDAAAAD8AAIC/AAAAQCoUCAIQBkIEcm93c0oIAAAAAAIAAAAqFAgBEAFCCHJlc2lkdWFsSgQA"
    "AAAAWiAKAXgSGwoZCAESFQoHEgViYXRjaAoCCAIKAggCCgIIA2IgCgF5EhsKGQgBEhUKBxIFYmF0Y2gKAggDCgIIAgoCCA"
    "JCBAoAEBRCDAoIYWkuZmFuaW4QAQ=="
)

PROBES = (
    # 6 inputs, 4 neurons, the third of them ablated; one row is padded.
    Probe(
        "CondensedGemm",
        _GEMM,
        np.arange(1, 7, dtype=np.float32).reshape(1, 6),
        np.array([[-1.5, 4.5, 2.0, -4.5]], np.float32),
    ),
    # 2 channels of 2 x 3 pixels, 3 filters of 2 x 2, the second of them ablated; one row is padded.
    # Strides (1, 2), padding on the right and at the bottom.
    Probe(
        "CondensedConv",
        _CONV,
        np.arange(1, 13, dtype=np.float32).reshape(1, 2, 2, 3),
        np.array(
            [[[[6.5, -12.5], [4.5, 6.5]], [[-1, -1], [-1, -1]], [[9, 11.5], [12, 15.25]]]],
            np.float32,
        ),
    ),
)


def probe_layers() -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Return the dense weight and bias of each of PROBES; all their products are exact."""
    gemm = np.zeros((4, 6), np.float32)
    gemm[0, [0, 2, 5]] = 1, -2, 0.5
    gemm[1, [1, 4]] = 0.25, 1
    gemm[3, :3] = -1, -1, -0.5
    conv = np.zeros((3, 2, 2, 2), np.float32)
    conv[0].flat[[1, 6, 7]] = 1, -2, 0.5
    conv[2].flat[[0, 5]] = 0.25, 1
    biases = np.array([0.5, -1, 2, 0], np.float32)
    return (gemm, biases), (conv, biases[:3])
