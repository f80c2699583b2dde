"""The parts of an ONNX model that tell why it does not load, and whether it is safe to load.

Field numbers are those of onnx.proto.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from .wire import FileBytes, Message, ModelFileError, Span, as_span, fields

_MAX_SIZE = 1 << 31  # protobuf's limit; larger models keep their weights in data files
_HALF_TYPES = (10, 16)  # float16 and bfloat16, of TensorProto
_MAX_NESTING = 32  # of subgraphs; only attacks nest deeper


@dataclass(frozen=True)
class Node:
    """A node of a graph or function, with the names of its attributes.

    ``ends_empty`` says that its last input is listed and left out, which the format allows.
    """

    name: str
    op_type: str
    domain: str
    attributes: tuple[str, ...] = ()
    ends_empty: bool = False


@dataclass(frozen=True)
class ExternalTensor:
    """A tensor whose data is in another file; ``location`` is relative to the model's folder."""

    name: str
    location: str


@dataclass(frozen=True)
class OpsetImport:
    """A domain and the version of its operators."""

    domain: str
    version: int


@dataclass
class ModelFile:
    """Content of a model.

    Attributes:
        opset_imports: Of the model.
        nodes: Of the graph and its subgraphs.
        external: All tensors with external data, anywhere in the model.
        functions: (domain, name) of each function.
        function_imports: Opset imports of the functions.
        function_nodes: Nodes of the functions.
        half: Whether an input, an output or another value of known type is float16 or bfloat16.

    """

    opset_imports: list[OpsetImport] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    external: list[ExternalTensor] = field(default_factory=list)
    functions: set[tuple[str, str]] = field(default_factory=set)
    function_imports: list[OpsetImport] = field(default_factory=list)
    function_nodes: list[Node] = field(default_factory=list)
    half: bool = False

    @property
    def crashing_optimizers(self) -> list[str]:
        """Optimizers of onnxruntime 1.32 that would crash the process over this model.

        One only arranges float32 convolutions for CPUs, and dies of a LayerNormalization, a
        Transpose and a MatMul in half precision in a row. The other reads the bias of a
        LayerNormalization that lists it without having it.
        """
        nodes = (*self.nodes, *self.function_nodes)
        empty = any(node.op_type == "LayerNormalization" and node.ends_empty for node in nodes)
        return ["NchwcTransformer"] * self.half + ["SkipLayerNormFusion"] * empty


def read_model_file(path: Path) -> ModelFile:
    """Scan a model.

    Args:
        path: The ONNX file.

    Returns:
        Its content.

    Raises:
        ModelFileError: If it is not an ONNX model.
        OSError: If it cannot be read.

    """
    _require_regular(os.stat(path))
    # If a pipe has replaced the file since, neither opening nor reading may wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        state = os.fstat(descriptor)
        _require_regular(state)
        if state.st_size > _MAX_SIZE:
            raise ModelFileError("it is larger than 2 GiB, which no ONNX file is")
        if state.st_size == 0:
            raise ModelFileError("it is empty")
        return _Scan(FileBytes(descriptor)).model((0, state.st_size))
    finally:
        os.close(descriptor)


def _require_regular(state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise ModelFileError("it is not a regular file")


class _Scan:
    """Visits all messages that may hold tensors or nodes, and skips the rest."""

    def __init__(self, data: FileBytes):
        self._data = data
        self._found = ModelFile()

    def model(self, span: Span) -> ModelFile:
        found, graphs = self._found, []
        for number, value in fields(self._data, span):
            if number == 7:
                graphs.append(as_span(value))
            elif number == 8:
                found.opset_imports.append(self._opset_import(as_span(value)))
            elif number == 20:
                self._training(as_span(value))
            elif number == 25:
                self._function(as_span(value))
        if not graphs:
            raise ModelFileError("it holds no graph")
        for graph in graphs:
            self._graph(graph, found.nodes, 0)
        return found

    def _graph(self, span: Span, nodes: list[Node], depth: int) -> None:
        if depth > _MAX_NESTING:
            raise ModelFileError(f"its subgraphs are nested more than {_MAX_NESTING} deep")
        for number, value in fields(self._data, span):
            if number == 1:
                self._node(as_span(value), nodes, depth)
            elif number == 5:
                self._tensor([as_span(value)])
            elif number in (11, 12, 13):  # inputs, outputs, values of known type
                self._value(as_span(value))
            elif number == 15:
                self._sparse([as_span(value)])

    def _value(self, span: Span) -> None:
        if self._found.half:
            return
        kind = self._message(self._message([span], 2).spans(2), 1)
        tensor = self._message(kind.spans(1), 1)
        self._found.half = tensor.integer(1) in _HALF_TYPES

    def _function(self, span: Span) -> None:
        function = self._message([span], 1, 7, 9, 10, 11)
        self._found.functions.add((_text(function.text(10)), _text(function.text(1))))
        for node in function.spans(7):
            self._node(node, self._found.function_nodes, 0)
        for entry in function.spans(9):
            self._found.function_imports.append(self._opset_import(entry))
        for attribute in function.spans(11):  # with a default value
            self._attribute(attribute, self._found.function_nodes, 0)

    def _training(self, span: Span) -> None:
        training = self._message([span], 1, 2)
        for graph in (*training.spans(1), *training.spans(2)):  # initialization, algorithm
            self._graph(graph, [], 0)

    def _node(self, span: Span, nodes: list[Node], depth: int) -> None:
        node = self._message([span], 1, 3, 4, 5, 7)
        attributes = tuple(self._attribute(part, nodes, depth) for part in node.spans(5))
        name, op_type, domain = (_text(node.text(number)) for number in (3, 4, 7))
        start, end = (node.spans(1) or [(0, 1)])[-1]
        nodes.append(Node(name, op_type, domain, attributes, ends_empty=start == end))

    def _attribute(self, span: Span, nodes: list[Node], depth: int) -> str:
        """Visit the content of an attribute and return its name."""
        attribute = self._message([span], 1, 5, 6, 10, 11, 22, 23)
        if attribute.numbers() - {1}:
            self._inside(attribute, nodes, depth)
        return _text(attribute.text(1))

    def _inside(self, attribute: Message, nodes: list[Node], depth: int) -> None:
        self._tensor(attribute.spans(5))
        for graph in (*attribute.spans(6), *attribute.spans(11)):
            self._graph(graph, nodes, depth + 1)
        for tensor in attribute.spans(10):
            self._tensor([tensor])
        self._sparse(attribute.spans(22))
        for sparse in attribute.spans(23):
            self._sparse([sparse])

    def _sparse(self, spans: list[Span]) -> None:
        sparse = self._message(spans, 1, 2)
        self._tensor(sparse.spans(1))  # values
        self._tensor(sparse.spans(2))  # indices

    def _tensor(self, spans: list[Span]) -> None:
        tensor = self._message(spans, 8, 13)
        for span in tensor.spans(13):
            entry = self._message([span], 1, 2)
            # If there are several locations, some runtimes use the first and others the last.
            if entry.text(1) == b"location":
                name = _text(tensor.text(8))
                self._found.external.append(ExternalTensor(name, _path(entry.text(2), name)))

    def _opset_import(self, span: Span) -> OpsetImport:
        entry = self._message([span], 1, 2)
        return OpsetImport(_text(entry.text(1)), entry.integer(2))

    def _message(self, spans: list[Span], *wanted: int) -> Message:
        return Message(self._data, spans, wanted)


def _text(found: bytes) -> str:
    return found.decode("utf-8", errors="replace")


def _path(found: bytes, name: str) -> str:
    """Return the path for exactly these bytes, whatever the locale."""
    try:
        found.decode("utf-8")
    except UnicodeDecodeError:
        raise ModelFileError(f"the name of the data file of '{name}' is not UTF-8") from None
    return os.fsdecode(found)
