"""Models that ONNX Runtime would open although they do not say what they mean."""

import numpy as np
import onnx
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
        ({"clip_mxa": 6.0}, "Rename it to 'clip_max'."),
        ({"Clip_min": 0.0}, "Rename it to 'clip_min'."),
        ({"axis": 1}, "Take it out."),
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
    assert caught.value.remedy == remedy


def test_all_attributes_of_the_op_are_taken(save_condensed):
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

    with pytest.raises(SessionError, match=r"wants version 2 of the ops.*Upgrade fanin"):
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
    """Turn the layer of a saved model into a pointwise convolution with other attributes."""

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
        ({"auto_pad": "SAME_UPPER"}, "Take it out."),
        ({"stride": [1, 1]}, "Rename it to 'strides'."),
        ({"in_features": 4}, "Take it out."),
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
    assert caught.value.remedy == remedy


def test_all_attributes_of_a_convolution_are_taken(save_condensed):
    path = as_convolution(save_condensed(), clip_min=0.0, clip_max=1.0)
    y = open_session(path).run(None, {"X": np.full((1, 4, 3, 3), 9, np.float32)})[0]
    assert np.array_equal(y[0, :, 1, 1], [1, 1, 0, 1])
    register_schemas()
    schema = onnx.defs.get_schema("CondensedConv", 1, "ai.fanin")
    assert set(ATTRIBUTES["CondensedConv"]) == set(schema.attributes)


def test_an_unsound_convolution_is_refused_with_node_and_remedy(save_condensed):
    path = as_convolution(save_condensed(), strides=[1, 0])
    with pytest.raises(SessionError, match=r"CondensedConv node 'fc1': .*strides\[1\] is 0") as it:
        open_session(path)
    assert it.value.node == "fc1"
    assert "fanin export" in it.value.remedy
