"""Sparse initializers and sparse constants of an ONNX file, made dense.

onnx-ir does not know them, and a runtime makes them dense as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx

from .errors import ExportError
from .onnx_reading import graphs_of

_MAX_BYTES = 2**31 - 1
"""What protobuf, and with it an initializer, can hold."""


def make_dense(graph: onnx.GraphProto) -> Iterator[str]:
    """Turn sparse initializers and sparse Constants into dense ones; yield their names.

    Raises:
        ExportError: one breaks the rules of ONNX, or is too large; says which.

    """
    for part in graphs_of(graph):
        for sparse in part.sparse_initializer:
            part.initializer.append(_dense(sparse, sparse.values.name))
            yield sparse.values.name
        del part.sparse_initializer[:]
        for node in part.node:
            for attribute in node.attribute if node.op_type == "Constant" else ():
                if attribute.HasField("sparse_tensor"):
                    name = node.output[0] if node.output else node.name
                    dense = _dense(attribute.sparse_tensor, name)
                    attribute.CopyFrom(onnx.helper.make_attribute("value", dense))
                    yield name


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    try:
        values = onnx.numpy_helper.to_array(sparse.values)
        places = onnx.numpy_helper.to_array(sparse.indices)
        return onnx.numpy_helper.from_array(_scattered(values, places, list(sparse.dims)), name)
    except Exception as error:  # to_array raises whatever a damaged tensor leads it to
        raise ExportError(
            f"the sparse tensor {name!r} cannot be read: {error}; export the model again, or with "
            "dense weights"
        ) from error


def _scattered(values: np.ndarray, places: np.ndarray, dims: list[int]) -> np.ndarray:
    """Scatter values to places: linear ``[count]``, or one column per axis ``[count, axes]``."""
    if not dims or min(dims) < 1:
        raise ValueError(f"its shape is {dims}, which has no places")
    size = math.prod(dims)
    if size * values.itemsize > _MAX_BYTES:
        raise ValueError(f"its shape {dims} takes {size * values.itemsize:.1e} bytes when dense")
    if values.ndim != 1 or places.dtype != np.int64:
        raise ValueError(f"it has {places.dtype} indices and values of shape {values.shape}")
    if places.shape == (values.size, len(dims)):
        linear, limits = np.zeros(values.size, np.int64), np.asarray(dims)
        inside = ((places >= 0) & (places < limits)).all()
        for axis, length in enumerate(dims):
            linear = linear * length + places[:, axis]
    elif places.shape == (values.size,):
        linear, inside = places, ((places >= 0) & (places < size)).all()
    else:
        raise ValueError(f"it has {values.size} values and indices of shape {places.shape}")
    if not inside:
        raise ValueError(f"an index lies outside of its shape {dims}")
    if np.unique(linear).size != values.size:
        raise ValueError("two of its values have the same index")
    dense = np.zeros(size, values.dtype)
    dense[linear] = values
    return dense.reshape(dims)
