from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fanin.export import CondensedWeight
from fanin.export.onnx_op import condensed_layer_model
from fanin.export.passes.fuse_activation import FuseActivationPass

WEIGHT = CondensedWeight.from_dense(
    np.array([[2, 0, -1], [0, 0, 0], [0, 3, 0]], np.float32), np.array([0, -4, 1], np.float32)
)
X = np.array([[1, 2, 3], [-5, 0.5, 4], [3, -2, -7]], np.float32)


def model_with(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("z",), **clip: float):
    """The layer, whose output is ``y``, followed by nodes."""
    model = condensed_layer_model(WEIGHT, None, **clip)
    model.graph.node.extend(nodes)
    del model.graph.output[:]
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in outputs
    )
    return model


def add_constant(model: onnx.ModelProto, name: str, value: float) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.float32(value), name))


def fuse(proto: onnx.ModelProto):
    model = ir.serde.deserialize_model(proto)
    result = FuseActivationPass()(model)
    return ir.serde.serialize_model(result.model), result


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    return ReferenceEvaluator(model).run(None, {"x": X})


def node_types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


RELU = helper.make_node("Relu", ["y"], ["z"])
CLIP = helper.make_node("Clip", ["y", "low", "high"], ["z"])


def test_relu_becomes_the_clip_of_the_node_and_the_output_keeps_its_name():
    before = model_with(RELU)
    after, result = fuse(before)
    assert result.modified
    assert result.fused == ["Relu into layer"]
    assert node_types(after) == ["CondensedGemm"]
    assert after.graph.output[0].name == "z"
    onnx.checker.check_model(after, full_check=True)
    np.testing.assert_array_equal(run(after)[0], run(before)[0])
    assert run(after)[0].min() == 0


def test_node_that_leaves_its_bounds_out_takes_those_of_the_activation():
    before = model_with(RELU)
    bounds = [a for a in before.graph.node[0].attribute if a.name in ("clip_min", "clip_max")]
    for attribute in bounds:
        before.graph.node[0].attribute.remove(attribute)
    after, result = fuse(before)
    assert result.fused == ["Relu into layer"]
    attributes = {a.name: a.f for a in after.graph.node[0].attribute}
    assert (attributes["clip_min"], attributes["clip_max"]) == (0, math.inf)


def test_chain_of_saturations_fuses_to_its_last_node():
    clip = helper.make_node("Clip", ["z", "", "high"], ["last"])
    before = model_with(RELU, clip, outputs=("last",))
    add_constant(before, "high", 6)
    after, result = fuse(before)
    assert node_types(after) == ["CondensedGemm"]
    assert len(result.fused) == 2
    np.testing.assert_array_equal(run(after)[0], run(before)[0])
    assert run(after)[0].max() == 6


BOUNDS = st.floats(-10, 10, width=32) | st.sampled_from([-math.inf, math.inf])


@settings(max_examples=200, deadline=None)
@given(st.tuples(BOUNDS, BOUNDS).map(sorted), BOUNDS, BOUNDS)
def test_clip_composes_with_bounds_that_the_node_has(own: list[float], low: float, high: float):
    # low > high is allowed in ONNX: everything becomes high.
    before = model_with(CLIP, clip_min=own[0], clip_max=own[1])
    add_constant(before, "low", low)
    add_constant(before, "high", high)
    after, _ = fuse(before)
    assert node_types(after) == ["CondensedGemm"]
    clipped = np.clip(X @ WEIGHT.to_dense().T + WEIGHT.bias, *own)
    np.testing.assert_allclose(run(after)[0], np.minimum(np.maximum(clipped, low), high), atol=1e-5)


def test_bound_from_a_constant_node_is_known():
    constant = helper.make_node(
        "Constant", [], ["low"], value=numpy_helper.from_array(np.float32(-1))
    )
    model = model_with(helper.make_node("Clip", ["y", "low"], ["z"]))
    model.graph.node.insert(0, constant)
    after, result = fuse(model)
    assert result.fused == ["Clip into layer"]
    np.testing.assert_array_equal(run(after)[0], run(model)[0])


def unchanged(model: onnx.ModelProto) -> bool:
    after, result = fuse(model)
    return not result.modified and not result.fused and node_types(after) == node_types(model)


def test_activation_stays_when_another_node_reads_the_layer():
    assert unchanged(model_with(RELU, helper.make_node("Neg", ["y"], ["n"]), outputs=("z", "n")))


def test_activation_stays_when_the_layer_is_itself_an_output():
    assert unchanged(model_with(RELU, outputs=("z", "y")))


def test_clip_with_a_bound_that_the_caller_gives_stays():
    model = model_with(CLIP)
    add_constant(model, "low", 0)
    model.graph.input.append(helper.make_tensor_value_info("high", TensorProto.FLOAT, []))
    assert unchanged(model)


def test_clip_whose_constant_bound_the_caller_may_override_stays():
    model = model_with(CLIP)
    add_constant(model, "low", 0)
    add_constant(model, "high", 1)
    model.graph.input.append(helper.make_tensor_value_info("high", TensorProto.FLOAT, []))
    assert unchanged(model)


def test_clip_to_nan_stays():
    model = model_with(CLIP)
    add_constant(model, "low", math.nan)
    add_constant(model, "high", 1)
    assert unchanged(model)


@pytest.mark.parametrize("inputs", [["y", "bound"], ["bound", "y"]])
@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_max_and_min_with_a_scalar_are_fused_in_either_order(op_type: str, inputs: list[str]):
    before = model_with(helper.make_node(op_type, inputs, ["z"]))
    before.graph.initializer.append(numpy_helper.from_array(np.array([1.5], np.float32), "bound"))
    after, result = fuse(before)
    assert result.fused == [f"{op_type} into layer"]
    np.testing.assert_array_equal(run(after)[0], run(before)[0])


@pytest.mark.parametrize("bound", [np.ones((1, 1), np.float32), np.arange(3, dtype=np.float32)])
def test_max_with_more_than_a_scalar_stays(bound: np.ndarray):
    model = model_with(helper.make_node("Max", ["y", "bound"], ["z"]))
    model.graph.initializer.append(numpy_helper.from_array(bound, "bound"))
    assert unchanged(model)


def test_max_of_three_stays():
    model = model_with(helper.make_node("Max", ["y", "low", "low"], ["z"]))
    add_constant(model, "low", 0)
    assert unchanged(model)


@pytest.mark.parametrize("op_type", ["Sigmoid", "Gelu", "HardSwish"])
def test_other_activations_stay(op_type: str):
    assert unchanged(model_with(helper.make_node(op_type, ["y"], ["z"])))


def test_relu_after_another_node_stays():
    neg = helper.make_node("Neg", ["y"], ["n"])
    assert unchanged(model_with(neg, helper.make_node("Relu", ["n"], ["z"])))


def test_activation_inside_a_branch_is_fused_when_its_layer_stands_there_too():
    layer = condensed_layer_model(WEIGHT, None)
    branch = layer.graph
    branch.node.append(helper.make_node("Relu", ["y"], ["z"]))
    branch.output[0].name = "z"
    del branch.input[:]
    other = onnx.GraphProto()
    other.CopyFrom(branch)
    graph = helper.make_graph(
        [helper.make_node("If", ["flag"], ["out"], then_branch=branch, else_branch=other)],
        "main",
        [
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3]),
        ],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", 3])],
    )
    model = helper.make_model(
        graph, functions=layer.functions, opset_imports=layer.opset_import, ir_version=9
    )
    after, result = fuse(model)
    assert len(result.fused) == 2
    feeds = {"x": X, "flag": np.array(True)}
    np.testing.assert_array_equal(
        ReferenceEvaluator(after).run(None, feeds)[0], ReferenceEvaluator(model).run(None, feeds)[0]
    )
