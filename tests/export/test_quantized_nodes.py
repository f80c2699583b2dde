"""What the exporter's passes and the inspection make of ops on 8-bit integers in a model."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from fanin.export import ExportError
from fanin.export.onnx_inspect import condensed_weights, inspect
from fanin.export.passes.attach_functions import AttachFunctionsPass
from fanin.export.passes.nodes import condensed_nodes, our_nodes
from fanin.ort_ops.contract import QUANTIZED_OPS

from ..ort_ops._quantized import (
    DYNAMIC,
    GEOMETRIES,
    QLINEAR_CONV,
    QLINEAR_GEMM,
    TO_FLOAT,
    random_node,
)

every_op = pytest.mark.parametrize("op", QUANTIZED_OPS)


def attached(model: onnx.ModelProto) -> onnx.ModelProto:
    read = ir.serde.deserialize_model(model)
    AttachFunctionsPass()(read)
    return ir.serde.serialize_model(read)


def run_without_library(model: onnx.ModelProto, feeds) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


@every_op
def test_a_model_gets_the_function_of_each_op_and_runs_without_library(op: str):
    for seed in range(6):
        node = random_node(op, seed, largest=64)
        model = attached(node.build())
        assert [function.name for function in model.functions] == [op]
        got = run_without_library(model, node.feeds())
        np.testing.assert_array_equal(got, node.expected())


@pytest.mark.parametrize(("op", "flag"), [(QLINEAR_CONV, "channels_last"), (DYNAMIC, "per_row")])
def test_a_function_without_a_flag_is_the_smaller_one(op: str, flag: str):
    sizes = []
    for value in (0, 1):
        node = random_node(op, 3, x_type=np.uint8, largest=64, **{flag: value})
        model = attached(node.build())
        sizes.append(len(model.functions[0].node))
        np.testing.assert_array_equal(run_without_library(model, node.feeds()), node.expected())
    assert sizes[0] < sizes[1]


def test_defaults_are_written_since_no_inliner_knows_them():
    node = random_node(DYNAMIC, 4)
    sizes = {name: node.attributes[name] for name in ("in_features", "out_features")}
    (made,) = attached(type(node)(DYNAMIC, node.arrays, sizes).build()).graph.node
    found = {item.name: onnx.helper.get_attribute_value(item) for item in made.attribute}
    assert found == {**sizes, "clip_min": -np.inf, "clip_max": np.inf, "per_row": 0}


@every_op
def test_the_passes_on_floats_leave_the_node_alone(op: str):
    model = ir.serde.deserialize_model(random_node(op, 5).build())
    assert condensed_nodes(model) == []
    assert [node.op_type for node in our_nodes(model)] == [op]


@every_op
def test_inspect_lists_what_the_node_stores(tmp_path, op: str):
    node = random_node(op, 6, geometry=GEOMETRIES[0], residual=False, clip=(0.0, 6.0))
    path = tmp_path / "model.onnx"
    onnx.save(node.build(), path)
    inspection = inspect(path)
    (layer,) = inspection.layers
    dense = node.dense()
    assert (layer.kind, layer.name, layer.shape) == (op, "the_layer", dense.shape)
    assert (layer.active, layer.values_dtype) == (len(node.arrays["rows"]), "int8")
    stored = ("values", "values_scale", "indices", "bias", "rows")
    assert layer.bytes_condensed == sum(node.arrays[name].nbytes for name in stored)
    assert layer.reason == "clip [0, 6]"
    assert not inspection.runs_without_library
    assert condensed_weights(path) == {}


def test_inspect_names_what_breaks_the_format(tmp_path):
    path = tmp_path / "model.onnx"
    node = random_node(TO_FLOAT, 7)
    for name, array, sentence in (
        ("indices", np.full_like(node.arrays["indices"], 99), r"indices\[0, 0\] is 99"),
        ("values", node.arrays["values"].astype(np.float32), "values is float32, it must be int8"),
    ):
        onnx.save(node.having(**{name: array}).build(), path)
        with pytest.raises(ExportError, match=rf"'the_layer' \({TO_FLOAT}\): {sentence}"):
            inspect(path)
    onnx.save(random_node(QLINEAR_GEMM, 7).build(fed=("X", "values_scale")), path)
    with pytest.raises(ExportError, match="values_scale is missing or not a constant"):
        inspect(path)
