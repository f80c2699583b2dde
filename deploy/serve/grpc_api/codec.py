"""Infer requests and responses of gRPC, as the values that both protocols share.

A tensor is sent as bytes (``raw_input_contents``, laid out as in HTTP's binary data) or as typed
numbers (``contents``); a request has one or the other, and the response has what the request had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from .. import bounded_json, tensors
from ..datatypes import NUMPY
from ..errors import RequestError
from ..protocol import InferRequest, read_entries, read_outputs, request_parameters
from ..signature import Signature
from .messages import MESSAGES
from .wire import length_field, split

# Field of InferTensorContents for each datatype, and NumPy's type of its numbers; the protocol has
# none for FP16.
_INT, _UINT = ("int_contents", np.int64), ("uint_contents", np.int64)
_CONTENTS: dict[str, tuple[str, Any]] = {
    "BOOL": ("bool_contents", np.bool_),
    **dict.fromkeys(("INT8", "INT16", "INT32"), _INT),
    "INT64": ("int64_contents", np.int64),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), _UINT),
    "UINT64": ("uint64_contents", np.uint64),
    "FP32": ("fp32_contents", np.float32),
    "FP64": ("fp64_contents", np.float64),
    "BYTES": ("bytes_contents", object),
}
_RAW_OUTPUTS = 6  # number of raw_output_contents in ModelInferResponse
# Most bytes of objects for each byte of a message: an empty input takes two bytes there, and a
# number of one byte becomes eight bytes, a Python object, and an array's element.
_PARSED_COST = 48


@dataclass(frozen=True)
class InferMessage:
    """A request's message: ``head`` without the raw contents, and those."""

    head: Any
    raw: list[memoryview]


def is_small(body: bytes) -> bool:
    """Return whether a message can be read on the event loop."""
    return len(body) <= bounded_json.SMALL_TEXT


def read_message(body: bytes, hold: Callable[[int], None]) -> InferMessage:
    """Parse a ModelInferRequest.

    Args:
        body: The serialized message.
        hold: Called with the bytes that parsing a large one may take; raises to refuse them.

    Raises:
        RequestError: If ``body`` is no such message.

    """
    head, raw = split(body)
    if not is_small(head):
        hold(_PARSED_COST * len(head))
    try:
        return InferMessage(MESSAGES["ModelInferRequest"].FromString(head), raw)
    except DecodeError:
        raise RequestError("the message is not a ModelInferRequest") from None


def decode(
    message: InferMessage, signature: Signature, max_dimension: int, min_dimension: int = 1
) -> InferRequest:
    """Decode a request; the arrays of raw contents share its memory.

    Args:
        message: The parsed message.
        signature: The model's inputs and outputs.
        max_dimension: Largest size of a dimension that the model leaves open.
        min_dimension: Smallest such size.

    Returns:
        The request; whether an output is "binary" tells that it is sent as raw contents.

    Raises:
        RequestError: If the message does not fit the model.

    """
    head, raw = message.head, message.raw
    request_parameters({"parameters": _parameters(head)})
    entries = [
        {
            "name": item.name,
            "datatype": item.datatype,
            "shape": list(item.shape),
            "parameters": _parameters(item),
            "contents": item.contents if item.HasField("contents") else None,
        }
        for item in head.inputs
    ]
    read = read_entries(entries, signature, max_dimension, min_dimension)
    typed = [name for name, (entry, _) in read.items() if entry["contents"] is not None]
    if raw and typed:
        raise RequestError(
            f"input '{typed[0]}' has contents, but the request has raw_input_contents: send all "
            "inputs one way"
        )
    if raw and len(raw) != len(read):
        raise RequestError(
            f"raw_input_contents has {len(raw)} entries, but there are {len(read)} inputs"
        )
    datatypes = {spec.name: spec.datatype for spec in signature.inputs}
    arrays = {}
    for number, (name, (entry, shape)) in enumerate(read.items()):
        if raw:
            arrays[name] = tensors.from_bytes(name, datatypes[name], shape, raw[number])
        else:
            arrays[name] = _from_contents(name, datatypes[name], shape, entry["contents"])
    as_raw = bool(raw) or any(spec.datatype == "FP16" for spec in signature.outputs)
    wanted = [{"name": item.name, "parameters": _parameters(item)} for item in head.outputs]
    outputs = read_outputs({"outputs": wanted or None}, signature, as_raw)
    # "binary_data" is HTTP's word, which clients of both may set here, too.
    return InferRequest(head.id or None, arrays, tuple((name, as_raw) for name, _ in outputs))


def encode(
    model: str, version: str, request: InferRequest, arrays: Sequence[np.ndarray], spec: Signature
) -> bytes:
    """Serialize the response.

    Args:
        model: Name of the model.
        version: Name of its version.
        request: The request.
        arrays: One array for each of ``request.outputs``.
        spec: The model's inputs and outputs.

    Returns:
        A ModelInferResponse.

    Raises:
        RequestError: 422 if an output has too many elements for typed contents.

    """
    datatypes = {output.name: output.datatype for output in spec.outputs}
    response = MESSAGES["ModelInferResponse"](
        model_name=model, model_version=version, id=request.id or ""
    )
    parts: list[bytes] = []
    for (name, as_raw), array in zip(request.outputs, arrays, strict=True):
        output = response.outputs.add(name=name, datatype=datatypes[name], shape=array.shape)
        if as_raw:
            content = tensors.to_bytes(array)
            parts += [length_field(_RAW_OUTPUTS, len(content)), content]
        else:
            _add_contents(output, datatypes[name], array)
    return b"".join([response.SerializeToString(), *parts])


def _from_contents(name: str, datatype: str, shape: tuple[int, ...], contents: Any) -> np.ndarray:
    field, wide = _CONTENTS.get(datatype, ("", None))
    if not field:
        raise RequestError(
            f"input '{name}': {datatype} has no typed contents in the protocol; send "
            "raw_input_contents"
        )
    filled = [] if contents is None else [item.name for item, _ in contents.ListFields()]
    others = [other for other in filled if other != field]
    if others:
        raise RequestError(f"input '{name}': {datatype} goes into {field}, not {others[0]}")
    values = getattr(contents, field) if filled else []
    wanted = math.prod(shape)
    if len(values) != wanted:
        raise RequestError(
            f"input '{name}': its contents have {len(values)} elements, its shape {list(shape)} "
            f"has {wanted}"
        )
    if datatype == "BYTES":
        return _texts(name, values).reshape(shape)
    array, dtype = np.array(list(values), wide), NUMPY[datatype]
    if dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise RequestError(f"input '{name}': its contents do not fit into {datatype}")
    return array.astype(dtype).reshape(shape)


def _texts(name: str, values: Sequence[bytes]) -> np.ndarray:
    try:
        return np.array([str(value, "utf-8") for value in values], object)
    except UnicodeDecodeError:
        raise RequestError(f"input '{name}': its strings are not UTF-8") from None


def _add_contents(output: Any, datatype: str, array: np.ndarray) -> None:
    if array.size > bounded_json.MAX_VALUES:
        raise RequestError(
            f"an output has {array.size} elements, more than this server sends as typed contents "
            f"({bounded_json.MAX_VALUES}); send raw_input_contents, and the outputs come raw",
            422,
        )
    values = array.reshape(-1).tolist()
    if datatype == "BYTES":
        values = [item if isinstance(item, bytes) else str(item).encode() for item in values]
    getattr(output.contents, _CONTENTS[datatype][0]).extend(values)


def _parameters(message: Any) -> dict[str, Any]:
    """Return the parameters of a message, a request or an input, as plain values."""
    found = {}
    for name, parameter in message.parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        found[name] = None if choice is None else getattr(parameter, choice)
    return found
