"""Requests and responses of Open Inference Protocol V2, with the binary tensor data extension.

Deviations from the protocol are refused with an explanation. Parameters and keys that it leaves to
clients and servers are ignored, except those that would change the response in ways this server
does not support (sequences, shared memory, classification), which are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._base.texts import short
from . import bounded_json, tensors
from .datatypes import NUMPY
from .errors import RequestError
from .raw_request import read_raw
from .signature import Signature, TensorSpec

HEADER_LENGTH = "Inference-Header-Content-Length"

# Parameters of extensions that this server does not have, by where they occur. A value such as 0 or
# false means that the extension is not used.
_REFUSED = {
    "request": ("sequence_id", "sequence_start", "sequence_end"),
    "input": ("shared_memory_region",),
    "output": ("shared_memory_region", "classification"),
}


@dataclass(frozen=True)
class InferRequest:
    """A decoded infer request.

    Attributes:
        id: The client's request id.
        inputs: Arrays by input name.
        outputs: The name of each requested output, and whether it is sent as binary data.

    """

    id: str | None
    inputs: dict[str, np.ndarray]
    outputs: tuple[tuple[str, bool], ...]


def decode(
    body: bytes | bytearray,
    header_length: str | None,
    signature: Signature,
    max_dimension: int,
    min_dimension: int = 1,
    hold: Callable[[int], None] = lambda _size: None,
) -> InferRequest:
    """Decode the body of an infer request.

    No array is allocated before its size has been checked.

    Args:
        body: The decompressed body.
        header_length: Value of the header Inference-Header-Content-Length. None means that the
            body is only JSON, "0" that it has no JSON (see ``raw_request``).
        signature: The model's inputs and outputs.
        max_dimension: Largest size of a dimension that the model leaves open.
        min_dimension: Smallest such size.
        hold: Called with the bytes that parsing large JSON takes; may raise to refuse them.

    Returns:
        The request.

    Raises:
        RequestError: If the body is invalid or does not fit the model.

    """
    at = _header_end(body, header_length)
    if header_length is not None and at == 0:
        arrays = read_raw(body, signature, max_dimension, min_dimension)
        return InferRequest(None, arrays, tuple((spec.name, True) for spec in signature.outputs))
    head = _object(_parse(memoryview(body)[:at], hold), "the request")
    binary = memoryview(body)[at:]
    request_id = head.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise RequestError("id is not a string")
    parameters = request_parameters(head)
    as_binary = _flag(parameters, "binary_data_output", "the request")
    inputs = _inputs(head, binary, signature, max_dimension, min_dimension)
    return InferRequest(request_id, inputs, read_outputs(head, signature, as_binary))


def encode(
    model: str, version: str, request: InferRequest, arrays: Sequence[np.ndarray], spec: Signature
) -> tuple[bytes, int | None]:
    """Encode the response to an infer request.

    Args:
        model: Name of the model.
        version: Name of its version.
        request: The request.
        arrays: One array for each of ``request.outputs``.
        spec: The model's inputs and outputs.

    Returns:
        The body, and the length of its JSON part, or None if the body is only JSON.

    """
    datatypes = {output.name: output.datatype for output in spec.outputs}
    described: list[str] = []
    blobs: list[bytes] = []
    for (name, as_binary), array in zip(request.outputs, arrays, strict=True):
        entry: dict[str, Any] = {
            "name": name,
            "datatype": datatypes[name],
            "shape": list(array.shape),
        }
        data = ""
        if as_binary:
            blobs.append(tensors.to_bytes(array))
            entry["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            data = f',"data":{tensors.to_json(name, array)}'
        described.append(f"{_encode(entry)[:-1]}{data}}}")
    head: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id is not None:
        head["id"] = request.id
    text = f'{_encode(head)[:-1]},"outputs":[{",".join(described)}]}}'.encode()
    return b"".join([text, *blobs]), len(text) if blobs else None


def _header_end(body: bytes | bytearray, header_length: str | None) -> int:
    if header_length is None:
        return len(body)
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 20):
        raise RequestError(f"the header {HEADER_LENGTH} is not a number")
    if int(header_length) > len(body):
        raise RequestError(f"{HEADER_LENGTH} is {header_length}; the body has {len(body)} bytes")
    return int(header_length)


_encode = bounded_json.ENCODER.encode


def _parse(text: memoryview, hold: Callable[[int], None]) -> Any:
    try:
        return bounded_json.parse(text, hold)
    except RecursionError:
        raise RequestError("the JSON is nested too deeply") from None
    except ValueError as error:  # includes invalid UTF-8 and integers of thousands of digits
        raise RequestError(f"the request is not JSON: {error}") from None


def _inputs(
    head: dict[str, Any],
    binary: memoryview,
    signature: Signature,
    max_dimension: int,
    min_dimension: int,
) -> dict[str, np.ndarray]:
    read = read_entries(_list(head, "inputs"), signature, max_dimension, min_dimension)
    sizes: dict[str, int | None] = {}
    for name, (entry, _) in read.items():
        size = sizes[name] = _binary_size(entry, name)
        if (size is None) == (entry.get("data") is None):
            raise RequestError(
                f"input '{name}' needs either data or the parameter binary_data_size"
            )
    announced = sum(size or 0 for size in sizes.values())
    if announced != len(binary):
        raise RequestError(
            f"the inputs announce {announced} bytes of binary data, but {len(binary)} were sent"
        )
    datatypes = {spec.name: spec.datatype for spec in signature.inputs}
    arrays, at = {}, 0
    for name, (entry, shape) in read.items():
        size = sizes[name]
        if size is None:
            arrays[name] = tensors.from_json(name, datatypes[name], shape, entry["data"])
        else:
            arrays[name] = tensors.from_bytes(name, datatypes[name], shape, binary[at : at + size])
            at += size
    return arrays


def read_entries(
    entries: Sequence[Any], signature: Signature, max_dimension: int, min_dimension: int
) -> dict[str, tuple[dict[str, Any], tuple[int, ...]]]:
    """Check the descriptions of a request's inputs: name, datatype, shape, parameters.

    Args:
        entries: One object for each input.
        signature: The model's inputs and outputs.
        max_dimension: Largest size of a dimension that the model leaves open.
        min_dimension: Smallest such size.

    Returns:
        By name and in the order of ``entries``: the object and its shape.

    Raises:
        RequestError: If the descriptions do not fit the model.

    """
    known = {spec.name: spec for spec in signature.inputs}
    read: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {}
    for number, item in enumerate(entries):
        where = f"inputs[{number}]"
        entry = _object(item, where)
        spec = known.get(_name(entry, where))
        if spec is None:
            raise RequestError(
                f"the model has no input {short(entry['name'], 60)}; it has {', '.join(known)}"
            )
        if spec.name in read:
            raise RequestError(f"input '{spec.name}' occurs twice")
        _parameters(entry, f"input '{spec.name}'", "input")
        read[spec.name] = (entry, _shape(entry, spec))
    missing = [name for name in known if name not in read]
    if missing:
        raise RequestError(f"the request lacks the input {', '.join(missing)}")
    shapes = {name: shape for name, (_, shape) in read.items()}
    signature.check_shapes(shapes, max_dimension, min_dimension)
    return read


def _binary_size(entry: dict[str, Any], name: str) -> int | None:
    size = _parameters(entry, f"input '{name}'", "input").get("binary_data_size")
    if size is not None and (type(size) is not int or size < 0):
        raise RequestError(f"input '{name}': binary_data_size is not a number of bytes")
    return size


def _shape(entry: dict[str, Any], spec: TensorSpec) -> tuple[int, ...]:
    for key in ("datatype", "shape"):
        if key not in entry:
            raise RequestError(f"input '{spec.name}' has no {key}")
    datatype = entry["datatype"]
    if datatype != spec.datatype:
        known = isinstance(datatype, str) and datatype in (*NUMPY, "BF16")
        said = f"is {datatype}" if known else "is not a datatype of the protocol"
        raise RequestError(f"input '{spec.name}': datatype {said}; the model takes {spec.datatype}")
    shape = entry["shape"]
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise RequestError(f"input '{spec.name}': shape is not a list of integers")
    return tuple(shape)


def read_outputs(
    head: dict[str, Any], signature: Signature, as_binary: bool
) -> tuple[tuple[str, bool], ...]:
    """Return the outputs that a request asks for, and whether each is sent as binary data."""
    known = [spec.name for spec in signature.outputs]
    if head.get("outputs") is None:
        return tuple((name, as_binary) for name in known)
    wanted: dict[str, bool] = {}
    for number, item in enumerate(_list(head, "outputs")):
        entry = _object(item, f"outputs[{number}]")
        name = _name(entry, f"outputs[{number}]")
        if name not in known:
            raise RequestError(
                f"the model has no output {short(name, 60)}; it has {', '.join(known)}"
            )
        if name in wanted:
            raise RequestError(f"output '{name}' occurs twice")
        parameters = _parameters(entry, f"output '{name}'", "output")
        wanted[name] = _flag(parameters, "binary_data", f"output '{name}'", as_binary)
    return tuple((wanted or dict.fromkeys(known, as_binary)).items())


def request_parameters(head: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of the request itself; RequestError for those of extensions."""
    return _parameters(head, "the request", "request")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{where} is not a JSON object")
    return value


def _parameters(entry: dict[str, Any], where: str, kind: str) -> dict[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(f"the parameters of {where} are not a JSON object")
    for name in _REFUSED[kind]:
        if parameters.get(name):
            raise RequestError(
                f"{where} has the parameter '{name}', which this server does not support"
            )
    return parameters


def _flag(parameters: dict[str, Any], name: str, where: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"the parameter {name} of {where} is not a boolean")
    return value


def _list(head: dict[str, Any], name: str) -> list[Any]:
    value = head.get(name)
    if not isinstance(value, list):
        raise RequestError(f"{name} is not a list")
    return value


def _name(entry: dict[str, Any], where: str) -> str:
    name = entry.get("name")
    if not isinstance(name, str):
        raise RequestError(f"{where} has no name")
    return name
