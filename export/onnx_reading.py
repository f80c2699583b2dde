"""Read an ONNX file from any source, with checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, Message

from .._base.local_paths import is_file, refuse_address
from ..onnx_file import DataFileError, ModelFileError, read_checked
from .errors import ExportError


def read_proto(path: Path, *, weights: bool = False) -> onnx.ModelProto:
    """Read a model, once it is known that its weights lie in files of its own folder.

    Args:
        path: the model, in protobuf whatever its name ends in.
        weights: read the data files, too.

    Raises:
        FileNotFoundError: there is no such file.
        ExportError: it is no ONNX model, its weights lie elsewhere, or a data file is missing.
        OSError: it cannot be read.

    """
    refuse_address(path)
    if not is_file(path):
        raise FileNotFoundError(f"{path} does not exist or is not a file")
    try:
        read_checked(path)
        # With a format by the name, another parser would see another model than the check saw.
        proto = onnx.load(path, "protobuf", load_external_data=weights)
    except DataFileError as error:
        raise ExportError(f"{path}: {error}; external data belong beside the model") from error
    except (ModelFileError, DecodeError) as error:
        raise ExportError(f"{path} is not an ONNX model or is damaged: {error}") from error
    except onnx.checker.ValidationError as error:
        raise ExportError(f"{path}: its data file is missing or damaged: {error}") from error
    # onnx-ir would lose the weights over it, in the middle of a pass.
    wrong = next((text for text in _texts(proto) if isinstance(text, bytes)), None)
    if wrong is not None:
        raise ExportError(f"{path} is damaged: the name or text {wrong[:80]!r} is not UTF-8")
    return proto


def read_model(path: Path) -> ir.Model:
    """Read a model with its weights; raises as :func:`read_proto` does."""
    proto = read_proto(path, weights=True)
    try:
        return ir.serde.deserialize_model(proto)
    except Exception as error:
        raise ExportError(f"{path} cannot be read: {error}") from error


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and those inside its nodes: branches and loop bodies."""
    yield graph
    yield from graphs_inside(graph.node)


def graphs_inside(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside nodes."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_of(attribute.g)
            for graph in attribute.graphs:
                yield from graphs_of(graph)


def _texts(message: Message) -> Iterator[str | bytes]:
    """Yield the strings in a message; the library gives bytes for those that are not UTF-8."""
    if isinstance(message, onnx.TensorProto):  # whose numbers are not to be copied
        yield from (message.name, message.doc_string)
        return
    for descriptor, value in message.ListFields():
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        parts = value if several else [value]
        if descriptor.type == descriptor.TYPE_STRING:
            yield from parts
        elif descriptor.message_type is not None:
            for part in parts:
                yield from _texts(part)
