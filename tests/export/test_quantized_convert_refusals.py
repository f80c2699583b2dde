"""Quantized layers in ONNX files that stay as they are, and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from fanin.export import ExportError, convert
from fanin.export.report import UNCHANGED

from ._quantized_gemms import (
    BEGIN,
    BIAS,
    BIASED,
    END,
    GRIDS,
    INT32_BIAS,
    MATMUL,
    PER_COLUMN,
    W,
    gemm,
)
from .onnx_models import node_types
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
