"""What is accepted is interpreted as protobuf does; everything else is refused."""

from collections import Counter
from random import Random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, OperatorSetIdProto, TensorProto, helper

from fanin.onnx_file import ModelFileError, read_model_file

from ._encoding import (
    BYTES,
    END_GROUP,
    FIXED32,
    FIXED64,
    GROUP,
    VARINT,
    adding_model,
    entry,
    external_tensor,
    field,
    number_field,
    tag,
    varint,
    with_tensor,
)
from ._odd import odd_model

MODEL = adding_model(external_tensor("../secret")).SerializeToString()
TENSOR = TensorProto(name="W", data_type=1, dims=[4], data_location=1).SerializeToString()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("wire") / "m.onnx"


def read(path, content):
    path.write_bytes(content)
    return read_model_file(path)


def ours(found):
    def nodes(listed):
        return Counter((n.name, n.op_type, n.domain, n.attributes) for n in listed)

    def imports(listed):
        return [(entry.domain, entry.version) for entry in listed]

    return {
        "imports": imports(found.opset_imports),
        "function imports": imports(found.function_imports),
        "nodes": nodes(found.nodes),
        "function nodes": nodes(found.function_nodes),
        "functions": found.functions,
        "external": Counter((tensor.name, tensor.location) for tensor in found.external),
    }


def protobufs(model):
    """The same from the library's messages, found only through their descriptors."""
    graph, functions = list(inside(model.graph)), list(inside(model.functions))
    return {
        "imports": imports_in(model.opset_import),
        "function imports": imports_in(functions),
        "nodes": nodes_in(graph),
        "function nodes": nodes_in(functions),
        "functions": {(text(f.domain), text(f.name)) for f in model.functions},
        "external": Counter(
            (text(tensor.name), text(one.value))
            for tensor in inside(model)
            if isinstance(tensor, TensorProto)
            for one in tensor.external_data
            if text(one.key) == "location"
        ),
    }


def inside(part):
    """A message and all nested ones, or those in a list of messages."""
    if not hasattr(part, "ListFields"):
        for one in part:
            yield from inside(one)
        return
    yield part
    for descriptor, value in part.ListFields():
        if descriptor.message_type is not None:
            yield from inside(value)


def imports_in(messages):
    return [(text(m.domain), m.version) for m in messages if isinstance(m, OperatorSetIdProto)]


def nodes_in(messages):
    return Counter(
        (text(m.name), text(m.op_type), text(m.domain), tuple(text(a.name) for a in m.attribute))
        for m in messages
        if isinstance(m, NodeProto)
    )


def text(value):
    """The library returns bytes if they are not UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def agrees(path, content):
    """Whether both read it; if so, the results must be equal."""
    try:
        found = read(path, content)
        model = ModelProto.FromString(content)
    except (ModelFileError, DecodeError):
        return False
    assert ours(found) == protobufs(model)
    return True


READ_ALIKE = {
    "tag of two bytes": MODEL + tag(14, BYTES, 2) + varint(0),
    "tag of five bytes": MODEL + tag(14, BYTES, 5) + varint(0),
    "unknown number": MODEL + number_field(1000, 5),
    "unknown fixed": MODEL + tag(1000, FIXED32) + bytes(4) + tag(1001, FIXED64) + bytes(8),
    "largest field number": MODEL + number_field((1 << 29) - 1, 5),
    "padded length": MODEL + tag(7, BYTES) + b"\x80\x80\x80\x80\x00",
    "padded number": MODEL + field(8, number_field(2, 0)[:1] + varint(7, 10)),
    "negative version": MODEL + field(8, tag(2, VARINT) + varint((1 << 64) - 7)),
    "version that comes twice": MODEL + field(8, number_field(2, 1) + number_field(2, 7)),
    "domain that comes twice": MODEL + field(8, field(1, "a") + field(1, "ai.fanin")),
    "graph in two pieces": adding_model().SerializeToString() + field(7, field(5, TENSOR)),
    "location that comes twice": with_tensor(
        TENSOR + entry("location", "a") + entry("location", "b")
    ),
    "value that comes twice": with_tensor(
        TENSOR + field(13, field(1, "location") + field(2, "a") + field(2, "b"))
    ),
    "key that comes twice": with_tensor(
        TENSOR + field(13, field(1, "offset") + field(2, "a") + field(1, "location"))
    ),
    "name behind the data": with_tensor(entry("location", "a") + field(8, "U") + field(8, "V")),
    "attribute's tensor in two pieces": adding_model().SerializeToString()
    + field(
        7,
        field(
            1, field(5, field(5, field(8, "V")) + field(1, "v") + field(5, entry("location", "a")))
        ),
    ),
    "attribute's name twice": adding_model().SerializeToString()
    + field(7, field(1, field(5, field(1, "a") + field(1, "b")))),
    "sparse tensor in two pieces": adding_model().SerializeToString()
    + field(7, field(15, field(1, field(8, "V")) + field(1, entry("location", "a")))),
    "names that are not UTF-8": MODEL + field(7, field(1, field(3, b"\xff") + field(4, b"\xfe"))),
}


@pytest.mark.parametrize("content", READ_ALIKE.values(), ids=READ_ALIKE)
def test_odd_but_clear_encodings_are_read_as_protobuf_reads_them(path, content):
    assert agrees(path, content)


REFUSED = {
    "empty group": MODEL + tag(2000, GROUP) + tag(2000, END_GROUP),
    "group in front": tag(2000, GROUP) + number_field(5, 3) + tag(2000, END_GROUP) + MODEL,
    "graph that is a number": number_field(7, 5) + MODEL,
    "opset import that is a number": number_field(8, 5) + MODEL,
    "version that is bytes": MODEL + field(8, field(1, "ai.fanin") + field(2, "7")),
    "domain that is a number": MODEL + field(8, number_field(1, 5)),
    "key that is a number": with_tensor(TENSOR + field(13, field(2, "../s") + number_field(1, 5))),
    "location that is fixed": with_tensor(
        TENSOR + field(13, field(1, "location") + field(2, "../s") + tag(2, FIXED32) + b"abcd")
    ),
    "tag of six bytes": MODEL + tag(14, BYTES, 6) + varint(0),
    "tag over 32 bits": MODEL + b"\xba\x80\x80\x80\x10" + varint(0),
    "length of six bytes": MODEL + tag(14, BYTES) + varint(0, 6),
    "number over 64 bits": MODEL + tag(1000, VARINT) + b"\xff" * 9 + b"\x7f",
    "number of eleven bytes": MODEL + tag(1000, VARINT) + varint(0, 11),
    "field number 0": MODEL + b"\0",
    "wire type 7": MODEL + tag(1000, 7),
    "end of a group that did not begin": MODEL + tag(1000, END_GROUP),
    "field that is longer than its message": MODEL + field(7, tag(5, BYTES) + varint(9) + b"x"),
    "location that is not UTF-8": with_tensor(TENSOR + entry("location", b"\xff")),
    "name of 100 kB": MODEL + field(8, field(1, "a" * 100_000)),
}


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED)
def test_ambiguous_encodings_are_refused(path, content):
    with pytest.raises(ModelFileError):
        read(path, content)


@settings(max_examples=300, deadline=None)
@given(random=st.randoms(use_true_random=True))
def test_random_odd_encodings_are_refused_or_read_as_protobuf_reads_them(path, random):
    agrees(path, odd_model(random))


def test_random_odd_encodings_are_often_read_by_both(path):
    read_by_both = sum(agrees(path, odd_model(Random(seed))) for seed in range(200))
    assert read_by_both > 50


def sample_model():
    """Subgraphs, a function with a default, a sparse tensor, external data: all in 1 kB."""
    inner = helper.make_graph([helper.make_node("Identity", ["W"], ["z"])], "s", [], [])
    inner.initializer.append(external_tensor("inner"))
    model = adding_model(external_tensor("../secret"))
    model.graph.node.append(
        helper.make_node("If", ["c"], ["q"], name="if", then_branch=inner, else_branch=inner)
    )
    model.graph.sparse_initializer.add().values.CopyFrom(external_tensor("sparse"))
    constant = helper.make_node("Constant", [], ["c"], value=external_tensor("constant"))
    function = helper.make_function("f", "F", [], ["c"], [constant], [helper.make_opsetid("", 17)])
    function.attribute_proto.append(helper.make_attribute("v", external_tensor("default")))
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("ai.fanin", 7))
    return model.SerializeToString()


@settings(max_examples=300, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 1 << 16), st.integers(0, 2), st.binary(max_size=3)), max_size=4
    )
)
def test_damaged_models_are_refused_or_read_as_protobuf_reads_them(path, changes):
    content = sample_model()
    for place, removed, inserted in changes:
        at = place % len(content)
        content = content[:at] + inserted + content[at + removed :]
    agrees(path, content)


def paths_to(kind):
    """All paths through onnx's messages from a model to one of this kind.

    Graphs may lie in graphs; other kinds of messages are passed once.
    """

    def walk(descriptor, way, left):
        if descriptor.full_name == kind.DESCRIPTOR.full_name:
            yield way
            return
        for part in descriptor.fields:
            inner = part.message_type
            if inner is not None and left[inner.full_name] > 0:
                yield from walk(inner, (*way, part.name), left - Counter([inner.full_name]))

    names = [
        message.full_name for message in ModelProto.DESCRIPTOR.file.message_types_by_name.values()
    ]
    twice = ["onnx.GraphProto", "onnx.NodeProto", "onnx.AttributeProto"]
    return list(walk(ModelProto.DESCRIPTOR, (), Counter(names + twice)))


def put(model, way, message):
    """Put the message at the end of the path, creating what is on it."""
    *rest, last = way
    holder = model
    for name in rest:
        part = getattr(holder, name)
        holder = part.add() if hasattr(part, "add") else part
    part = getattr(holder, last)
    (part.add() if hasattr(part, "add") else part).CopyFrom(message)


@pytest.mark.parametrize("way", paths_to(TensorProto), ids=".".join)
def test_a_tensor_is_found_wherever_onnx_allows_one(path, way):
    model = ModelProto()
    model.graph.name = "g"
    put(model, way, external_tensor("somewhere"))
    (tensor,) = read(path, model.SerializeToString()).external
    assert (tensor.name, tensor.location) == ("W", "somewhere")


@pytest.mark.parametrize("way", paths_to(NodeProto), ids=".".join)
def test_a_node_is_found_wherever_a_runtime_runs_it(path, way):
    model = ModelProto()
    model.graph.name = "g"
    put(model, way, helper.make_node("Op", [], [], name="n", domain="d", alpha=1))
    found = read(path, model.SerializeToString())
    nodes = [node for node in (*found.nodes, *found.function_nodes) if node.name]
    runs = way[0] != "training_info"
    assert [(n.op_type, n.domain, n.attributes) for n in nodes] == [("Op", "d", ("alpha",))] * runs


def test_the_ways_are_those_of_onnx():
    """Guards the tests above against a scan that finds nothing."""
    assert ("graph", "initializer") in paths_to(TensorProto)
    assert ("graph", "node", "attribute", "g", "initializer") in paths_to(TensorProto)
    assert ("functions", "attribute_proto", "sparse_tensor", "values") in paths_to(TensorProto)
    assert ("functions", "node") in paths_to(NodeProto)
