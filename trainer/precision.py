"""The types in which forward passes compute."""

from contextlib import AbstractContextManager

import torch

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """Compute in ``precision`` where torch considers it safe; "float32" changes nothing."""
    dtype = _DTYPES.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)
