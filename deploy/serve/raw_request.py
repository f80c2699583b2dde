"""Raw binary requests: the body is nothing but the bytes of the model's only input.

"Raw Binary Request" of the binary tensor data extension: Inference-Header-Content-Length is 0, and
the shape follows from the number of bytes. So the model must have one input with at most one open
dimension.
"""

from __future__ import annotations

import math

import numpy as np

from . import tensors
from .datatypes import NUMPY
from .errors import RequestError
from .signature import Signature, TensorSpec, text_of

_WHAT = "a raw binary request (Inference-Header-Content-Length: 0)"
_INSTEAD = "describe the inputs in JSON before their bytes"


def read_raw(
    body: bytes | bytearray, signature: Signature, max_dimension: int, min_dimension: int = 1
) -> dict[str, np.ndarray]:
    """Decode a raw binary request.

    If requests are batched and a second dimension is open, the first one is 1.

    Args:
        body: The decompressed body.
        signature: The model's inputs and outputs.
        max_dimension: Largest size of a dimension that the model leaves open.
        min_dimension: Smallest such size.

    Returns:
        The array of the only input, by its name.

    Raises:
        RequestError: If the number of bytes does not determine the shape, or does not fit.

    """
    if len(signature.inputs) != 1:
        names = ", ".join(spec.name for spec in signature.inputs)
        raise RequestError(
            f"{_WHAT} is for models with one input, but this one has {len(signature.inputs)} "
            f"({names}): {_INSTEAD}"
        )
    (spec,) = signature.inputs
    if spec.datatype == "BYTES":
        array = _string(body, spec)
        shape = array.shape
    else:
        shape = _shape(len(body), spec, signature.batched)
    signature.check_shapes({spec.name: shape}, max_dimension, min_dimension)
    if spec.datatype != "BYTES":
        array = tensors.from_bytes(spec.name, spec.datatype, shape, memoryview(body))
    return {spec.name: array}


def _shape(size: int, spec: TensorSpec, batched: bool) -> tuple[int, ...]:
    axes = range(len(spec.shape))
    sizes = {axis: wanted for axis, wanted in enumerate(spec.shape) if isinstance(wanted, int)}
    open_axes = [axis for axis in axes if axis not in sizes]
    if batched and len(open_axes) > 1:
        sizes[open_axes.pop(0)] = 1
    step = NUMPY[spec.datatype].itemsize * math.prod(sizes.values())
    if len(open_axes) > 1 or (open_axes and not step):
        raise _undetermined(spec)
    if size % step if open_axes else size != step:
        takes = f"a multiple of {step}" if open_axes else str(step)
        raise RequestError(
            f"{_WHAT} has {size} bytes, but input '{spec.name}', {spec.datatype} "
            f"{text_of(spec.shape)}, takes {takes}"
        )
    if open_axes:
        sizes[open_axes[0]] = size // step
    return tuple(sizes[axis] for axis in axes)


def _string(body: bytes | bytearray, spec: TensorSpec) -> np.ndarray:
    """Read the whole body as one string, without a length prefix."""
    if any(isinstance(size, int) and size != 1 for size in spec.shape):
        raise _undetermined(spec)
    try:
        return np.array([str(body, "utf-8")], object).reshape([1] * len(spec.shape))
    except UnicodeDecodeError:
        raise RequestError(f"input '{spec.name}' is not UTF-8") from None


def _undetermined(spec: TensorSpec) -> RequestError:
    return RequestError(
        f"{_WHAT} does not determine the shape of input '{spec.name}', {spec.datatype} "
        f"{text_of(spec.shape)}: {_INSTEAD}"
    )
