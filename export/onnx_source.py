"""Reading an ONNX file that is to be converted; the file itself is only ever read."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from ..onnx_file import external_files, read_checked
from .errors import ExportError
from .node_order import sort_nodes
from .onnx_function import FUNCTION_OPSETS
from .onnx_op import IR_VERSION
from .onnx_reading import graphs_inside, graphs_of, read_proto
from .onnx_sparse import make_dense
from .renamed_ops import restore_names

_CONVERT_TO = 17
"""Opset that older models are converted to."""

_FIRST_IR_WITH_CONSTANTS = 4
"""Before it every initializer also had to be a graph input, although nobody replaced one."""

_HALVES = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}

_MOST_TO_INFER = 1 << 30
"""Bytes of a file, without data files, from which its stated types are believed."""


def load_source(path: Path) -> tuple[ir.Model, tuple[str, ...]]:
    """Load a model for conversion, its weights mapped where they lie in a data file.

    Models under opset 16 go through onnx's version converter, since the function of our op needs
    16. What exporters note on nodes about the machine that they ran on is dropped.

    Returns:
        The model and notes for the report.

    Raises:
        FileNotFoundError: there is no such file.
        ExportError: it is no ONNX model, or of versions that cannot be converted.

    """
    proto = read_proto(path)
    if not proto.HasField("graph") or not proto.graph.output:
        raise ExportError(f"{path} is not an ONNX model or is damaged")
    _call_standard_domain_by_one_name(proto)
    try:
        unsorted = sort_nodes(proto)
        sparse = list(make_dense(proto.graph))
    except ExportError as error:
        raise ExportError(f"{path}: {error}") from error
    notes = [f"{name} was a sparse tensor, read as a dense one" for name in sparse]
    notes += restore_names(proto)
    if unsorted:
        notes.append("its nodes were not topologically sorted, and are now")
    if _drop_wrong_types(proto):
        notes.append("types that it states of values inside were wrong, and are inferred again")
    opset = _opset(path, proto)
    if opset < FUNCTION_OPSETS.start:
        proto = _newer(path, proto, opset)
        notes.append(f"converted from opset {opset} to {_CONVERT_TO}")
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:
        raise ExportError(f"{path} cannot be read: {error}") from error
    _require_texts(path, model)
    ir.external_data.set_base_dir(model.graph, path.parent)
    _require_data(path, model)
    if model.ir_version < _FIRST_IR_WITH_CONSTANTS:
        common.RemoveInitializersFromInputsPass()(model)
    model.ir_version = max(model.ir_version, IR_VERSION)
    _drop_exporter_notes(model)
    _correct_constants(model)
    _drop_empty_inputs(model)
    return model, tuple(notes)


def _call_standard_domain_by_one_name(proto: onnx.ModelProto) -> None:
    """Write "" for "ai.onnx", which is the same domain."""
    for holder in (proto, *proto.functions):
        imports = {entry.domain for entry in holder.opset_import}
        for entry in list(holder.opset_import):
            if entry.domain == "ai.onnx" and "" in imports:
                holder.opset_import.remove(entry)
            elif entry.domain == "ai.onnx":
                entry.domain = ""
    nodes = [node for graph in graphs_of(proto.graph) for node in graph.node]
    for function in proto.functions:
        nodes += [*function.node, *(n for g in graphs_inside(function.node) for n in g.node)]
    for node in nodes:
        if node.domain == "ai.onnx":
            node.domain = ""


def _drop_wrong_types(proto: onnx.ModelProto) -> bool:
    """Drop the stated types of inner values where they contradict the graph.

    Converters to mixed precision leave those of before. ONNX Runtime does not mind; shape inference
    gives up.
    """
    stated = {value.type.tensor_type.elem_type for value in proto.graph.value_info}
    if not stated & _HALVES or proto.ByteSize() > _MOST_TO_INFER:
        return False
    if _infers(proto):
        return False
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    if not _infers(_without_types(bare)):
        return False
    _without_types(proto)
    return True


def _without_types(proto: onnx.ModelProto) -> onnx.ModelProto:
    for graph in graphs_of(proto.graph):
        del graph.value_info[:]
    return proto


def _infers(proto: onnx.ModelProto) -> bool:
    try:
        # Strictly, since it is otherwise silent on types that spread.
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


def data_files(path: Path) -> frozenset[Path]:
    """List the files that hold the weights of a model, where they exist."""
    return frozenset(file.resolve() for file in external_files(path, read_checked(path)))


def _opset(path: Path, proto: onnx.ModelProto) -> int:
    opset: int | None = {entry.domain: entry.version for entry in proto.opset_import}.get("")
    if opset is None:
        raise ExportError(f"{path} imports no standard operators, so it holds no layer of theirs")
    if opset >= FUNCTION_OPSETS.stop:
        raise ExportError(
            f"{path} is of opset {opset}; up to {FUNCTION_OPSETS.stop - 1} can be converted. "
            "Export it again with an older opset"
        )
    return opset


def _newer(path: Path, proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    remedy = "Export it again with opset 16 or newer; nothing was written"
    if proto.functions:
        raise ExportError(
            f"{path} is of opset {opset} and has functions of its own, which onnx's version "
            f"converter drops. {remedy}"
        )
    try:
        newer = onnx.version_converter.convert_version(proto, _CONVERT_TO)
    except Exception as error:
        raise ExportError(
            f"{path} is of opset {opset}, and onnx's version converter fails on it: "
            f"{str(error).strip()}. {remedy}"
        ) from error
    # The converter keeps neither of them.
    del newer.metadata_props[:]
    newer.metadata_props.extend(proto.metadata_props)
    newer.doc_string = proto.doc_string
    del newer.opset_import[:]
    newer.opset_import.extend(entry for entry in proto.opset_import if entry.domain)
    newer.opset_import.append(onnx.helper.make_opsetid("", _CONVERT_TO))
    return newer


def _require_texts(path: Path, model: ir.Model) -> None:
    """Refuse bytes in place of a text, except in operators of other libraries."""
    for node in model.graph.all_nodes():
        if node.domain not in ("", "com.microsoft"):
            continue
        for name, attribute in node.attributes.items():
            text = attribute.type == ir.AttributeType.STRING and not attribute.is_ref()
            if text and not isinstance(attribute.value, str):
                raise ExportError(
                    f"{path}: {name} of node {node.name!r} ({node.op_type}) is no UTF-8 text"
                )


def _require_data(path: Path, model: ir.Model) -> None:
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and any(size < 0 for size in tensor.shape.numpy()):
                raise ExportError(f"{path}: the constant {value.name!r} has a negative size")
            if not isinstance(tensor, ir.ExternalTensor):
                continue
            data = Path(tensor.path)
            end = (tensor.offset or 0) + tensor.nbytes
            if not os.path.isfile(data) or data.stat().st_size < end:
                raise ExportError(
                    f"{path}: the data file {tensor.location} is missing or too short for "
                    f"{value.name}; copy it beside the model"
                )


def _drop_exporter_notes(model: ir.Model) -> None:
    """Drop stack traces and module paths that exporters leave on nodes and values.

    The user's metadata, which stand on the model and its graph, stay.
    """
    for graph in model.graphs():
        for node in graph:
            node.doc_string = None
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()


def _correct_constants(model: ir.Model) -> None:
    """Give values of Constant nodes their own type; onnxruntime-genai's builder notes others."""
    for graph in model.graphs():
        for node in graph:
            tensor = node.attributes.get("value") if node.op_type == "Constant" else None
            if tensor is not None and not node.domain:
                constant = tensor.as_tensor()
                node.outputs[0].shape = ir.Shape(constant.shape.numpy())
                node.outputs[0].dtype = constant.dtype


def _drop_empty_inputs(model: ir.Model) -> None:
    """Leave out trailing inputs without a name, which mean what leaving them out means."""
    for graph in model.graphs():
        for node in graph:
            count = len(node.inputs)
            while count and node.inputs[count - 1] is None:
                count -= 1
            node.resize_inputs(count)
