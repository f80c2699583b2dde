"""What becomes of quantized layers in ONNX files, whichever operators say them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fanin.export import ExportError, convert, onnx_convert
from fanin.export.passes import condense_quantized
from fanin.export.report import UNCHANGED

from .onnx_models import node_types, run
from .quantized_models import (
    X_SCALE,
    Y_SCALE,
    dequantize,
    grid,
    int8,
    node,
    quantize,
    scales,
    write,
)

W = int8((48, 32))
BIAS = np.linspace(-3, 3, 32).astype(np.float32)
GRIDS = {**grid("x", X_SCALE, 117), **grid("y", Y_SCALE, 131)}
PER_COLUMN = {"w": W, "w_scale": scales(32), "w_zero": np.zeros(32, np.int8)}
PER_ROW = {"w": W.T.copy(), "w_scale": scales(32), "w_zero": np.zeros(32, np.int8)}
PER_TENSOR = {"w": W, "w_scale": np.float32(0.003), "w_zero": np.int8(0)}
UINT8 = {
    "w": (W.astype(np.int16) + 128).astype(np.uint8),
    "w_scale": scales(32),
    "w_zero": np.full(32, 128, np.uint8),
}
BEGIN = [quantize("x", "xq", "x"), dequantize("xq", "xd", "x")]
END = [quantize("h", "yq", "y"), dequantize("yq", "y", "y")]
MATMUL = [dequantize("w", "wd", "w", axis=1), node("MatMul", ["xd", "wd"], "h")]
GEMM_ROWS = dequantize("w", "wd", "w", axis=0)
INT32_BIAS = {
    "b": np.rint(BIAS / (X_SCALE * scales(32))).astype(np.int32),
    "b_scale": X_SCALE * scales(32),
    "b_zero": np.zeros(32, np.int32),
}

BIASED = [
    dequantize("w", "wd", "w", axis=1),
    dequantize("b", "bd", "b", axis=0),
    node("Gemm", ["xd", "wd", "bd"], "h"),
]

LINEAR = {
    "per column": (MATMUL, PER_COLUMN),
    "negative axis": (
        [dequantize("w", "wd", "w", axis=-1), node("MatMul", ["xd", "wd"], "h")],
        PER_COLUMN,
    ),
    "per tensor": (
        [dequantize("w", "wd", "w"), node("MatMul", ["xd", "wd"], "h")],
        PER_TENSOR,
    ),
    "uint8 weights around 128": (MATMUL, UINT8),
    "no zero point of the weight": (
        [node("DequantizeLinear", ["w", "w_scale"], "wd", axis=1), *MATMUL[1:]],
        PER_COLUMN,
    ),
    "transposed weight": (
        [
            GEMM_ROWS,
            node("Transpose", ["wd"], "wt", perm=[1, 0]),
            node("MatMul", ["xd", "wt"], "h"),
        ],
        PER_ROW,
    ),
    "weight quantized in the graph": (
        [
            node("QuantizeLinear", ["wf", "w_scale", "w_zero"], "wq", axis=0),
            dequantize("wq", "wd", "w", axis=0),
            node("Transpose", ["wd"], "wt", perm=[1, 0]),
            node("MatMul", ["xd", "wt"], "h"),
        ],
        {**PER_ROW, "wf": PER_ROW["w"] * PER_ROW["w_scale"][:, None]},
    ),
    "float bias after": (
        [MATMUL[0], node("MatMul", ["xd", "wd"], "p"), node("Add", ["p", "b"], "h")],
        {**PER_COLUMN, "b": BIAS},
    ),
    "int32 bias": (
        [
            dequantize("w", "wd", "w", axis=1),
            dequantize("b", "bd", "b", axis=0),
            node("Gemm", ["xd", "wd", "bd"], "h"),
        ],
        {**PER_COLUMN, **INT32_BIAS},
    ),
    "int32 bias of another scale": (
        [
            dequantize("w", "wd", "w", axis=1),
            dequantize("b", "bd", "b", axis=0),
            node("Gemm", ["xd", "wd", "bd"], "h"),
        ],
        {**PER_COLUMN, **INT32_BIAS, "b_scale": np.float32(2.0) * INT32_BIAS["b_scale"]},
    ),
    "transB, float bias": (
        [GEMM_ROWS, node("Gemm", ["xd", "wd", "b"], "h", transB=1)],
        {**PER_ROW, "b": BIAS},
    ),
    "alpha and beta": (
        [MATMUL[0], node("Gemm", ["xd", "wd", "b"], "h", alpha=0.5, beta=-2.0)],
        {**PER_COLUMN, "b": BIAS},
    ),
    "Relu": (
        [*MATMUL[:1], node("MatMul", ["xd", "wd"], "p"), node("Relu", ["p"], "h")],
        PER_COLUMN,
    ),
    "Relu6": (
        [MATMUL[0], node("MatMul", ["xd", "wd"], "p"), node("Clip", ["p", "low", "high"], "h")],
        {**PER_COLUMN, "low": np.float32(0), "high": np.float32(2)},
    ),
}


def gemm(path: Path, case: str, x: tuple[int | str, ...] = ("batch", 48), **fields) -> Path:
    nodes, arrays = LINEAR[case]
    y = (*x[:-1], 32)
    used = {name for n in [*BEGIN, *nodes, *END] for name in n.input}
    constants = {name: a for name, a in {**GRIDS, **arrays}.items() if name in used}
    return write(path, [*BEGIN, *nodes, *END], constants, x=x, y=y, **fields)


def close_integers(source: Path, target: Path, step: float = Y_SCALE, **inputs) -> float:
    """Compare outputs in steps; return the share that differs, by one step at most."""
    (expected,) = run(source, **inputs)
    worst = 0.0
    for library in (False, True):
        (actual,) = run(target, library=library, **inputs)
        assert actual.shape == expected.shape
        difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64)) / step
        assert difference.max() < 1.5
        worst = max(worst, float(np.mean(difference > 0.5)))
    return worst


@pytest.mark.parametrize("case", LINEAR)
def test_dequantized_product_becomes_one_node(tmp_path: Path, case: str):
    source = gemm(tmp_path / "in.onnx", case)
    before = source.read_bytes()
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert source.read_bytes() == before
    (layer,) = report.layers
    assert (layer.decision, layer.shape, layer.values_dtype) == ("condensed", (32, 48), "int8")
    assert layer.sparsity == pytest.approx(1 - np.count_nonzero(W) / W.size)
    types = node_types(tmp_path / "out.onnx")
    assert types == ["QuantizeLinear", "QLinearCondensedGemm", "DequantizeLinear"]
    x = np.random.default_rng(3).normal(0, 1.5, (200, 48)).astype(np.float32)
    assert close_integers(source, tmp_path / "out.onnx", x=x) < 0.02
    for check in report.layer_checks:
        assert (check.layers, check.checked) == (1, 1)


@pytest.mark.parametrize("opset", [13, 19, 21])
def test_opset_of_the_source_does_not_matter(tmp_path: Path, opset: int):
    source = gemm(tmp_path / "in.onnx", "float bias after", opset=opset)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.layers[0].decision == "condensed"


def test_int8_activations(tmp_path: Path):
    arrays = {**PER_COLUMN, **grid("x", X_SCALE, -11, "int8"), **grid("y", Y_SCALE, 3, "int8")}
    source = write(
        tmp_path / "in.onnx", [*BEGIN, *MATMUL, *END], arrays, x=("batch", 5, 48), y=None
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.layers[0].decision == "condensed"
    x = np.random.default_rng(3).normal(0, 1.5, (7, 5, 48)).astype(np.float32)
    assert close_integers(source, tmp_path / "out.onnx", x=x) < 0.02


def test_float_output_stays_float(tmp_path: Path):
    nodes = [*BEGIN, MATMUL[0], node("MatMul", ["xd", "wd"], "p"), node("Add", ["p", "b"], "y")]
    arrays = {**PER_COLUMN, **grid("x", X_SCALE, 117), "b": BIAS}
    source = write(tmp_path / "in.onnx", nodes, arrays, x=("batch", 48), y=("batch", 32))
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    types = node_types(tmp_path / "out.onnx")
    assert types == ["QuantizeLinear", "CondensedGemmIntegerToFloat"]
    assert report.layers[0].decision == "condensed"
    x = np.random.default_rng(3).normal(0, 1.5, (50, 48)).astype(np.float32)
    (expected,) = run(source, x=x)
    for library in (False, True):
        (actual,) = run(tmp_path / "out.onnx", library=library, x=x)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5)


def test_residual_sum_and_relu_before_quantization_are_fused(tmp_path: Path):
    nodes = [
        *BEGIN,
        quantize("r", "rq", "r"),
        dequantize("rq", "rd", "r"),
        MATMUL[0],
        node("MatMul", ["xd", "wd"], "p"),
        node("Add", ["rd", "p"], "s"),
        node("Relu", ["s"], "h"),
        *END,
    ]
    other = helper.make_tensor_value_info("r", TensorProto.FLOAT, ["batch", 32])
    arrays = {**PER_COLUMN, **GRIDS, **grid("r", 0.04, 100)}
    source = write(
        tmp_path / "in.onnx", nodes, arrays, x=("batch", 48), y=("batch", 32), inputs=[other]
    )
    convert(source, tmp_path / "out.onnx", policy="condensed")
    types = node_types(tmp_path / "out.onnx")
    assert sorted(types) == [
        "DequantizeLinear",
        "QLinearCondensedGemm",
        "QuantizeLinear",
        "QuantizeLinear",
    ]
    rng = np.random.default_rng(3)
    x, r = (rng.normal(0, 1.5, (90, size)).astype(np.float32) for size in (48, 32))
    assert close_integers(source, tmp_path / "out.onnx", x=x, r=r) < 0.02


def test_sum_of_a_rounded_product_stays(tmp_path: Path):
    """A pair of Quantize and Dequantize between product and sum rounds on its own."""
    nodes = [
        *BEGIN,
        MATMUL[0],
        node("MatMul", ["xd", "wd"], "p"),
        quantize("p", "pq", "y"),
        dequantize("pq", "pd", "y"),
        dequantize("r", "rd", "r"),
        node("Add", ["pd", "rd"], "h"),
        quantize("h", "yq", "x"),
        dequantize("yq", "y", "x"),
    ]
    other = helper.make_tensor_value_info("r", TensorProto.UINT8, ["batch", 32])
    arrays = {**PER_COLUMN, **GRIDS, **grid("r", 0.04, 100)}
    source = write(
        tmp_path / "in.onnx", nodes, arrays, x=("batch", 48), y=("batch", 32), inputs=[other]
    )
    convert(source, tmp_path / "out.onnx", policy="condensed")
    assert "Add" in node_types(tmp_path / "out.onnx")


def test_quantized_input_may_have_several_readers(tmp_path: Path):
    """Two layers and a float operator read it; only the layers' products change."""
    second = {"v": int8((48, 32), seed=5), "v_scale": scales(32), "v_zero": np.zeros(32, np.int8)}
    nodes = [
        *BEGIN,
        *MATMUL,
        dequantize("v", "vd", "v", axis=1),
        node("MatMul", ["xd", "vd"], "g"),
        quantize("h", "hq", "y"),
        dequantize("hq", "hd", "y"),
        quantize("g", "gq", "y"),
        dequantize("gq", "gd", "y"),
        node("ReduceMean", ["xd"], "m", axes=[1]),
        node("Add", ["hd", "gd"], "s"),
        node("Add", ["s", "m"], "y"),
    ]
    source = write(
        tmp_path / "in.onnx", nodes, {**PER_COLUMN, **second, **GRIDS}, x=("batch", 48), y=None
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert [layer.decision for layer in report.layers] == ["condensed", "condensed"]
    assert next((check.layers, check.checked) for check in report.layer_checks) == (2, 2)


@pytest.mark.parametrize(
    ("attributes", "skip", "equal"),
    [
        ({"pads": [1] * 4}, {}, True),
        ({"pads": [1] * 4, "strides": [2, 2]}, {"strides": [2, 2]}, True),
        ({"pads": [2] * 4, "dilations": [2, 2]}, {}, True),
        # Equal for even sizes only.
        ({"pads": [1] * 4, "strides": [2, 2]}, {"strides": [2, 2], "pads": [0, 0, 1, 1]}, False),
    ],
)
def test_residual_of_symbolic_sizes_is_fused_where_convolutions_keep_them_equal(
    tmp_path: Path, attributes: dict, skip: dict, equal: bool
):
    arrays, nodes = dict(GRIDS), list(BEGIN)
    for name, size in (("a", 3), ("b", 1), ("s", 1)):
        arrays[name] = int8((8, 8, size, size), 0.8, seed=ord(name))
        arrays |= {f"{name}_scale": 5 * scales(8), f"{name}_zero": np.zeros(8, np.int8)}
        nodes.append(dequantize(name, f"{name}d", name, axis=0))
    for name, x, more in (("a", "xd", attributes), ("s", "xd", skip), ("b", "ar", {})):
        nodes.append(node("Conv", [x, f"{name}d"], f"{name}h", **more))
        if name != "b":
            nodes.append(quantize(f"{name}h", f"{name}q", "y"))
            nodes.append(dequantize(f"{name}q", f"{name}r", "y"))
    nodes += [node("Add", ["bh", "sr"], "sum"), node("Relu", ["sum"], "h"), *END]
    source = write(tmp_path / "in.onnx", nodes, arrays, x=("batch", 8, "height", "width"))
    report = convert(source, tmp_path / "out.onnx", policy="condensed", verify=equal)
    reasons = [layer.reason for layer in report.layers if layer.decision == "dense"]
    if not equal:
        assert [reason for reason in reasons if "fix the sizes of the model's inputs" in reason]
        return
    assert not reasons
    assert "Add" not in node_types(tmp_path / "out.onnx")
    x = np.random.default_rng(3).normal(0, 1.5, (2, 8, 9, 6)).astype(np.float32)
    assert close_integers(source, tmp_path / "out.onnx", x=x) < 0.02


CONVS = {
    "2-D": ((24, 8, 3, 3), (2, 8, 9, 7), {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    "groups": ((24, 4, 3, 3), (2, 8, 9, 7), {"group": 2, "dilations": [2, 1]}),
    "1-D": ((24, 8, 3), (2, 8, 19), {"pads": [2, 0]}),
    "1 x 1": ((24, 16, 1, 1), (2, 16, 5, 5), {}),
    "SAME": ((24, 8, 3, 3), (2, 8, 9, 7), {"auto_pad": "SAME_UPPER"}),
}


@pytest.mark.parametrize("bias", ["none", "float", "int32"])
@pytest.mark.parametrize("case", CONVS)
def test_convolution_becomes_one_node(tmp_path: Path, case: str, bias: str):
    weight_shape, x_shape, attributes = CONVS[case]
    arrays = {
        **GRIDS,
        "w": int8(weight_shape),
        "w_scale": scales(24),
        "w_zero": np.zeros(24, np.int8),
    }
    nodes, inputs = [*BEGIN, dequantize("w", "wd", "w", axis=0)], ["xd", "wd"]
    biases = np.linspace(-2, 2, 24).astype(np.float32)
    if bias == "float":
        arrays["b"] = biases
        inputs.append("b")
    elif bias == "int32":
        arrays["b_scale"] = X_SCALE * arrays["w_scale"]
        arrays["b"] = np.rint(biases / arrays["b_scale"]).astype(np.int32)
        nodes.append(node("DequantizeLinear", ["b", "b_scale"], "bd", axis=0))
        inputs.append("bd")
    nodes += [node("Conv", inputs, "p", **attributes), node("Relu", ["p"], "h"), *END]
    source = write(tmp_path / "in.onnx", nodes, arrays, x=("batch", *x_shape[1:]))
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    (layer,) = report.layers
    assert (layer.decision, layer.shape) == ("condensed", weight_shape)
    types = node_types(tmp_path / "out.onnx")
    assert types == ["QuantizeLinear", "QLinearCondensedConv", "DequantizeLinear"]
    x = np.random.default_rng(3).normal(0, 1.5, x_shape).astype(np.float32)
    assert close_integers(source, tmp_path / "out.onnx", x=x) < 0.02


def test_ablated_rows_keep_their_bias(tmp_path: Path):
    """Scales of rows without weights may be anything; quantizers write 0 or 1 there."""
    weight = W.copy()
    weight[:, [3, 17, 30]] = 0
    scale = scales(32)
    scale[[3, 17, 30]] = (0, 1, 1e-30)
    arrays = {**PER_COLUMN, "w": weight, "w_scale": scale, **GRIDS, "b": BIAS}
    nodes = [*BEGIN, MATMUL[0], node("MatMul", ["xd", "wd"], "p"), node("Add", ["p", "b"], "h")]
    source = write(tmp_path / "in.onnx", [*nodes, *END], arrays, x=("batch", 48), y=None)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert (report.layers[0].decision, report.layers[0].active) == ("condensed", 29)
    x = np.random.default_rng(3).normal(0, 1.5, (20, 48)).astype(np.float32)
    assert close_integers(source, tmp_path / "out.onnx", x=x) < 0.02


def refused(tmp_path: Path, nodes, arrays, **fields) -> str:
    """Convert a model whose only layer stays as it is; return the reason."""
    source = write(tmp_path / "in.onnx", nodes, arrays, **{"x": ("batch", 48), **fields})
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    (layer,) = report.layers
    assert layer.decision == "dense"
    assert not {"QLinearCondensedGemm", "QLinearCondensedConv"} & set(
        node_types(tmp_path / "out.onnx")
    )
    return layer.reason


def test_weight_with_another_zero_point_stays(tmp_path: Path):
    zero = np.zeros(32, np.int8)
    zero[5] = 3
    arrays = {**PER_COLUMN, "w_zero": zero, **GRIDS}
    arrays["w"] = (W + zero).astype(np.int8)
    reason = refused(tmp_path, [*BEGIN, *MATMUL, *END], arrays)
    assert "int8 with the zero point 3" in reason


def test_dense_weight_stays(tmp_path: Path):
    arrays = {**PER_COLUMN, "w": int8((48, 32), 0.2), **GRIDS}
    reason = refused(tmp_path, [*BEGIN, *MATMUL, *END], arrays)
    assert reason.startswith("sparsity 2")
    assert reason.endswith("under 50%")


@pytest.mark.parametrize("scale", [0.0, np.nan, np.inf, 1e-42])
def test_scale_that_is_no_number_stays(tmp_path: Path, scale: float):
    arrays = {**PER_COLUMN, "w_scale": scales(32), **GRIDS}
    arrays["w_scale"][7] = scale
    source = write(tmp_path / "in.onnx", [*BEGIN, *MATMUL, *END], arrays, x=("batch", 48))
    report = convert(source, tmp_path / "out.onnx", policy="condensed", verify=False)
    assert report.layers[0].decision == "dense"
    assert f"the scale of its weight in row 7 is {np.float32(scale):g}" in report.layers[0].reason


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("scale", "bias", "reason"),
    [
        (-0.01, 5, "is -0.01"),
        (np.nan, 0, "is nan"),
        (np.inf, 0, "is inf"),
        (-0.01, 0, ""),
        (0.0, 5, ""),
    ],
)
def test_row_without_weights_needs_a_scale_that_its_bias_is_in_units_of(
    tmp_path: Path, scale: float, bias: int, reason: str
):
    arrays = {**PER_COLUMN, **INT32_BIAS, **GRIDS, "w": W.copy(), "w_scale": scales(32)}
    arrays["w"][:, 7] = 0
    arrays["w_scale"][7] = scale
    arrays["b"] = np.where(np.arange(32) == 7, bias, arrays["b"]).astype(np.int32)
    arrays["b_scale"] = X_SCALE * arrays["w_scale"]
    source = write(tmp_path / "in.onnx", [*BEGIN, *BIASED, *END], arrays, x=("batch", 48))
    (layer,) = convert(source, tmp_path / "out.onnx", policy="condensed", verify=False).layers
    assert layer.decision == ("dense" if reason else "condensed")
    assert reason in layer.reason


@pytest.mark.filterwarnings("error")
def test_scales_whose_product_overflows_stay_without_a_warning(tmp_path: Path):
    arrays = {**PER_COLUMN, **GRIDS, "x_scale": np.float32(3e38), "y_scale": np.float32(1e-30)}
    source = write(tmp_path / "in.onnx", [*BEGIN, *MATMUL, *END], arrays, x=("batch", 48))
    (layer,) = convert(source, tmp_path / "out.onnx", policy="condensed", verify=False).layers
    assert "beyond what float32 holds" in layer.reason


@pytest.mark.parametrize("bias", [2**31 - 1, -(2**31)])
def test_int32_bias_near_the_end_of_int32_stays(tmp_path: Path, bias: int):
    integers = INT32_BIAS["b"].copy()
    integers[11] = bias
    arrays = {**PER_COLUMN, **INT32_BIAS, **GRIDS, "b": integers}
    reason = refused(tmp_path, [*BEGIN, *BIASED, *END], arrays)
    assert "in row 11" in reason
    assert "int32 does not hold beside the products" in reason


def test_bias_beyond_int32_stays(tmp_path: Path):
    nodes = [*BEGIN, MATMUL[0], node("MatMul", ["xd", "wd"], "p"), node("Add", ["p", "b"], "h")]
    bias = BIAS.copy()
    bias[11] = 3e5
    reason = refused(tmp_path, [*nodes, *END], {**PER_COLUMN, **GRIDS, "b": bias})
    assert "300000 in row 11" in reason
    assert "int32 does not hold" in reason


def test_bias_that_integers_cannot_hold_stays(tmp_path: Path):
    nodes = [*BEGIN, MATMUL[0], node("MatMul", ["xd", "wd"], "p"), node("Add", ["p", "b"], "h")]
    arrays = {**PER_COLUMN, "w_scale": np.full(32, 2, np.float32), **GRIDS, "b": BIAS}
    reason = refused(tmp_path, [*nodes, *END], arrays)
    assert "units of the output" in reason


def test_convolution_with_a_float_output_stays(tmp_path: Path):
    arrays = {
        **grid("x", X_SCALE, 117),
        "w": int8((24, 8, 3, 3)),
        "w_scale": scales(24),
        "w_zero": np.zeros(24, np.int8),
    }
    nodes = [*BEGIN, dequantize("w", "wd", "w", axis=0), node("Conv", ["xd", "wd"], "p")]
    nodes.append(node("Sigmoid", ["p"], "y"))
    assert "its output is not quantized" in refused(tmp_path, nodes, arrays, x=("batch", 8, 9, 9))


def test_depthwise_convolution_stays(tmp_path: Path):
    arrays = {
        **GRIDS,
        "w": int8((24, 1, 3, 3), 0.8),
        "w_scale": scales(24),
        "w_zero": np.zeros(24, np.int8),
    }
    nodes = [*BEGIN, dequantize("w", "wd", "w", axis=0)]
    nodes += [node("Conv", ["xd", "wd"], "h", group=24), *END]
    assert refused(tmp_path, nodes, arrays, x=("batch", 24, 9, 9)) == "depthwise"


def test_activations_of_16_bits_stay(tmp_path: Path):
    arrays = {**PER_COLUMN, **GRIDS, **grid("x", 1e-3, 30000, "uint16")}
    nodes = [*BEGIN, *MATMUL, *END]
    reason = refused(tmp_path, nodes, arrays, opset=21)
    assert "its input is uint16" in reason


def test_blocked_weight_stays(tmp_path: Path):
    arrays = {
        **GRIDS,
        "w": W,
        "w_scale": np.full((3, 32), 0.003, np.float32),
        "w_zero": np.zeros((3, 32), np.int8),
    }
    nodes = [*BEGIN, dequantize("w", "wd", "w", axis=0, block_size=16), MATMUL[1], *END]
    assert "in blocks" in refused(tmp_path, nodes, arrays, opset=21)


def test_float_bias_under_a_scale_of_run_time_stays(tmp_path: Path):
    scale = helper.make_tensor_value_info("x_scale", TensorProto.FLOAT, [])
    zero = helper.make_tensor_value_info("x_zero", TensorProto.UINT8, [])
    nodes = [*BEGIN, MATMUL[0], node("MatMul", ["xd", "wd"], "p"), node("Add", ["p", "b"], "h")]
    arrays = {**PER_COLUMN, **grid("y", Y_SCALE, 131), "b": BIAS}
    reason = refused(tmp_path, [*nodes, *END], arrays, inputs=[scale, zero])
    assert "computed at run time" in reason


def test_policy_dense_and_portable_files_leave_quantized_layers(tmp_path: Path):
    source = gemm(tmp_path / "in.onnx", "per column")
    report = convert(source, tmp_path / "out.onnx", policy="dense")
    assert report.layers[0].reason == "policy dense, 8 bits as it was"
    report = convert(source, tmp_path / "out.onnx", policy="structured")
    assert report.layers[0].reason == "there is no structured form in 8 bits"
    report = convert(source, tmp_path / "out.onnx", portable=True)
    assert report.layers[0].reason == "only standard operators may be used"
    assert report.not_checked == (UNCHANGED,)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"portable": True}, "portable files"),
        ({"policy": "dense"}, "the policy dense"),
        ({"policy": "structured"}, "the policy structured"),
    ],
)
def test_condensed_8_bit_layers_are_not_left_where_another_form_is_asked_for(
    tmp_path: Path, options: dict, asked: str
):
    source = gemm(tmp_path / "in.onnx", "per column")
    convert(source, tmp_path / "once.onnx", policy="condensed")
    with pytest.raises(ExportError, match=f"QLinearCondensedGemm.*, which {asked} cannot keep"):
        convert(tmp_path / "once.onnx", tmp_path / "twice.onnx", **options)
    assert not (tmp_path / "twice.onnx").exists()
    convert(tmp_path / "once.onnx", tmp_path / "twice.onnx")
    assert "QLinearCondensedGemm" in node_types(tmp_path / "twice.onnx")


def test_float_weight_behind_a_quantized_input_is_condensed_in_floats(tmp_path: Path):
    nodes = [*BEGIN, node("MatMul", ["xd", "w"], "y")]
    arrays = {**grid("x", X_SCALE, 117), "w": W.astype(np.float32)}
    source = write(tmp_path / "in.onnx", nodes, arrays, x=("batch", 48))
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.layers[0].values_dtype == "float32"
    assert "CondensedGemm" in node_types(tmp_path / "out.onnx")


def test_failed_parity_names_the_node(tmp_path: Path, monkeypatch):
    before = condense_quantized._arithmetic

    def wrong(layer, opset):
        right = before(layer, opset)
        return replace(right, bias=right.bias + np.int32(2**13))

    monkeypatch.setattr(condense_quantized, "_arithmetic", wrong)
    monkeypatch.setattr(onnx_convert, "check_quantized_layers", lambda *_: ())
    source = gemm(tmp_path / "in.onnx", "per column")
    with pytest.raises(ExportError, match=r"quantization units.*; it begins at node .*MatMul_h"):
        convert(source, tmp_path / "out.onnx", policy="condensed")


def test_report_says_what_was_compared(tmp_path: Path):
    source = gemm(tmp_path / "in.onnx", "per column")
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    check, parity = report.layer_checks[0], report.parity[0]
    assert "1 of 1 quantized layers one by one" in str(check)
    assert check.integers == 2 * 32
    assert parity.units is not None
    assert parity.units <= parity.unit_tolerance == 2
    assert onnx.load(tmp_path / "out.onnx").graph.output[0].name == "y"
