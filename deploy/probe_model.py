"""The doctor's tiny models, as bytes, because serving environments lack the onnx package.

Each has a single node without a fallback function, so only the kernel can answer. A test compares
the bytes with what fanin.export, or onnx, writes for the layers of probe_layers().
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
_QLINEAR_GEMM = (
    "CAk6ywQK3gEKAXgKB3hfc2NhbGUKDHhfemVyb19wb2ludAoGdmFsdWVzCgx2YWx1ZXNfc2NhbGUKB2luZGljZXMKBGJp"
    "YXMKBHJvd3MKB3lfc2NhbGUKDHlfemVyb19wb2ludAoIcmVzaWR1YWwKDnJlc2lkdWFsX3NjYWxlChNyZXNpZHVhbF96"
    "ZXJvX3BvaW50EgF5GgVsYXllciIUUUxpbmVhckNvbmRlbnNlZEdlbW0qEgoLaW5fZmVhdHVyZXMYBqABAioTCgxvdXRf"
    "ZmVhdHVyZXMYBKABAjoIYWkuZmFuaW4SCW9uZV9sYXllcioREAFCB3hfc2NhbGVKBAAAAD8qExACQgx4X3plcm9fcG9p"
    "bnRKAQMqGQgDCAMQA0IGdmFsdWVzSgkE+AIBBAD8/P4qGAgBEAFCDHZhbHVlc19zY2FsZUoEAACAPiojCAMIAxAEQgdp"
    "bmRpY2VzShIAAAIABQABAAQABAAAAAEAAgAqHAgEEAZCBGJpYXNKEAQAAAD4////EAAAAAAAAAAqGAgDEAZCBHJvd3NK"
    "DAAAAAABAAAAAwAAACoREAFCB3lfc2NhbGVKBAAAAD4qExADQgx5X3plcm9fcG9pbnRKAfsqEQgBEANCCHJlc2lkdWFs"
    "SgEAKhgQAUIOcmVzaWR1YWxfc2NhbGVKBAAAgD8qGhADQhNyZXNpZHVhbF96ZXJvX3BvaW50SgEAWhgKAXgSEwoRCAIS"
    "DQoHEgViYXRjaAoCCAZiGAoBeRITChEIAxINCgcSBWJhdGNoCgIIBEIECgAQFEIMCghhaS5mYW5pbhAB"
)
_QLINEAR_CONV = (
    "CAk6vgUK0gIKAXgKB3hfc2NhbGUKDHhfemVyb19wb2ludAoGdmFsdWVzCgx2YWx1ZXNfc2NhbGUKB2luZGljZXMKBGJp"
    "YXMKBHJvd3MKB3lfc2NhbGUKDHlfemVyb19wb2ludAoIcmVzaWR1YWwKDnJlc2lkdWFsX3NjYWxlChNyZXNpZHVhbF96"
    "ZXJvX3BvaW50EgF5GgVsYXllciIUUUxpbmVhckNvbmRlbnNlZENvbnYqFAoNY2hhbm5lbHNfbGFzdBgBoAECKhIKCWRp"
    "bGF0aW9uc0ABQAGgAQcqDAoFZ3JvdXAYAaABAioSCgtpbl9jaGFubmVscxgCoAECKhUKDGtlcm5lbF9zaGFwZUACQAKg"
    "AQcqEwoMb3V0X2NoYW5uZWxzGAOgAQIqEQoEcGFkc0AAQAFAAUAAoAEHKhAKB3N0cmlkZXNAAUACoAEHOghhaS5mYW5p"
    "bhIJb25lX2xheWVyKhEQAUIHeF9zY2FsZUoEAAAAPyoTEAJCDHhfemVyb19wb2ludEoBAyoWCAIIAxADQgZ2YWx1ZXNK"
    "BgT4AgEEACoYCAEQAUIMdmFsdWVzX3NjYWxlSgQAAIA+Kh0IAggDEARCB2luZGljZXNKDAEABgAHAAAABQAFACoYCAMQ"
    "BkIEYmlhc0oMBAAAAPj///8QAAAAKhQIAhAGQgRyb3dzSggAAAAAAgAAACoREAFCB3lfc2NhbGVKBAAAAD4qExADQgx5"
    "X3plcm9fcG9pbnRKAfsqEQgBEANCCHJlc2lkdWFsSgEAKhgQAUIOcmVzaWR1YWxfc2NhbGVKBAAAgD8qGhADQhNyZXNp"
    "ZHVhbF96ZXJvX3BvaW50SgEAWiAKAXgSGwoZCAISFQoHEgViYXRjaAoCCAIKAggDCgIIAmIgCgF5EhsKGQgDEhUKBxIF"
    "YmF0Y2gKAggCCgIIAgoCCANCBAoAEBRCDAoIYWkuZmFuaW4QAQ=="
)
_TO_FLOAT = (
    "CAk6uwMKqQEKAXgKB3hfc2NhbGUKDHhfemVyb19wb2ludAoGdmFsdWVzCgx2YWx1ZXNfc2NhbGUKB2luZGljZXMKBGJp"
    "YXMKBHJvd3MKCHJlc2lkdWFsEgF5GgVsYXllciIbQ29uZGVuc2VkR2VtbUludGVnZXJUb0Zsb2F0KhIKC2luX2ZlYXR1"
    "cmVzGAagAQIqEwoMb3V0X2ZlYXR1cmVzGASgAQI6CGFpLmZhbmluEglvbmVfbGF5ZXIqERABQgd4X3NjYWxlSgQAAAA/"
    "KhMQA0IMeF96ZXJvX3BvaW50SgEDKhkIAwgDEANCBnZhbHVlc0oJBPgCAQQA/Pz+KhgIARABQgx2YWx1ZXNfc2NhbGVK"
    "BAAAgD4qIwgDCAMQBEIHaW5kaWNlc0oSAAACAAUAAQAEAAQAAAABAAIAKhwIBBABQgRiaWFzShAAAAA/AACAvwAAAEAA"
    "AAAAKhgIAxAGQgRyb3dzSgwAAAAAAQAAAAMAAAAqFAgBEAFCCHJlc2lkdWFsSgQAAAAAWhgKAXgSEwoRCAMSDQoHEgVi"
    "YXRjaAoCCAZiGAoBeRITChEIARINCgcSBWJhdGNoCgIIBEIECgAQFEIMCghhaS5mYW5pbhAB"
)
_DYNAMIC = (
    "CAk6jQMKowEKAXgKBnZhbHVlcwoMdmFsdWVzX3NjYWxlCgdpbmRpY2VzCgRiaWFzCgRyb3dzCghyZXNpZHVhbBIBeRoF"
    "bGF5ZXIiHER5bmFtaWNRdWFudGl6ZUNvbmRlbnNlZEdlbW0qEgoLaW5fZmVhdHVyZXMYBqABAioTCgxvdXRfZmVhdHVy"
    "ZXMYBKABAioOCgdwZXJfcm93GAGgAQI6CGFpLmZhbmluEglvbmVfbGF5ZXIqGQgDCAMQA0IGdmFsdWVzSgkE+AIBBAD8"
    "/P4qGAgBEAFCDHZhbHVlc19zY2FsZUoEAACAPiojCAMIAxAEQgdpbmRpY2VzShIAAAIABQABAAQABAAAAAEAAgAqHAgE"
    "EAFCBGJpYXNKEAAAAD8AAIC/AAAAQAAAAAAqGAgDEAZCBHJvd3NKDAAAAAABAAAAAwAAACoUCAEQAUIIcmVzaWR1YWxK"
    "BAAAAABaGAoBeBITChEIARINCgcSBWJhdGNoCgIIBmIYCgF5EhMKEQgBEg0KBxIFYmF0Y2gKAggEQgQKABAUQgwKCGFp"
    "LmZhbmluEAE="
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
    # The same layers with weights in quarters, which are int8. X is in halves, its zero point is 3;
    # Y, where it is int8, is in eighths and has the zero point -5.
    Probe(
        "QLinearCondensedGemm",
        _QLINEAR_GEMM,
        np.arange(1, 7, dtype=np.uint8).reshape(1, 6),
        np.array([[-3, -6, 11, 7]], np.int8),
    ),
    # Channels last.
    Probe(
        "QLinearCondensedConv",
        _QLINEAR_CONV,
        np.arange(1, 13, dtype=np.uint8).reshape(1, 2, 3, 2),
        np.array(
            [[[[1, -13, 7], [-31, -13, 23]], [[15, -13, 31], [31, -13, 53]]]],
            np.int8,
        ),
    ),
    Probe(
        "CondensedGemmIntegerToFloat",
        _TO_FLOAT,
        np.arange(1, 7, dtype=np.int8).reshape(1, 6),
        np.array([[0.25, -0.125, 2.0, 1.5]], np.float32),
    ),
    # One scale for each row, which is 1.
    Probe(
        "DynamicQuantizeCondensedGemm",
        _DYNAMIC,
        np.array([[0, 51, 102, 153, 204, 255], [-255, 0, 0, 0, 0, 0]], np.float32),
        np.array([[-76, 215.75, 2, -102], [-254.5, -1, 2, 255]], np.float32),
    ),
)


def probe_layers() -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Return the dense weights and biases of PROBES; all their products are exact."""
    gemm = np.zeros((4, 6), np.float32)
    gemm[0, [0, 2, 5]] = 1, -2, 0.5
    gemm[1, [1, 4]] = 0.25, 1
    gemm[3, :3] = -1, -1, -0.5
    conv = np.zeros((3, 2, 2, 2), np.float32)
    conv[0].flat[[1, 6, 7]] = 1, -2, 0.5
    conv[2].flat[[0, 5]] = 0.25, 1
    biases = np.array([0.5, -1, 2, 0], np.float32)
    return (gemm, biases), (conv, biases[:3])
