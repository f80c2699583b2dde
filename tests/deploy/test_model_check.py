"""Invalid models that ONNX Runtime would open without an error."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from fanin.deploy import SessionError, open_session
from fanin.deploy.model_check import ATTRIBUTES
from fanin.export.onnx_op import register_schemas


def changed(path, change):
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    return path


def with_attribute(path, **attributes):
    def change(model):
        node = model.graph.node[0]
        node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())

    return changed(path, change)


@pytest.mark.parametrize(
    ("attributes", "remedy"),
    [
        ({"clip_mxa": 6.0}, "Did you mean 'clip_max'"),
        ({"Clip_min": 0.0}, "Did you mean 'clip_min'"),
        ({"axis": 1}, "Rename or remove it."),
    ],
)
def test_an_attribute_that_the_op_does_not_read_is_refused(save_condensed, attributes, remedy):
    path = with_attribute(save_condensed(), **attributes)
    with pytest.raises(SessionError) as caught:
        open_session(path)
    (name,) = attributes
    assert f"node 'fc1' has an attribute '{name}', which CondensedGemm does not read" in str(
        caught.value
    )
    assert (caught.value.node, caught.value.model) == ("fc1", path)
    assert remedy in caught.value.remedy


def test_all_attributes_of_the_op_are_accepted(save_condensed):
    path = with_attribute(save_condensed(), clip_min=0.0, clip_max=1.0)
    y = open_session(path).run(None, {"X": np.full((1, 4), 9, np.float32)})[0]
    assert np.array_equal(y, [[1, 1, 0, 1]])
    register_schemas()
    schema = onnx.defs.get_schema("CondensedGemm", 1, "ai.fanin")
    assert set(ATTRIBUTES["CondensedGemm"]) == set(schema.attributes)


def test_an_unknown_attribute_of_another_op_is_left_to_the_runtime(save_dense):
    path = with_attribute(save_dense(), clip_mxa=6.0)
    with pytest.raises(SessionError, match="clip_mxa"):
        open_session(path)


def test_a_later_version_of_the_ops_is_refused(save_condensed):
    def change(model):
        (domain,) = [entry for entry in model.opset_import if entry.domain == "ai.fanin"]
        domain.version = 2

    with pytest.raises(SessionError, match=r"needs version 2 of the ops.*Upgrade fanin"):
        open_session(changed(save_condensed(), change))


def test_the_node_may_be_in_a_subgraph(save_condensed):
    def change(model):
        inner = helper.make_node("CondensedGemm", [], ["z"], name="deep", domain="ai.fanin", k=1)
        graph = helper.make_graph([inner], "g", [], [])
        model.graph.node.append(
            helper.make_node("If", ["c"], ["q"], then_branch=graph, else_branch=graph)
        )

    with pytest.raises(SessionError, match="node 'deep' has an attribute 'k'"):
        open_session(changed(save_condensed(), change))


CONV = {
    "kernel_shape": [1, 1],
    "strides": [1, 1],
    "pads": [0, 0, 0, 0],
    "dilations": [1, 1],
    "group": 1,
    "in_channels": 4,
    "out_channels": 4,
}


def as_convolution(path, **attributes):
    """Turn the layer of a saved model into a pointwise convolution with these attributes."""

    def change(model):
        node = model.graph.node[0]
        node.op_type = "CondensedConv"
        del node.attribute[:]
        given = {**CONV, **attributes}
        node.attribute.extend(helper.make_attribute(*item) for item in given.items())
        for value in (*model.graph.input, *model.graph.output):
            dims = value.type.tensor_type.shape.dim
            dims.add().dim_value = dims.add().dim_value = 3

    return changed(path, change)


@pytest.mark.parametrize(
    ("attributes", "remedy"),
    [
        ({"auto_pad": "SAME_UPPER"}, "Rename or remove it."),
        ({"stride": [1, 1]}, "Did you mean 'strides'"),
        ({"in_features": 4}, "Rename or remove it."),
    ],
)
def test_an_attribute_that_a_convolution_does_not_read_is_refused(
    save_condensed, attributes, remedy
):
    path = as_convolution(save_condensed(), **attributes)
    with pytest.raises(SessionError) as caught:
        open_session(path)
    (name,) = attributes
    assert f"node 'fc1' has an attribute '{name}', which CondensedConv does not read" in str(
        caught.value
    )
    assert caught.value.node == "fc1"
    assert remedy in caught.value.remedy


def test_all_attributes_of_a_convolution_are_accepted(save_condensed):
    path = as_convolution(save_condensed(), clip_min=0.0, clip_max=1.0)
    y = open_session(path).run(None, {"X": np.full((1, 4, 3, 3), 9, np.float32)})[0]
    assert np.array_equal(y[0, :, 1, 1], [1, 1, 0, 1])
    register_schemas()
    schema = onnx.defs.get_schema("CondensedConv", 1, "ai.fanin")
    assert set(ATTRIBUTES["CondensedConv"]) == set(schema.attributes)


def test_an_invalid_convolution_is_refused_with_node_and_remedy(save_condensed):
    path = as_convolution(save_condensed(), strides=[1, 0])
    with pytest.raises(SessionError, match=r"CondensedConv node 'fc1': .*strides\[1\] is 0") as it:
        open_session(path)
    assert it.value.node == "fc1"
    assert "fanin export" in it.value.remedy


GROUP = b"\x83\x7d\x84\x7d"  # an empty group of an unknown field, which protobuf skips


@pytest.mark.parametrize("end", [GROUP, b"\xba\x80\x80\x80\x80\x00\x00", b"\0"])
def test_a_model_that_cannot_be_checked_is_not_opened(save_condensed, end):
    path = with_attribute(save_condensed(), clip_mxa=6.0)
    path.write_bytes(path.read_bytes() + end)
    with pytest.raises(SessionError, match=r"not an ONNX file: .*Copy or export the file again"):
        open_session(path)


@pytest.mark.parametrize("versions", [(7, 1), (1, 7)])
def test_every_import_of_the_ops_must_be_of_our_version(save_condensed, versions):
    def change(model):
        (domain,) = [entry for entry in model.opset_import if entry.domain == "ai.fanin"]
        domain.version = versions[0]
        model.opset_import.append(helper.make_opsetid("ai.fanin", versions[1]))

    with pytest.raises(SessionError, match="needs version 7 of the ops"):
        open_session(changed(save_condensed(), change))


def in_a_function(version, **attributes):
    """Move the layer into a function that imports a version of our domain."""

    def change(model):
        node = model.graph.node[0]
        inner = helper.make_node("CondensedGemm", node.input, ["Z"], "fc1", domain="ai.fanin")
        inner.attribute.extend(node.attribute)
        inner.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
        imports = [helper.make_opsetid("", 20), helper.make_opsetid("ai.fanin", version)]
        model.functions.append(
            helper.make_function("f", "F", list(node.input), ["Z"], [inner], imports)
        )
        model.opset_import.append(helper.make_opsetid("f", 1))
        node.domain, node.op_type = "f", "F"
        del node.attribute[:]

    return change


def test_nodes_of_functions_are_checked(save_condensed):
    y = open_session(changed(save_condensed(), in_a_function(1))).run(
        None, {"X": np.ones((1, 4), np.float32)}
    )[0]
    assert np.array_equal(y, [[3.5, 7, -1, 11]])
    with pytest.raises(SessionError, match="node 'fc1' has an attribute 'clip_mxa'"):
        open_session(changed(save_condensed(), in_a_function(1, clip_mxa=1.0)))
    with pytest.raises(SessionError, match="needs version 2 of the ops"):
        open_session(changed(save_condensed(), in_a_function(2)))


def test_weights_at_an_address_in_memory_are_refused(save_dense):
    """Up to 1.23 ONNX Runtime reads from the address that the file names."""

    def change(model):
        (tensor,) = [one for one in model.graph.initializer if one.name == "W"]
        tensor.ClearField("raw_data")
        tensor.data_location = tensor.EXTERNAL
        for key, value in (("location", "*/_ORT_MEM_ADDR_/*"), ("offset", "64"), ("length", "64")):
            tensor.external_data.add(key=key, value=value)

    with pytest.raises(SessionError, match="the weights of 'W' have no file's name"):
        open_session(changed(save_dense(), change))


def test_a_file_is_checked_as_the_format_that_the_runtime_assumes(save_condensed):
    path = with_attribute(save_condensed("model.ort"), clip_mxa=6.0)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.load_model_format", "ONNX")
    with pytest.raises(SessionError, match="has an attribute 'clip_mxa'"):
        open_session(path, options=options)
    with pytest.raises(SessionError, match="ONNX Runtime refused the model"):
        open_session(path)
