"""The op's models: function body, schema, and what ONNX Runtime makes of them."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fanin.export import CondensedWeight
from fanin.export.onnx_op import (
    OPSETS,
    condensed_gemm_function,
    condensed_layer_model,
    dense_layer_model,
    register_schemas,
)
from fanin.ort_ops.contract import DOMAIN

from .._waiting import PATIENCE


def layer(seed: int = 0, shape: tuple[int, int] = (24, 40)) -> CondensedWeight:
    """Unequal rows and two ablated neurons."""
    rng = np.random.default_rng(seed)
    mask = rng.random(shape) < 0.2
    mask[[1, shape[0] - 1]] = False
    return CondensedWeight.from_dense(
        rng.standard_normal(shape).astype(np.float32),
        rng.standard_normal(shape[0]).astype(np.float32),
        mask,
    )


def expected(weight: CondensedWeight, x, residual=0.0, low=-math.inf, high=math.inf) -> np.ndarray:
    y = x.astype(np.float64) @ weight.to_dense().astype(np.float64).T + weight.bias + residual
    return np.clip(y, low, high)


def plain_session(model: onnx.ModelProto, optimized: Path | None = None):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


CLIPS = [(-math.inf, math.inf), (0.0, math.inf), (0.0, 6.0), (-1.0, 0.5)]


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("build", [condensed_layer_model, dense_layer_model])
def test_models_compute_the_layer_in_runtime_and_reference(build, clip, with_residual):
    weight, rng = layer(), np.random.default_rng(1)
    model = build(weight, None, clip_min=clip[0], clip_max=clip[1], with_residual=with_residual)
    feeds = {"x": rng.standard_normal((5, 40)).astype(np.float32)}
    residual = np.zeros(1)
    if with_residual:
        residual = feeds["residual"] = rng.standard_normal((5, 24)).astype(np.float32)
    wanted = expected(weight, feeds["x"], residual, *clip)
    scale = np.abs(wanted).max()
    for run in (plain_session(model).run, ReferenceEvaluator(model).run):
        np.testing.assert_allclose(run(None, feeds)[0], wanted, atol=1e-5 * scale, rtol=0)


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset_passes_checker_and_strict_inference_and_runs(opset: int):
    register_schemas()
    weight = layer()
    model = condensed_layer_model(weight, None, clip_min=0, opset=opset)
    assert model.ir_version == 9
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    x = np.random.default_rng(2).standard_normal((3, 40)).astype(np.float32)
    wanted = expected(weight, x, low=0)
    np.testing.assert_allclose(plain_session(model).run(None, {"x": x})[0], wanted, atol=1e-5)
    np.testing.assert_allclose(ReferenceEvaluator(model).run(None, {"x": x})[0], wanted, atol=1e-5)


@pytest.mark.parametrize("opset", [15, 24])
def test_other_opsets_are_refused(opset: int):
    with pytest.raises(ValueError, match="16 to 23"):
        condensed_gemm_function(opset)


@pytest.mark.parametrize("shape", [(4, 6), (1, 1), (3, 65_536), (2, 65_537)])
def test_layer_without_active_neurons_and_wide_layers_run_without_library(shape):
    empty = CondensedWeight.from_dense(np.zeros(shape, np.float32), np.ones(shape[0], np.float32))
    dense = np.zeros(shape, np.float32)
    dense[0, -1] = 2
    for weight in (empty, CondensedWeight.from_dense(dense)):
        x = np.ones((2, shape[1]), np.float32)
        got = plain_session(condensed_layer_model(weight, 2)).run(None, {"x": x})[0]
        np.testing.assert_array_equal(got, expected(weight, x))


def op_types(model: onnx.ModelProto, folder: Path) -> list[str]:
    """The operators that onnxruntime without the library is left with."""
    plain_session(model, folder / "optimized.onnx")
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


@pytest.mark.parametrize("opset", [17, 20, 23])
def test_without_library_the_layer_folds_to_one_dense_gemm(tmp_path: Path, opset: int):
    found = op_types(condensed_layer_model(layer(), None, opset=opset), tmp_path)
    assert found[0] == "Gemm"
    # The clip to an open interval and, at a graph output only, the cast of float to float.
    assert set(found[1:]) <= {"Clip", "Cast"}


def test_without_library_higher_ranks_fold_to_one_matmul(tmp_path: Path):
    model = condensed_layer_model(layer(), None)
    for value, features in ((model.graph.input[0], 40), (model.graph.output[0], 24)):
        value.CopyFrom(
            helper.make_tensor_value_info(
                value.name, TensorProto.FLOAT, ["batch", "tokens", features]
            )
        )
    onnx.checker.check_model(model, full_check=True)
    assert op_types(model, tmp_path)[:2] == ["MatMul", "Add"]
    x = np.random.default_rng(3).standard_normal((2, 7, 40)).astype(np.float32)
    wanted = expected(layer(), x)
    np.testing.assert_allclose(plain_session(model).run(None, {"x": x})[0], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("element", "dtype", "tolerance"),
    [
        (TensorProto.FLOAT16, np.float16, 2e-3),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16, 2e-2),
    ],
)
def test_function_serves_half_precision_inputs(element: int, dtype: type, tolerance: float):
    weight = layer()
    model = condensed_layer_model(weight, None)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = element
    zero = next(t for t in model.graph.initializer if t.name == "residual")
    zero.CopyFrom(numpy_helper.from_array(np.zeros(1, dtype), "residual"))
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(4).standard_normal((3, 40)).astype(dtype)
    got = ReferenceEvaluator(model).run(None, {"x": x})[0]
    assert got.dtype == dtype
    wanted = expected(weight, x)
    np.testing.assert_allclose(
        got.astype(np.float64), wanted, atol=tolerance * np.abs(wanted).max()
    )


def test_shape_after_the_node_keeps_the_symbolic_batch():
    register_schemas()
    model = condensed_layer_model(layer(), None)
    model.graph.node.append(helper.make_node("Sigmoid", ["y"], ["z"], name="after"))
    model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="z", type=model.graph.output[0].type))
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    y = next(value for value in inferred.graph.value_info if value.name == "y")
    first, second = y.type.tensor_type.shape.dim
    assert (first.dim_param, second.dim_value) == ("batch", 24)


UNREGISTERED = """
import onnx, sys
from onnx import defs
model = onnx.load(sys.argv[1])
assert not defs.has("CondensedGemm", domain="ai.fanin")
onnx.checker.check_model(model, full_check=True)
del model.graph.value_info[:]
inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
y = next(v for v in inferred.graph.value_info if v.name == "y")
assert [d.dim_param or d.dim_value for d in y.type.tensor_type.shape.dim] == ["batch", 24]
"""


def test_checker_and_strict_inference_pass_where_the_schema_is_unknown(tmp_path: Path):
    model = condensed_layer_model(layer(), None)
    model.graph.node.append(helper.make_node("Sigmoid", ["y"], ["z"], name="after"))
    model.graph.output[0].name = "z"
    onnx.save(model, tmp_path / "model.onnx")
    subprocess.run(
        [sys.executable, "-c", UNREGISTERED, str(tmp_path / "model.onnx")],
        check=True,
        timeout=PATIENCE,
    )


def test_registering_twice_changes_nothing():
    register_schemas()
    register_schemas()
    assert onnx.defs.get_schema("CondensedGemm", domain=DOMAIN).since_version == 1


def without_residual(model: onnx.ModelProto) -> None:
    del model.graph.node[0].input[5]


def without_out_features(model: onnx.ModelProto) -> None:
    kept = [a for a in model.graph.node[0].attribute if a.name != "out_features"]
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.extend(kept)


def with_unknown_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("fan_in", 3))


@pytest.mark.parametrize(
    ("mutate", "sentence"),
    [
        (without_residual, r"Node\(layer\).*has input size 5 not in range \[min=6, max=6\]"),
        (without_out_features, "Required attribute 'out_features' is missing"),
        (with_unknown_attribute, "Unrecognized attribute: fan_in"),
    ],
)
def test_schema_refuses_wrong_inputs_and_attributes(mutate, sentence: str):
    register_schemas()
    model = condensed_layer_model(layer(), None)
    mutate(model)
    with pytest.raises(onnx.checker.ValidationError, match=sentence):
        onnx.checker.check_model(model)


@pytest.mark.parametrize(
    ("name", "array", "sentence"),
    [
        ("indices", np.zeros((22, 12), np.int64), r"indices typestr: TI, has unsupported type"),
        ("rows", np.zeros(22, np.int64), r"rows typestr: tensor\(int32\), has unsupported type"),
        ("bias", np.zeros(23, np.float32), r"layer.*bias has the shape \[23\], it must be \[24\]"),
        ("rows", np.zeros(21, np.int32), r"rows has the shape \[21\], values has \[22, "),
        ("values", np.zeros(22, np.float32), r"values has the shape \[22\], it must be"),
        ("indices", np.zeros((22, 1), np.int32), r"indices has the shape \[22, 1\], values has"),
    ],
)
def test_schema_refuses_wrong_types_and_shapes_under_the_full_check(name, array, sentence: str):
    register_schemas()
    model = condensed_layer_model(layer(), None)
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    with pytest.raises(onnx.shape_inference.InferenceError, match=sentence):
        onnx.checker.check_model(model, full_check=True)


def test_schema_refuses_an_input_of_another_width():
    register_schemas()
    model = condensed_layer_model(layer(), None)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 41
    with pytest.raises(
        onnx.shape_inference.InferenceError, match="last dimension of X is 41, in_features is 40"
    ):
        onnx.checker.check_model(model, full_check=True)
