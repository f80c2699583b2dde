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

from ._quantized_gemms import BEGIN, BIAS, END, GRIDS, LINEAR, MATMUL, PER_COLUMN, W, gemm
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
