"""Operators on 8-bit integers with sparse weights become ours, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from fanin.export import convert

from .onnx_models import node_types, run
from .quantized_models import X_SCALE, grid, int8, node, quantize, scales, write

W = int8((48, 32))
GRIDS = {**grid("x", X_SCALE, 117), **grid("y", 0.015, 131)}
WEIGHT = {"w": W, "w_scale": scales(32), "w_zero": np.zeros(32, np.int8)}
SINGLE = {"w": W, "w_scale": np.float32(0.003), "w_zero": np.int8(0)}
TRANSPOSED = {**WEIGHT, "w": W.T.copy()}
ON_X = ["x", "x_scale", "x_zero"]
ON_W = ["w", "w_scale", "w_zero"]
ON_Y = ["y_scale", "y_zero"]
INTEGERS = np.random.default_rng(7).integers(-9000, 9000, 32).astype(np.int32)
BIAS = np.linspace(-3, 3, 32).astype(np.float32)


def used(nodes, arrays) -> dict[str, np.ndarray]:
    names = {name for n in nodes for name in n.input}
    return {name: array for name, array in arrays.items() if name in names}


STATIC = {
    "QLinearMatMul": ([node("QLinearMatMul", [*ON_X, *ON_W, *ON_Y], "y")], WEIGHT),
    "QLinearMatMul per tensor": ([node("QLinearMatMul", [*ON_X, *ON_W, *ON_Y], "y")], SINGLE),
    "QGemm": (
        [node("QGemm", [*ON_X, *ON_W, "b", *ON_Y], "y", "com.microsoft", transB=1)],
        {**TRANSPOSED, "b": INTEGERS},
    ),
    "QGemm without bias": (
        [node("QGemm", [*ON_X, *ON_W, "", *ON_Y], "y", "com.microsoft")],
        SINGLE,
    ),
    "QGemm scaled": (
        [node("QGemm", [*ON_X, *ON_W, "b", *ON_Y], "y", "com.microsoft", alpha=0.5)],
        {**SINGLE, "b": INTEGERS},
    ),
}


@pytest.mark.parametrize("case", STATIC)
def test_linear_operator_gives_the_same_integers(tmp_path: Path, case: str):
    nodes, arrays = STATIC[case]
    source = write(
        tmp_path / "in.onnx",
        nodes,
        used(nodes, {**GRIDS, **arrays}),
        x=("batch", 48),
        y=("batch", 32),
        x_type=TensorProto.UINT8,
        y_type=TensorProto.UINT8,
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert [layer.decision for layer in report.layers] == ["condensed"]
    assert node_types(tmp_path / "out.onnx") == ["QLinearCondensedGemm"]
    x = np.random.default_rng(3).integers(0, 256, (300, 48)).astype(np.uint8)
    (expected,) = run(source, x=x)
    assert np.unique(expected).size > 150
    for library in (False, True):
        np.testing.assert_array_equal(run(tmp_path / "out.onnx", library=library, x=x)[0], expected)


@pytest.mark.parametrize("group", [1, 2])
def test_convolution_gives_the_same_integers(tmp_path: Path, group: int):
    arrays = {
        **GRIDS,
        "w": int8((32, 8 // group, 3, 3)),
        "w_scale": scales(32),
        "w_zero": np.zeros(32, np.int8),
        "b": INTEGERS,
    }
    inputs = [*ON_X, *ON_W, *ON_Y, "b"]
    nodes = [node("QLinearConv", inputs, "y", pads=[1, 1, 1, 1], strides=[1, 2], group=group)]
    source = write(
        tmp_path / "in.onnx",
        nodes,
        arrays,
        x=("batch", 8, 11, 9),
        x_type=TensorProto.UINT8,
        y_type=TensorProto.UINT8,
    )
    convert(source, tmp_path / "out.onnx", policy="condensed")
    assert node_types(tmp_path / "out.onnx") == ["QLinearCondensedConv"]
    x = np.random.default_rng(3).integers(0, 256, (2, 8, 11, 9)).astype(np.uint8)
    (expected,) = run(source, x=x)
    for library in (False, True):
        np.testing.assert_array_equal(run(tmp_path / "out.onnx", library=library, x=x)[0], expected)


def dynamic(name: str, output: str, *, weight: str = "w", bias: str | None = "b"):
    """Nodes of quantize_dynamic after the DynamicQuantizeLinear of ``name``."""
    end = f"{output}_product" if bias else output
    nodes = [
        node("Mul", [f"{name}_scale", f"{weight}_scale"], f"{output}_scales"),
        node(
            "MatMulInteger",
            [f"{name}_q", weight, f"{name}_zero", f"{weight}_zero"],
            f"{output}_sum",
        ),
        node("Cast", [f"{output}_sum"], f"{output}_real", to=TensorProto.FLOAT),
        node("Mul", [f"{output}_real", f"{output}_scales"], end),
    ]
    return [*nodes, *([node("Add", [bias, end], output)] if bias else [])]


def quantizer(name: str):
    made = node("DynamicQuantizeLinear", [name], f"{name}_q")
    made.output.extend([f"{name}_scale", f"{name}_zero"])
    return made


ON_FLOATS = {
    "DynamicQuantizeLinear of one layer": (
        [quantizer("x"), *dynamic("x", "y")],
        {**WEIGHT, "b": BIAS},
        ["DynamicQuantizeCondensedGemm"],
    ),
    "without bias": (
        [quantizer("x"), *dynamic("x", "y", bias=None)],
        SINGLE,
        ["DynamicQuantizeCondensedGemm"],
    ),
    "DynamicQuantizeLinear of two layers": (
        [
            quantizer("x"),
            *dynamic("x", "h"),
            *dynamic("x", "g", weight="v", bias=None),
            node("Sub", ["h", "g"], "y"),
        ],
        {
            **WEIGHT,
            "b": BIAS,
            "v": int8((48, 32), seed=4),
            "v_scale": np.float32(0.004),
            "v_zero": np.int8(0),
        },
        [
            "DynamicQuantizeLinear",
            "CondensedGemmIntegerToFloat",
            "CondensedGemmIntegerToFloat",
            "Sub",
        ],
    ),
    "DynamicQuantizeMatMul": (
        [node("DynamicQuantizeMatMul", ["x", *ON_W, "b"], "y", "com.microsoft")],
        {**WEIGHT, "b": BIAS},
        ["DynamicQuantizeCondensedGemm"],
    ),
    "DynamicQuantizeMatMul without zero point": (
        [node("DynamicQuantizeMatMul", ["x", *ON_W[:2]], "y", "com.microsoft")],
        SINGLE,
        ["DynamicQuantizeCondensedGemm"],
    ),
    "MatMulIntegerToFloat": (
        [
            quantizer("x"),
            node(
                "MatMulIntegerToFloat",
                ["x_q", "w", "x_scale", "w_scale", "x_zero", "w_zero", "b"],
                "y",
                "com.microsoft",
            ),
        ],
        {**WEIGHT, "b": BIAS},
        ["DynamicQuantizeLinear", "CondensedGemmIntegerToFloat"],
    ),
    "integer bias and a constant scale": (
        [
            quantize("x", "x_q", "x"),
            node("MatMulInteger", ["x_q", "w", "x_zero", "w_zero"], "sum"),
            node("Add", ["sum", "integers"], "total"),
            node("Cast", ["total"], "real", to=TensorProto.FLOAT),
            node("Mul", ["real", "w_scale"], "y"),
        ],
        {**WEIGHT, **grid("x", X_SCALE, 117), "integers": INTEGERS},
        ["QuantizeLinear", "CondensedGemmIntegerToFloat"],
    ),
}


@pytest.mark.parametrize("case", ON_FLOATS)
def test_operator_of_float_outputs(tmp_path: Path, case: str):
    nodes, arrays, types = ON_FLOATS[case]
    source = write(tmp_path / "in.onnx", nodes, arrays, x=("batch", 5, 48), y=("batch", 5, 32))
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert {layer.decision for layer in report.layers} == {"condensed"}
    assert node_types(tmp_path / "out.onnx") == types
    x = np.random.default_rng(3).standard_normal((7, 5, 48)).astype(np.float32)
    (expected,) = run(source, x=x)
    for library in (False, True):
        (actual,) = run(tmp_path / "out.onnx", library=library, x=x)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_integers_with_a_constant_scale_are_quantized_again(tmp_path: Path):
    """SparseML's form of a linear layer between quantized activations."""
    nodes = [
        node("MatMulInteger", ["x", "w", "x_zero", "w_zero"], "sum"),
        node("Add", ["sum", "integers"], "total"),
        node("Cast", ["total"], "real", to=TensorProto.FLOAT),
        node("Mul", ["real", "w_scale"], "h"),
        node("Relu", ["h"], "r"),
        quantize("r", "y", "y"),
    ]
    arrays = {**WEIGHT, "x_zero": np.uint8(117), **grid("y", 30.0, 0), "integers": INTEGERS}
    source = write(
        tmp_path / "in.onnx",
        nodes,
        arrays,
        x=("batch", 48),
        x_type=TensorProto.UINT8,
        y_type=TensorProto.UINT8,
    )
    convert(source, tmp_path / "out.onnx", policy="condensed")
    assert node_types(tmp_path / "out.onnx") == ["QLinearCondensedGemm"]
    x = np.random.default_rng(3).integers(0, 256, (300, 48)).astype(np.uint8)
    (expected,) = run(source, x=x)
    for library in (False, True):
        (actual,) = run(tmp_path / "out.onnx", library=library, x=x)
        assert np.abs(actual.astype(int) - expected).max() <= 1
        assert np.mean(actual != expected) < 0.01


LEFT = {
    "integer sums that nothing scales": (
        [node("MatMulInteger", ["x", "w", "x_zero", "w_zero"], "y")],
        {**WEIGHT, "x_zero": np.uint8(117)},
        "not scaled to floats",
    ),
    "asymmetric weight": (
        [node("QLinearMatMul", [*ON_X, *ON_W, *ON_Y], "h"), node("Identity", ["h"], "y")],
        {
            **GRIDS,
            "w": np.clip(W.astype(np.int16) + 100, 0, 255).astype(np.uint8),
            "w_scale": np.float32(0.003),
            "w_zero": np.uint8(100),
        },
        "uint8 with the zero point 100",
    ),
    "convolution of dynamically quantized inputs": (
        [node("ConvInteger", ["x", "w", "x_zero"], "y")],
        {"w": int8((32, 8, 3, 3)), "x_zero": np.uint8(117)},
        "no op for convolutions of dynamically quantized inputs",
    ),
    "attention": (
        [
            node(
                "QAttention",
                ["x", "w", "b", "x_scale", "w_scale", "", "x_zero", "w_zero"],
                "y",
                "com.microsoft",
                num_heads=4,
            )
        ],
        {
            **grid("x", X_SCALE, 117),
            "w": int8((48, 144)),
            "w_scale": np.float32(0.003),
            "w_zero": np.int8(0),
            "b": np.zeros(144, np.float32),
        },
        "more than a linear layer",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_layer_without_an_op_of_ours_is_reported(tmp_path: Path, case: str):
    nodes, arrays, reason = LEFT[case]
    shapes = {"convolution": ("batch", 8, 9, 9), "attention": ("batch", 5, 48)}
    outputs = {"asymmetric": TensorProto.UINT8, "attention": TensorProto.FLOAT}
    kind = case.split()[0]
    source = write(
        tmp_path / "in.onnx",
        nodes,
        arrays,
        x=shapes.get(kind, ("batch", 48)),
        y=("batch", 5, 48) if kind == "attention" else None,  # which inference does not know
        x_type=TensorProto.UINT8,
        y_type=outputs.get(kind, TensorProto.INT32),
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    (layer,) = report.layers
    assert layer.decision == "dense"
    assert layer.sparsity > 0.85
    assert reason in layer.reason


@pytest.mark.parametrize(
    ("shape", "x", "y"),
    [((32, 1), (32, 48), (32, 32)), ((1, 1, 32), (32, 48), (1, 32, 32)), ((1, 32), (48,), (1, 32))],
)
@pytest.mark.parametrize("runtime", [False, True])
def test_scales_that_are_not_one_for_each_output_stay(
    tmp_path: Path, shape: tuple[int, ...], x: tuple[int, ...], y: tuple[int, ...], runtime: bool
):
    arrays = {**WEIGHT, "w_scale": scales(32).reshape(shape), "w_zero": np.int8(0)}
    nodes = [quantizer("x"), *dynamic("x", "y", bias=None)]
    if not runtime:
        arrays |= grid("x", X_SCALE, 117)
        nodes = [quantize("x", "x_q", "x"), *nodes[1:]]
        nodes = [n for n in nodes if n.output[0] != "y_scales"]
        nodes[-1].input[:] = [nodes[-1].input[0], "w_scale"]
    source = write(tmp_path / "in.onnx", nodes, used(nodes, arrays), x=x, y=y)
    # ONNX Runtime itself loses such a dimension where it fuses these nodes.
    (layer,) = convert(source, tmp_path / "out.onnx", policy="condensed", verify=False).layers
    assert layer.decision == "dense"
    assert f"its scales have the shape {list(shape)}" in layer.reason
    assert layer.sparsity > 0.85


def test_bias_of_each_row_of_the_output_stays(tmp_path: Path):
    nodes = [node("QGemm", [*ON_X, *ON_W, "b", *ON_Y], "y", "com.microsoft")]
    arrays = used(nodes, {**GRIDS, **WEIGHT, "b": INTEGERS.reshape(32, 1)})
    types = {"x_type": TensorProto.UINT8, "y_type": TensorProto.UINT8}
    source = write(tmp_path / "in.onnx", nodes, arrays, x=(32, 48), y=(32, 32), **types)
    (layer,) = convert(source, tmp_path / "out.onnx", policy="condensed", verify=False).layers
    assert (layer.decision, layer.reason) == ("dense", "its bias is no constant vector")


def test_run_time_scales_are_inputs_of_the_node(tmp_path: Path):
    """A QLinearMatMul may take its scales from the graph; ours does as well."""
    nodes = [
        node("Mul", ["x_scale", "x_scale"], "x_run"),
        node("QLinearMatMul", ["x", "x_run", "x_zero", *ON_W, *ON_Y], "y"),
    ]
    arrays = {**GRIDS, **WEIGHT}
    del arrays["x_scale"]
    scale = helper.make_tensor_value_info("x_scale", TensorProto.FLOAT, [])
    source = write(
        tmp_path / "in.onnx",
        nodes,
        arrays,
        x=("batch", 48),
        x_type=TensorProto.UINT8,
        y_type=TensorProto.UINT8,
        inputs=[scale],
    )
    given = {"x": np.full((2, 48), 130, np.uint8), "x_scale": np.array(0.01, np.float32)}
    report = convert(source, tmp_path / "out.onnx", policy="condensed", inputs=[given])
    assert report.layers[0].decision == "condensed"
    x = np.random.default_rng(3).integers(0, 256, (30, 48)).astype(np.uint8)
    for value in (0.07, 0.2):
        feeds = {"x": x, "x_scale": np.array(value, np.float32)}
        (expected,) = run(source, **feeds)
        for library in (False, True):
            (actual,) = run(tmp_path / "out.onnx", library=library, **feeds)
            np.testing.assert_array_equal(actual, expected)


def test_layer_in_a_branch_is_condensed(tmp_path: Path):
    """Scales stay in the outer graph; weights are constants of the branch."""
    layer = node("QLinearMatMul", [*ON_X, *ON_W, *ON_Y], "inner")
    port = helper.make_tensor_value_info("inner", TensorProto.UINT8, None)
    then = helper.make_graph([layer], "then", [], [port])
    zeros = node("QLinearMatMul", [*ON_X, *ON_W, "x_scale", "x_zero"], "other")
    port = helper.make_tensor_value_info("other", TensorProto.UINT8, None)
    otherwise = helper.make_graph([zeros], "otherwise", [], [port])
    branch = node("If", ["flag"], "y", then_branch=then, else_branch=otherwise)
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    source = write(
        tmp_path / "in.onnx",
        [branch],
        {**GRIDS, **WEIGHT},
        x=("batch", 48),
        y=("batch", 32),
        x_type=TensorProto.UINT8,
        y_type=TensorProto.UINT8,
        inputs=[flag],
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert [layer.decision for layer in report.layers] == ["condensed"]
    x = np.random.default_rng(3).integers(0, 256, (9, 48)).astype(np.uint8)
    for given in (False, True):
        feeds = {"x": x, "flag": np.array(given)}
        (expected,) = run(source, **feeds)
        for library in (False, True):
            (actual,) = run(tmp_path / "out.onnx", library=library, **feeds)
            np.testing.assert_array_equal(actual, expected)
