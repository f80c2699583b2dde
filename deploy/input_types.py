"""Types of ONNX Runtime's inputs and outputs in NumPy's terms."""

from __future__ import annotations

import numpy as np

_NAMES = {"float": "float32", "double": "float64"}


def numpy_type(kind: str) -> np.dtype | None:
    """Return the type of a tensor such as ``tensor(float)``; None for one that NumPy has not."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    try:
        return np.dtype(_NAMES.get(name, name))
    except TypeError:
        return None
