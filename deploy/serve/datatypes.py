"""Data types in the protocol, in ONNX Runtime and in NumPy."""

from __future__ import annotations

import numpy as np

# ONNX Runtime's type of an input or output → (datatype of the protocol, NumPy's).
TYPES: dict[str, tuple[str, np.dtype]] = {
    "tensor(bool)": ("BOOL", np.dtype(np.bool_)),
    "tensor(uint8)": ("UINT8", np.dtype("<u1")),
    "tensor(uint16)": ("UINT16", np.dtype("<u2")),
    "tensor(uint32)": ("UINT32", np.dtype("<u4")),
    "tensor(uint64)": ("UINT64", np.dtype("<u8")),
    "tensor(int8)": ("INT8", np.dtype("<i1")),
    "tensor(int16)": ("INT16", np.dtype("<i2")),
    "tensor(int32)": ("INT32", np.dtype("<i4")),
    "tensor(int64)": ("INT64", np.dtype("<i8")),
    "tensor(float16)": ("FP16", np.dtype("<f2")),
    "tensor(float)": ("FP32", np.dtype("<f4")),
    "tensor(double)": ("FP64", np.dtype("<f8")),
    "tensor(string)": ("BYTES", np.dtype(object)),
}

NUMPY: dict[str, np.dtype] = dict(TYPES.values())
"""Datatype of the protocol → NumPy's. BF16 is absent: NumPy has no such type."""


def config_datatype(datatype: str) -> str:
    """Return the name in Triton's configurations of a datatype of the protocol."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
