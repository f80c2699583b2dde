"""CondensedConv's models: function, schema, and what runtimes make of them without the library."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.inliner
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fanin.export import CondensedWeight
from fanin.export.onnx_op import (
    OPSETS,
    condensed_conv_function,
    condensed_conv_model,
    dense_conv_model,
    register_schemas,
)
from fanin.ort_ops.contract import DOMAIN
from fanin.ort_ops.format.conv_geometry import ConvGeometry
from fanin.ort_ops.reference import condensed_conv

from .._waiting import PATIENCE

GEOMETRY = ConvGeometry(6, 8, (3, 2), strides=(1, 2), pads=(1, 0, 2, 1), group=2)
GEOMETRIES = {
    "grouped": GEOMETRY,
    "pointwise": ConvGeometry(6, 8, (1, 1)),
    "dilated": ConvGeometry(4, 8, (3, 3), pads=(2, 2, 2, 2), dilations=(2, 2)),
    "depthwise": ConvGeometry(6, 6, (3, 3), strides=(2, 2), pads=(0, 0, 1, 1), group=6),
    "line": ConvGeometry(6, 8, (4,), strides=(3,), pads=(2, 1), dilations=(2,), group=2),
    "line-pointwise": ConvGeometry(6, 8, (1,)),
}
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)

SIZE = (2, 9, 8)
DYNAMIC = (None, None, None)


def layer(geometry: ConvGeometry = GEOMETRY, seed: int = 0) -> CondensedWeight:
    """Unequal rows and an ablated filter."""
    rng = np.random.default_rng(seed)
    mask = rng.random(geometry.weight_shape) < 0.3
    mask[1] = False
    return CondensedWeight.from_dense(
        rng.standard_normal(geometry.weight_shape).astype(np.float32),
        rng.standard_normal(geometry.out_channels).astype(np.float32),
        mask,
    )


def x_of(geometry: ConvGeometry, dtype: type = np.float32) -> np.ndarray:
    rng = np.random.default_rng(1)
    shape = (SIZE[0], geometry.in_channels, *SIZE[1 : 1 + geometry.axes])
    return rng.standard_normal(shape).astype(dtype)


def expected(weight, geometry, x, residual=None, low=-math.inf, high=math.inf) -> np.ndarray:
    arrays = (weight.values, weight.indices, weight.bias, weight.rows)
    return condensed_conv(
        x, *arrays, residual, **geometry.attributes(), clip_min=low, clip_max=high
    )


def plain_session(model: onnx.ModelProto, optimized: Path | None = None):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
        # The last level reorders for the CPU at hand.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def openvino_run(model: onnx.ModelProto):
    """The model in OpenVINO, which knows no functions of a file, so that they are inlined first."""
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    core = openvino.Core()
    inlined = onnx.inliner.inline_local_functions(model)
    read = core.read_model(io.BytesIO(inlined.SerializeToString()))
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda _, feeds: [compiled(feeds)[0]]


RUNTIMES = {
    "onnxruntime": lambda model: plain_session(model).run,
    "reference": lambda model: ReferenceEvaluator(model).run,
    "openvino": openvino_run,
}
every_runtime = pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=RUNTIMES)


def dynamic(geometry: ConvGeometry) -> tuple[None, ...]:
    return (None,) * (1 + geometry.axes)


@every_runtime
@every_geometry
@pytest.mark.parametrize("build", [condensed_conv_model, dense_conv_model])
def test_models_compute_the_layer(build, geometry, runtime):
    weight, x = layer(geometry), x_of(geometry)
    wanted = expected(weight, geometry, x)
    for size in (dynamic(geometry), SIZE[: 1 + geometry.axes]):
        got = runtime(build(weight, geometry, size))(None, {"x": x})[0]
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max(), rtol=0)


CLIPS = [(-math.inf, math.inf), (0.0, math.inf), (0.0, 6.0), (-1.0, 0.5)]


@every_runtime
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("build", [condensed_conv_model, dense_conv_model])
def test_models_add_the_residual_and_clip(build, clip, runtime):
    weight, x = layer(), x_of(GEOMETRY)
    shape = (2, 8, *GEOMETRY.output_sizes(SIZE[1:]))
    residual = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    model = build(weight, GEOMETRY, DYNAMIC, clip_min=clip[0], clip_max=clip[1], with_residual=True)
    wanted = expected(weight, GEOMETRY, x, residual, *clip)
    got = runtime(model)(None, {"x": x, "residual": residual})[0]
    np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max(), rtol=0)


@every_runtime
@pytest.mark.parametrize("gate", [(1 / 6, 0.5), (0.25, 0.75), (0.0, 1.0), (0.0, 0.5)])
def test_models_gate_what_is_clipped(gate, runtime):
    weight, x = layer(), x_of(GEOMETRY)
    model = condensed_conv_model(weight, GEOMETRY, DYNAMIC, clip_min=-2, gate=gate)
    wanted = np.maximum(expected(weight, GEOMETRY, x), -2)
    wanted = wanted * np.clip(gate[0] * wanted + gate[1], 0, 1)
    got = runtime(model)(None, {"x": x})[0]
    np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max(), rtol=0)


@pytest.mark.parametrize("opset", OPSETS)
@every_geometry
def test_every_opset_passes_checker_and_strict_inference_and_runs(geometry, opset: int):
    register_schemas()
    weight, x = layer(geometry), x_of(geometry)
    model = condensed_conv_model(weight, geometry, dynamic(geometry), clip_min=0, opset=opset)
    assert model.ir_version == 9
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    wanted = expected(weight, geometry, x, low=0)
    np.testing.assert_allclose(plain_session(model).run(None, {"x": x})[0], wanted, atol=1e-5)
    np.testing.assert_allclose(ReferenceEvaluator(model).run(None, {"x": x})[0], wanted, atol=1e-5)


@pytest.mark.parametrize("opset", [15, 24])
def test_other_opsets_are_refused(opset: int):
    with pytest.raises(ValueError, match="16 to 23"):
        condensed_conv_function(opset)


def test_a_layer_without_active_filters_runs_without_library():
    empty = CondensedWeight.from_dense(
        np.zeros(GEOMETRY.weight_shape, np.float32), np.arange(8, dtype=np.float32)
    )
    x = x_of(GEOMETRY)
    got = plain_session(condensed_conv_model(empty, GEOMETRY, DYNAMIC)).run(None, {"x": x})[0]
    np.testing.assert_array_equal(got, expected(empty, GEOMETRY, x))


@pytest.mark.parametrize("opset", [17, 20, 23])
@every_geometry
def test_without_library_the_layer_folds_to_one_dense_conv(tmp_path: Path, geometry, opset: int):
    model = condensed_conv_model(layer(geometry), geometry, dynamic(geometry), opset=opset)
    plain_session(model, tmp_path / "optimized.onnx")
    found = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert found[0] in ("Conv", "FusedConv")
    # The clip to an open interval and, at a graph output only, the cast of float to float.
    assert set(found[1:]) <= {"Clip", "Cast"}


@pytest.mark.parametrize("runtime", [RUNTIMES["onnxruntime"], RUNTIMES["reference"]])
@pytest.mark.parametrize("values", ["float16", "bfloat16"])
def test_function_serves_half_precision_values(values: str, runtime):
    weight, x = layer().astype(values), x_of(GEOMETRY)
    model = condensed_conv_model(weight, GEOMETRY, DYNAMIC)
    wanted = expected(weight, GEOMETRY, x)
    np.testing.assert_allclose(runtime(model)(None, {"x": x})[0], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("element", "dtype", "tolerance"),
    [
        (TensorProto.FLOAT16, np.float16, 2e-3),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16, 2e-2),
    ],
)
def test_function_serves_half_precision_inputs(element: int, dtype: type, tolerance: float):
    weight = layer()
    model = condensed_conv_model(weight, GEOMETRY, DYNAMIC)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = element
    zero = next(t for t in model.graph.initializer if t.name == "residual")
    zero.CopyFrom(numpy_helper.from_array(np.zeros(1, dtype), "residual"))
    onnx.checker.check_model(model, full_check=True)
    x = x_of(GEOMETRY, dtype)
    got = ReferenceEvaluator(model).run(None, {"x": x})[0]
    assert got.dtype == dtype
    wanted = expected(weight, GEOMETRY, x)
    worst = np.abs(got.astype(np.float64) - wanted).max()
    assert worst <= tolerance * np.abs(wanted).max()


def test_function_agrees_with_the_float16_model_in_onnxruntime():
    weight, x = layer(), x_of(GEOMETRY, np.float16)
    model = condensed_conv_model(weight, GEOMETRY, DYNAMIC, x_dtype="float16")
    got = plain_session(model).run(None, {"x": x})[0]
    assert got.dtype == np.float16
    wanted = expected(weight, GEOMETRY, x)
    assert np.abs(got - wanted).max() <= 2e-3 * np.abs(wanted).max()


def dims_of_y(model: onnx.ModelProto) -> list[str | int | None]:
    """What inference says of y, which is then no output of the graph."""
    model.graph.node.append(helper.make_node("Sigmoid", ["y"], ["z"], name="after"))
    kind = model.graph.output[0].type.tensor_type.elem_type
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", kind, None))
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    y = next(value for value in inferred.graph.value_info if value.name == "y")
    dims = [
        d.dim_value if d.HasField("dim_value") else d.dim_param
        for d in y.type.tensor_type.shape.dim
    ]
    return [None if str(dim).startswith("unk__") else dim for dim in dims]


SAME = ConvGeometry(6, 8, (3, 3), pads=(1, 1, 1, 1))
SHAPES = [
    (GEOMETRY, DYNAMIC, ["batch", 8, None, None]),
    (GEOMETRY, (2, 9, 8), [2, 8, 10, 4]),
    (GEOMETRY, (None, 9, None), ["batch", 8, 10, None]),
    (SAME, DYNAMIC, ["batch", 8, "height", "width"]),
    (GEOMETRIES["line"], (None, 9), ["batch", 8, 2]),
    (GEOMETRIES["line-pointwise"], (None, None), ["batch", 8, "length"]),
]


@pytest.mark.parametrize(("geometry", "size", "wanted"), SHAPES, ids=str)
def test_shape_after_the_node_is_inferred(geometry, size, wanted):
    register_schemas()
    assert dims_of_y(condensed_conv_model(layer(geometry), geometry, size)) == wanted


def test_an_input_of_unknown_rank_still_tells_the_rank_and_the_channels():
    register_schemas()
    model = condensed_conv_model(layer(), GEOMETRY, DYNAMIC)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert dims_of_y(model) == [None, 8, None, None]


UNREGISTERED = """
import onnx, sys
from onnx import defs
model = onnx.load(sys.argv[1])
assert not defs.has("CondensedConv", domain="ai.fanin")
onnx.checker.check_model(model, full_check=True)
del model.graph.value_info[:]
inferred = onnx.shape_inference.infer_shapes(
    model, check_type=True, strict_mode=True, data_prop=True
)
y = next(v for v in inferred.graph.value_info if v.name == "y")
print([d.dim_param or d.dim_value for d in y.type.tensor_type.shape.dim])
"""


def test_checker_and_strict_inference_pass_where_the_schema_is_unknown(tmp_path: Path):
    model = condensed_conv_model(layer(), GEOMETRY, (None, 9, 8))
    model.graph.node.append(helper.make_node("Sigmoid", ["y"], ["z"], name="after"))
    model.graph.output[0].name = "z"
    onnx.save(model, tmp_path / "model.onnx")
    command = [sys.executable, "-c", UNREGISTERED, str(tmp_path / "model.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    # The function's arithmetic on the kernel's shape is beyond inference, so that the channels are
    # unknown; exported files state every shape.
    assert re.fullmatch(r"\['batch', 'unk__\d+', 10, 4\]", done.stdout.strip())


def test_registering_twice_changes_nothing():
    register_schemas()
    register_schemas()
    assert onnx.defs.get_schema("CondensedConv", domain=DOMAIN).since_version == 1


def changed_attribute(**changes):
    """Change or, with None, take out attributes of the node."""

    def mutate(model: onnx.ModelProto) -> None:
        node = model.graph.node[0]
        kept = [a for a in node.attribute if a.name not in changes]
        del node.attribute[:]
        node.attribute.extend(kept)
        for name, value in changes.items():
            if value is not None:
                node.attribute.append(helper.make_attribute(name, value))

    return mutate


def without_residual(model: onnx.ModelProto) -> None:
    del model.graph.node[0].input[5]


@pytest.mark.parametrize(
    ("mutate", "sentence"),
    [
        (without_residual, r"Node\(layer\).*has input size 5 not in range \[min=6, max=6\]"),
        (changed_attribute(pads=None), "Required attribute 'pads' is missing"),
        (changed_attribute(group=None), "Required attribute 'group' is missing"),
        (changed_attribute(auto_pad="SAME_UPPER"), "Unrecognized attribute: auto_pad"),
        (changed_attribute(strides=2), "Mismatched attribute type in 'layer : strides'"),
    ],
)
def test_schema_refuses_wrong_inputs_and_attributes(mutate, sentence: str):
    register_schemas()
    model = condensed_conv_model(layer(), GEOMETRY, DYNAMIC)
    mutate(model)
    with pytest.raises(onnx.checker.ValidationError, match=sentence):
        onnx.checker.check_model(model)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"strides": [1, 0]}, r"strides\[1\] is 0"),
        ({"strides": [1]}, r"strides is \[1\], it must have 2 numbers"),
        ({"pads": [0, 0, -1, 0]}, r"pads\[2\] is -1, it must be 0 to"),
        ({"pads": [1, 1]}, r"pads is \[1, 1\], it must have 4 numbers"),
        ({"dilations": [2**31, 1]}, r"dilations\[0\] is 2147483648"),
        ({"kernel_shape": [3, 2, 1]}, r"kernel_shape is \[3, 2, 1\], it must have one or two"),
        ({"group": 4}, "in_channels is 6, it must be a multiple of group, which is 4"),
        ({"out_channels": 10}, r"bias has the shape \[8\], it must be \[10\]"),
        ({"in_channels": 8}, r"X has the shape \[\?, 6, \?, \?\], it must be \[N, C, H, W\]"),
    ],
    ids=str,
)
def test_schema_refuses_contradicting_attributes_under_the_full_check(changes, sentence: str):
    register_schemas()
    model = condensed_conv_model(layer(), GEOMETRY, DYNAMIC)
    changed_attribute(**changes)(model)
    with pytest.raises(onnx.shape_inference.InferenceError, match=f"layer.*{sentence}"):
        onnx.checker.check_model(model, full_check=True)


def test_schema_refuses_an_input_that_is_shorter_than_the_kernel():
    register_schemas()
    model = condensed_conv_model(layer(SAME), SAME, (1, None, 9))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 0
    with pytest.raises(
        onnx.shape_inference.InferenceError, match="X is 0 long on spatial axis 0, shorter than"
    ):
        onnx.checker.check_model(model, full_check=True)


def test_models_refuse_a_weight_or_a_size_of_another_convolution():
    with pytest.raises(
        ValueError, match=r"the weight is \[8, 18\].*\[8, 6, 3, 3\] needs \[8, 54\]"
    ):
        condensed_conv_model(layer(), SAME, DYNAMIC)
    with pytest.raises(ValueError, match=r"size is \(2, 9\), it must be \(N, H, W\)"):
        dense_conv_model(layer(), GEOMETRY, (2, 9))
    with pytest.raises(ValueError, match="x_dtype is 'bfloat16'"):
        condensed_conv_model(layer(), GEOMETRY, DYNAMIC, x_dtype="bfloat16")
