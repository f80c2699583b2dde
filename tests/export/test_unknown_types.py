"""Operators that onnx does not know leave values without a type; ours must live with that."""

from itertools import product

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from fanin.export import convert, inspect
from fanin.export.onnx_op import register_schemas

FLOAT, INT32, UINT16 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT16
WEIGHTS = {
    "values": (FLOAT, [3, 2]),
    "indices": (UINT16, [3, 2]),
    "bias": (FLOAT, [4]),
    "rows": (INT32, [3]),
}
GEMM = {"in_features": 5, "out_features": 4}
CONV = {
    "kernel_shape": [1, 1],
    "strides": [1, 1],
    "pads": [0, 0, 0, 0],
    "dilations": [1, 1],
    "group": 1,
    "in_channels": 5,
    "out_channels": 4,
}


def infer(op, inputs, known, attributes):
    """Infer strictly what a node gives; ``known`` has the types that are known."""
    node = helper.make_node(op, inputs, ["Y"], name="n", domain="ai.fanin", **attributes)
    values = [helper.make_value_info(name, kind) for name, kind in known.items()]
    graph = helper.make_graph([node], "g", values, [helper.make_empty_tensor_value_info("Y")])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("ai.fanin", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    found = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    return found.graph.output[0].type


def told(kind):
    """Element type and sizes of a type, None for what is not known."""
    if kind.WhichOneof("value") is None:
        return None
    tensor = kind.tensor_type
    sizes = [dim.dim_value or None for dim in tensor.shape.dim]
    return tensor.elem_type, sizes if tensor.HasField("shape") else None


@pytest.mark.parametrize(
    ("op", "x", "y", "without_shape", "attributes"),
    [
        ("CondensedGemm", [2, 5], [2, 4], None, GEMM),
        ("CondensedConv", [2, 5, 3, 3], [2, 4, 3, 3], [None, 4, None, None], CONV),
    ],
)
def test_any_input_may_be_of_unknown_shape_or_type_or_be_left_out(
    op, x, y, without_shape, attributes
):
    register_schemas()
    full = {"X": (FLOAT, x), **WEIGHTS, "residual": (FLOAT, [1])}
    states = ("known", "shape missing", "type missing", "left out")
    for chosen in product(states, repeat=len(full)):
        inputs, known = [], {}
        for (name, (element, shape)), state in zip(full.items(), chosen, strict=True):
            inputs.append("" if state == "left out" else name)
            if state in ("known", "shape missing"):
                sizes = shape if state == "known" else None
                known[name] = helper.make_tensor_type_proto(element, sizes)
        found = told(infer(op, inputs, known, attributes))
        wanted = {"known": (FLOAT, y), "shape missing": (FLOAT, without_shape)}.get(chosen[0])
        # Without the type of X, onnx itself takes the element type of the residual.
        assert found == wanted or (wanted is None and found == (FLOAT, None)), chosen


@pytest.mark.parametrize(("op", "attributes"), [("CondensedGemm", GEMM), ("CondensedConv", CONV)])
def test_a_missing_attribute_is_named(op, attributes):
    register_schemas()
    for name in attributes:
        rest = {key: value for key, value in attributes.items() if key != name}
        with pytest.raises(
            onnx.shape_inference.InferenceError, match=f"the attribute {name} is missing"
        ):
            infer(op, ["X", *WEIGHTS, "residual"], {}, rest)


def test_weights_that_do_not_fit_are_refused_whatever_x_is():
    register_schemas()
    known = {"bias": helper.make_tensor_type_proto(FLOAT, [7])}
    for op, attributes in (("CondensedGemm", GEMM), ("CondensedConv", CONV)):
        with pytest.raises(onnx.shape_inference.InferenceError, match=r"bias has the shape \[7\]"):
            infer(op, ["X", *WEIGHTS, "residual"], known, attributes)


def sparse(*shape):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(shape).astype(np.float32)
    weight[rng.random(shape) < 0.9] = 0
    return weight


def save(path, nodes, shape, weights, *domains):
    value = [helper.make_tensor_value_info(name, FLOAT, shape) for name in "xy"]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], tensors)
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(name, 1) for name in domains)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def test_a_layer_behind_an_operator_that_onnx_does_not_know_is_condensed(tmp_path):
    nodes = [
        helper.make_node("Gelu", ["x"], ["h"], name="gelu", domain="com.microsoft"),
        helper.make_node("MatMul", ["h", "W"], ["y"], name="fc"),
    ]
    source = save(tmp_path / "m.onnx", nodes, [2, 64], {"W": sparse(64, 64)}, "com.microsoft")
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert [layer.decision for layer in report.layers] == ["condensed"]
    assert len(report.parity) == 2
    assert all(check.max_error < 1e-5 for check in report.parity)


def test_a_graph_that_the_runtime_optimized_offline_is_converted(tmp_path):
    """Its fused convolutions, which onnx does not know, are condensed as the plain one is."""
    nodes = [
        helper.make_node("Conv", ["x", "A"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "B"], ["y"], name="second"),
    ]
    weights = {"A": sparse(16, 16, 1, 1), "B": sparse(16, 16, 1, 1)}
    source = save(tmp_path / "m.onnx", nodes, [1, 16, 8, 8], weights)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.graph_optimization_level = level
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kinds == ["FusedConv", "Conv"]

    report = convert(tmp_path / "optimized.onnx", tmp_path / "out.onnx", policy="condensed")
    assert [(layer.name, layer.decision) for layer in report.layers] == [
        ("A", "condensed"),
        ("B", "condensed"),
    ]
    assert len(report.parity) == 2
    assert len(inspect(tmp_path / "out.onnx").layers) == 2
