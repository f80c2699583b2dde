"""Functions and schemas of the ops on 8-bit integers, compared with their definition."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fanin.export.onnx_op import OPSETS, register_schemas
from fanin.export.onnx_quantized_function import (
    dynamic_quantize_condensed_gemm_function,
    qlinear_condensed_conv_function,
)
from fanin.ort_ops.contract import QUANTIZED_OPS

from ..ort_ops._quantized import (
    CLIPS,
    DYNAMIC,
    EIGHT_BITS,
    GEOMETRIES,
    QLINEAR_CONV,
    QLINEAR_GEMM,
    TO_FLOAT,
    Node,
    random_node,
)
from ..ort_ops._random_quantized import FUNCTIONS, LEVELS, plain_session

every_op = pytest.mark.parametrize("op", QUANTIZED_OPS)


def check(node: Node, function: onnx.FunctionProto, fed=("X",), opset: int = 20) -> None:
    """Compare the function with the definition, bit for bit, in both runtimes."""
    model = node.build([function], fed=fed, opset=opset)
    wanted, feeds = node.expected(), node.feeds(*fed)
    for run in (plain_session(model).run, ReferenceEvaluator(model).run):
        got = run(None, feeds)[0]
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(got, wanted)


@every_op
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_function_computes_the_definition(op: str, seed: int):
    check(random_node(op, seed, largest=64), FUNCTIONS[op](20))


@pytest.mark.parametrize("y_type", EIGHT_BITS)
@pytest.mark.parametrize("x_type", EIGHT_BITS)
@pytest.mark.parametrize("op", [QLINEAR_GEMM, QLINEAR_CONV])
def test_function_serves_every_pair_of_types(op: str, x_type: type, y_type: type):
    for clip in CLIPS:
        node = random_node(op, 1, x_type=x_type, y_type=y_type, clip=clip, largest=64)
        check(node, FUNCTIONS[op](20))


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_function_serves_every_geometry_and_layout(geometry, channels_last: int):
    node = random_node(
        QLINEAR_CONV,
        2,
        geometry=geometry,
        channels_last=channels_last,
        x_type=np.uint8,
        largest=64,
    )
    check(node, qlinear_condensed_conv_function(20))
    check(node, qlinear_condensed_conv_function(20, signed_x=False))
    if not channels_last:
        check(node, qlinear_condensed_conv_function(20, channels_last=False))


@pytest.mark.parametrize("leading", [(), (1,), (4,), (2, 3), (0,), (3, 0)], ids=str)
@every_op
def test_function_serves_every_rank_and_empty_batches(op: str, leading: tuple[int, ...]):
    if op == QLINEAR_CONV:
        node = random_node(op, 3, largest=64, residual=False)
        check(node.having(X=node.x[:0]), FUNCTIONS[op](20))
        return
    for flag in (0, 1) if op == DYNAMIC else (None,):
        chosen = {} if flag is None else {"per_row": flag}
        node = random_node(op, 3, leading=leading, residual=bool(leading), largest=64, **chosen)
        check(node, FUNCTIONS[op](20))
        if flag == 0 and node.x.size:
            check(node, dynamic_quantize_condensed_gemm_function(20, per_row=False))


@pytest.mark.parametrize("opset", OPSETS)
@every_op
def test_every_opset_passes_the_checker_and_runs(op: str, opset: int):
    register_schemas()
    node = random_node(op, 4, largest=64, residual=True)
    model = node.build([FUNCTIONS[op](opset)], opset=opset)
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    check(node, FUNCTIONS[op](opset), opset=opset)


@every_op
def test_function_takes_scales_at_run_time_and_what_the_optimizer_makes_of_it(op: str):
    node = random_node(op, 5, largest=64, residual=True)
    fed = [name for name in node.arrays if name.endswith(("scale", "point"))]
    check(node, FUNCTIONS[op](20), fed=("X", "residual", *fed))
    session = plain_session(node.build([FUNCTIONS[op](20)]), LEVELS.ORT_ENABLE_ALL)
    got, wanted = session.run(None, node.feeds())[0], node.expected()
    if got.dtype == np.float32:
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("value", [3e4, -3e4])
def test_function_saturates_sums_that_leave_int32_in_units_of_y(value: float):
    node = random_node(QLINEAR_GEMM, 6, largest=64).having(y_scale=np.float32(1e-30))
    check(node.having(clip_min=-math.inf, clip_max=math.inf), FUNCTIONS[QLINEAR_GEMM](20))
    check(node.having(clip_min=value, clip_max=value), FUNCTIONS[QLINEAR_GEMM](20))


# What the definition must agree with: ONNX Runtime's operators on the dense weight.


def dense_model(node: Node, nodes: list[onnx.NodeProto], **constants: np.ndarray):
    arrays = {**node.arrays, **constants}
    read = {name for part in nodes for name in part.input} - {"X"}
    x_type = helper.np_dtype_to_tensor_dtype(node.x.dtype)
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("X", x_type, node.x.shape)],
        [helper.make_tensor_value_info("Y", node.y_type, None)],
        [numpy_helper.from_array(arrays[n], n) for n in sorted(read) if n in arrays],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def run_dense(node: Node, nodes: list[onnx.NodeProto], **constants: np.ndarray) -> np.ndarray:
    return plain_session(dense_model(node, nodes, **constants)).run(None, {"X": node.x})[0]


def without_extras(node: Node) -> Node:
    """Without the epilogue, which the standard operators lack."""
    return node.having(clip_min=-math.inf, clip_max=math.inf)


@pytest.mark.parametrize("kind", EIGHT_BITS)
def test_definition_is_that_of_qlinear_matmul(kind: type):
    for seed in range(5):
        node = random_node(QLINEAR_GEMM, seed, x_type=kind, y_type=kind, residual=False, largest=64)
        node = without_extras(node).having(bias=np.zeros(19, np.int32))
        scalar = {"x_scale": node.arrays["x_scale"].reshape(())}
        inputs = ["X", "x_scale", "x_zero_point", "w", "w_scale", "w_zero", "y_scale"]
        got = run_dense(
            node,
            [helper.make_node("QLinearMatMul", [*inputs, "y_zero_point"], ["Y"])],
            w=np.ascontiguousarray(node.dense().T),
            w_scale=np.broadcast_to(node.arrays["values_scale"], (19,)),
            w_zero=np.zeros(19, np.int8),
            **scalar,
        )
        np.testing.assert_array_equal(got, node.expected())


@pytest.mark.parametrize("kind", EIGHT_BITS)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_definition_is_that_of_qlinear_conv(geometry, kind: type):
    node = random_node(
        QLINEAR_CONV,
        7,
        geometry=geometry,
        x_type=kind,
        y_type=kind,
        residual=False,
        largest=64,
        channels_last=0,
    )
    node = without_extras(node)
    attributes = geometry.attributes()
    sizes = {key: attributes[key] for key in ("strides", "pads", "dilations", "group")}
    inputs = ["X", "x_scale", "x_zero_point", "w", "w_scale", "w_zero", "y_scale"]
    got = run_dense(
        node,
        [helper.make_node("QLinearConv", [*inputs, "y_zero_point", "bias"], ["Y"], **sizes)],
        w=node.dense(),
        w_scale=np.broadcast_to(node.arrays["values_scale"], (geometry.out_channels,)),
        w_zero=np.zeros(geometry.out_channels, np.int8),
        x_scale=node.arrays["x_scale"].reshape(()),
    )
    np.testing.assert_array_equal(got, node.expected())


def test_definition_is_that_of_dynamic_quantization_before_matmul_integer():
    for seed in range(5):
        node = random_node(DYNAMIC, seed, per_row=0, residual=False, largest=64)
        node = without_extras(node)
        got = run_dense(
            node,
            [
                helper.make_node("DynamicQuantizeLinear", ["X"], ["q", "s", "z"]),
                helper.make_node("MatMulInteger", ["q", "w", "z"], ["sum"]),
                helper.make_node("Cast", ["sum"], ["real"], to=onnx.TensorProto.FLOAT),
                helper.make_node("Mul", ["s", "values_scale"], ["m"]),
                helper.make_node("Mul", ["real", "m"], ["scaled"]),
                helper.make_node("Add", ["scaled", "bias"], ["Y"]),
            ],
            w=np.ascontiguousarray(node.dense().T),
        )
        np.testing.assert_array_equal(got, node.expected())


def test_rows_are_quantized_as_tensors_of_one_row():
    node = random_node(DYNAMIC, 8, per_row=1, residual=False)
    rows = [node.having(X=row[None], per_row=0).expected() for row in node.x]
    np.testing.assert_array_equal(node.expected(), np.concatenate(rows))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_makes_its_row_or_the_tensor_nan(value: float):
    node = random_node(DYNAMIC, 9, per_row=1, residual=False)
    x = node.x.copy()
    x[1, 3] = value
    got = node.having(X=x).expected()
    np.testing.assert_array_equal(np.isnan(got).all(axis=1), np.arange(5) == 1)
    assert not np.isnan(got[[0, 2, 3, 4]]).any()
    assert np.isnan(node.having(X=x, per_row=0).expected()).all()


# Schemas


def inferred(node: Node, **build) -> tuple[int, list]:
    register_schemas()
    model = node.build(**build)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    y = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph.output[0]
    dims = y.type.tensor_type.shape.dim
    return y.type.tensor_type.elem_type, [d.dim_param or d.dim_value for d in dims]


@every_op
def test_inference_gives_the_type_and_the_sizes(op: str):
    for seed in range(6):
        node = random_node(op, seed)
        wanted = node.expected()
        kind = helper.np_dtype_to_tensor_dtype(wanted.dtype)
        assert inferred(node, x_shape=node.x.shape) == (kind, list(wanted.shape))


def test_inference_keeps_symbolic_names_where_sizes_stay():
    node = random_node(QLINEAR_CONV, 0, geometry=GEOMETRIES[2], channels_last=1)
    _, dims = inferred(node, x_shape=["n", "h", "w", 4])
    assert dims == ["n", "h", "w", 8]
    _, dims = inferred(random_node(TO_FLOAT, 0), x_shape=["n", "tokens", 37])
    assert dims == ["n", "tokens", 19]


@pytest.mark.parametrize(
    ("op", "changes", "sentence"),
    [
        (QLINEAR_GEMM, {"values_scale": np.ones(18, np.float32)}, r"\[18\], .* \[19\] or \[1\]"),
        (QLINEAR_GEMM, {"x_scale": np.ones(2, np.float32)}, r"x_scale .*\[2\], .* \[\] or \[1\]"),
        (QLINEAR_CONV, {"y_zero_point": np.zeros((1, 1), np.int8)}, "y_zero_point has the shape"),
        (TO_FLOAT, {"bias": np.zeros(18, np.float32)}, r"bias has the shape \[18\]"),
        (TO_FLOAT, {"bias": np.zeros(19, np.int32)}, "bias typestr"),
        (
            TO_FLOAT,
            {"x_zero_point": np.float32(0)},
            "typestr|different types",
        ),
        (DYNAMIC, {"in_features": 36}, "last dimension of X is 37, in_features is 36"),
    ],
)
def test_schema_refuses_wrong_shapes_and_types(op: str, changes, sentence: str):
    register_schemas()
    node = random_node(op, 0)
    model = node.having(**changes).build(x_shape=node.x.shape)
    with pytest.raises(onnx.shape_inference.InferenceError, match=sentence):
        onnx.checker.check_model(model, full_check=True)
