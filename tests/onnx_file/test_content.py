"""Scanning ONNX files without the onnx package, whatever bytes they hold."""

import contextlib
import os

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from fanin.onnx_file import (
    ExternalTensor,
    ModelFileError,
    Node,
    OpsetImport,
    content,
    read_model_file,
)

from ._encoding import field


def model_with_a_subgraph():
    def branch(name):
        node = helper.make_node("Identity", ["X"], [name], name=f"in_{name}", domain="com.inner")
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])
        return helper.make_graph([node], name, [], [output])

    nodes = [
        helper.make_node("Cast", ["X"], ["c"], name="cast", to=TensorProto.BOOL),
        helper.make_node(
            "If", ["c"], ["Y"], name="if", then_branch=branch("a"), else_branch=branch("b")
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.ones(1000, np.float32), "W")],
    )
    function = helper.make_function(
        "com.f", "Twice", ["a"], ["b"], [], [helper.make_opsetid("", 20)]
    )
    return helper.make_model(
        graph,
        functions=[function],
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.inner", 3)],
        ir_version=9,
    )


def test_nodes_of_subgraphs_opset_imports_and_functions_are_found(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(model_with_a_subgraph(), path)
    found = read_model_file(path)
    assert sorted(found.nodes, key=lambda node: node.name) == [
        Node("cast", "Cast", "", ("to",)),
        Node("if", "If", "", ("else_branch", "then_branch")),
        Node("in_a", "Identity", "com.inner"),
        Node("in_b", "Identity", "com.inner"),
    ]
    assert found.opset_imports == [OpsetImport("", 20), OpsetImport("com.inner", 3)]
    assert found.functions == {("com.f", "Twice")}
    assert found.function_imports == [OpsetImport("", 20)]
    assert found.external == []


def test_external_tensors_are_found(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(
        model_with_a_subgraph(), path, save_as_external_data=True, location="w", size_threshold=0
    )
    assert read_model_file(path).external == [ExternalTensor("W", "w")]


def test_subgraphs_nested_without_end_are_refused(tmp_path):
    graph = b""
    for _ in range(200):
        graph = field(1, field(5, field(6, graph)))
    path = tmp_path / "m.onnx"
    path.write_bytes(field(7, graph))
    with pytest.raises(ModelFileError, match="nested"):
        read_model_file(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_files_end_in_a_model_or_an_error(tmp_path_factory, data):
    damaged = bytearray(model_with_a_subgraph().SerializeToString())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    path = tmp_path_factory.mktemp("damaged") / "m.onnx"
    path.write_bytes(damaged)
    # Any other exception, or an endless loop, fails the test.
    with contextlib.suppress(ModelFileError):
        read_model_file(path)


@pytest.fixture
def heavy(tmp_path):
    """A model of one node and 4 MB of weights."""
    weight = numpy_helper.from_array(np.ones(1_000_000, np.float32), "w")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="last")], "g", [], [])
    graph.initializer.append(weight)
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_file_that_is_truncated_while_it_is_read_is_an_error(heavy, monkeypatch):
    """A mapped file would crash the process (SIGBUS)."""
    walk = content._Scan._graph

    def cut(*arguments):
        os.truncate(heavy, 0)
        walk(*arguments)

    monkeypatch.setattr(content._Scan, "_graph", cut)
    with pytest.raises(ModelFileError, match="cut off"):
        read_model_file(heavy)


def test_weights_are_skipped(heavy, monkeypatch):
    sizes = []

    def pread(descriptor, size, at, read=os.pread):
        sizes.append(size)
        return read(descriptor, size, at)

    monkeypatch.setattr(os, "pread", pread)
    assert [node.name for node in read_model_file(heavy).nodes] == ["last"]
    assert sum(sizes) < heavy.stat().st_size / 10


def test_an_empty_name_may_end_the_file(tmp_path):
    """It is read last, long after the blocks before it."""
    node = field(1, field(5, field(1, "a")) + field(6, "doc" * 30_000) + field(3, ""))
    (tmp_path / "m.onnx").write_bytes(field(7, node))
    (found,) = read_model_file(tmp_path / "m.onnx").nodes
    assert found == Node("", "", "", ("a",))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_model_file(tmp_path / "m.onnx")


def test_more_than_onnx_can_hold_is_refused_unread(tmp_path):
    path = tmp_path / "m.onnx"
    path.touch()
    os.truncate(path, (1 << 31) + 1)
    with pytest.raises(ModelFileError, match="larger than 2 GiB"):
        read_model_file(path)


@pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("place", ["input", "output", "value_info"])
def test_values_of_half_precision_are_found(tmp_path, kind, place):
    path = tmp_path / "m.onnx"
    model = model_with_a_subgraph()
    value = helper.make_tensor_value_info("v", TensorProto.DataType.Value(kind), ["n"])
    getattr(model.graph, place).insert(0, value)
    onnx.save(model, path)
    assert read_model_file(path).half == (kind != "FLOAT")


def test_weights_of_half_precision_are_no_values(tmp_path):
    path = tmp_path / "m.onnx"
    model = model_with_a_subgraph()
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float16), "half"))
    onnx.save(model, path)
    assert not read_model_file(path).half


def test_a_norm_that_lists_a_bias_without_having_it_is_found(tmp_path):
    path = tmp_path / "m.onnx"
    model = model_with_a_subgraph()
    for inputs, found in (["x", "scale"], []), (["x", "scale", ""], ["SkipLayerNormFusion"]):
        model.graph.node.append(helper.make_node("LayerNormalization", inputs, [f"n{len(inputs)}"]))
        onnx.save(model, path)
        assert read_model_file(path).crashing_optimizers == found
