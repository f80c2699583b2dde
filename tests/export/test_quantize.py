"""fanin.export.quantize on ONNX files: what is in the written file, and what it computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from fanin.export import ExportError, convert, export, quantize
from fanin.export.quantizing.float_model import load_float_model

from ._two_layers import (
    BIAS,
    CALIBRATION,
    SAMPLES,
    W1,
    W2,
    constants,
    dense_rows,
    relative,
    two_layers,
)
from .onnx_models import node, node_types, run, write_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return two_layers(tmp_path / "in.onnx")


@pytest.mark.parametrize("dynamic", [False, True])
def test_weights_are_rounded_with_a_scale_for_each_output_and_zeros_stay(
    source: Path, tmp_path: Path, dynamic: bool
):
    out = tmp_path / "out.onnx"
    quantize(source, out, calibration=CALIBRATION, dynamic=dynamic, policy="condensed")
    arrays = constants(out)
    for layer, weight in (("w1", W1.T), ("w2", W2.T)):
        largest = np.abs(weight).max(axis=1)
        scale = arrays[f"{layer}.values_scale"]
        np.testing.assert_allclose(scale, largest / 127, rtol=1e-6)
        integers = dense_rows(out, layer, weight.shape)
        assert not integers[weight == 0].any()
        assert np.abs(integers).max(axis=1).tolist() == [127] * len(weight)
        exact = weight.astype(np.float64) / scale[:, None]
        assert np.abs(integers - exact).max() <= 0.5 + 1e-4


def test_static_file_computes_in_8_bits_close_to_the_float_model(source: Path, tmp_path: Path):
    out = tmp_path / "out.onnx"
    report = quantize(source, out, calibration=CALIBRATION, policy="condensed")
    # The activation between the layers is stored in 8 bits; only the last output is float.
    assert node_types(out) == [
        "QuantizeLinear",
        "QLinearCondensedGemm",
        "CondensedGemmIntegerToFloat",
    ]
    (expected,) = run(source, x=SAMPLES)
    for library in (False, True):
        (actual,) = run(out, x=SAMPLES, library=library)
        assert 0.001 < relative(expected, actual) < 0.02
    assert report.error.relative == pytest.approx(relative(expected, actual), rel=1e-4)
    cosines = (expected * actual).sum(1) / np.sqrt((expected**2).sum(1) * (actual**2).sum(1))
    assert report.error.cosine == pytest.approx(cosines.mean(), abs=1e-6)
    assert report.file_bytes == out.stat().st_size
    assert report.calibrated_on == report.compared_on == "96 samples of what is given"


def test_ranges_are_those_of_the_samples(source: Path, tmp_path: Path):
    out = tmp_path / "out.onnx"
    quantize(source, out, calibration=CALIBRATION, policy="condensed")
    arrays, first = constants(out), onnx.load(out).graph.node[0]
    scale, zero = arrays[first.input[1]], arrays[first.input[2]]
    assert scale == pytest.approx((SAMPLES.max() - SAMPLES.min()) / 255, rel=1e-6)
    assert zero == np.rint(-SAMPLES.min() / scale)
    assert zero.dtype == np.uint8


@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_other_methods_cut_off_outliers(source: Path, tmp_path: Path, method: str, capfd):
    samples = np.tile(SAMPLES, (40, 1))
    samples[-1, 0] = 300
    out = tmp_path / "out.onnx"
    report = quantize(source, out, calibration={"x": samples}, method=method, policy="condensed")
    assert report.method == method
    arrays, first = constants(out), onnx.load(out).graph.node[0]
    assert arrays[first.input[1]] < 0.5 * 300 / 255
    assert capfd.readouterr().out == ""


def test_dynamic_file_needs_no_samples(source: Path, tmp_path: Path):
    out = tmp_path / "out.onnx"
    report = quantize(source, out, dynamic=True, policy="condensed")
    assert (
        node_types(out)
        == [
            "DynamicQuantizeCondensedGemm",
            "Relu",
            "DynamicQuantizeCondensedGemm",
        ]
        or node_types(out) == ["DynamicQuantizeCondensedGemm"] * 2
    )
    assert report.calibrated_on is None
    assert "made-up inputs" in report.compared_on
    (expected,), (actual,) = run(source, x=SAMPLES), run(out, x=SAMPLES, library=True)
    assert relative(expected, actual) < 0.02


def test_source_may_be_a_condensed_file(source: Path, tmp_path: Path):
    condensed, one, two = (tmp_path / f"{name}.onnx" for name in ("condensed", "one", "two"))
    convert(source, condensed, policy="condensed")
    before = condensed.read_bytes()
    quantize(source, one, calibration=CALIBRATION, policy="condensed")
    quantize(condensed, two, calibration=CALIBRATION, policy="condensed")
    assert condensed.read_bytes() == before
    (expected,), (actual,) = (run(path, x=SAMPLES, library=True) for path in (one, two))
    np.testing.assert_array_equal(actual, expected)


def test_dense_layers_are_quantized_too(tmp_path: Path):
    weight = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)
    source = two_layers(tmp_path / "in.onnx", w2=weight)
    out = tmp_path / "out.onnx"
    report = quantize(source, out, calibration=CALIBRATION, policy="condensed")
    assert {layer.name: layer.form for layer in report.layers} == {
        "w1": "condensed int8",
        "w2": "dense int8",
    }
    reasons = {layer.name: layer.reason for layer in report.layers}
    assert reasons["w1"] == ""
    assert reasons["w2"].endswith("under 50%")
    assert not report.kept
    (stored,) = [a for a in constants(out).values() if a.dtype == np.int8 and a.shape == (64, 32)]
    scale = np.abs(weight).max(axis=0) / 127
    assert np.abs(stored - weight / scale).max() <= 0.5 + 1e-4


def test_model_without_sparse_layers_is_quantized_and_says_so(tmp_path: Path):
    weights = {"w1": W1 + np.float32(0.1), "w2": W2 + np.float32(0.1)}
    source = two_layers(tmp_path / "in.onnx", **weights)
    report = quantize(source, tmp_path / "out.onnx", calibration=CALIBRATION)
    assert [layer.form for layer in report.layers] == ["dense int8"] * 2
    assert "no 8-bit layer is condensed: ONNX Runtime's own kernels compute them" in report.notes


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_without_weights_output_their_bias(tmp_path: Path, dynamic: bool):
    weight = W1.copy()
    weight[:, [0, 5, 63]] = 0
    nodes = [node("Gemm", ["x", "w1", "b1"])]
    source = write_model(tmp_path / "in.onnx", nodes, {"w1": weight, "b1": BIAS}, y=("batch", 64))
    out = tmp_path / "out.onnx"
    quantize(source, out, calibration=CALIBRATION, dynamic=dynamic, policy="condensed")
    (actual,) = run(out, x=SAMPLES, library=True)
    for row in (0, 5, 63):
        assert np.all(np.abs(actual[:, row] - BIAS[row]) <= 1e-6)
    (expected,) = run(source, x=SAMPLES)
    assert relative(expected, actual) < 0.02


@pytest.mark.parametrize("dynamic", [False, True])
def test_layer_with_a_denormal_scale_stays_float(tmp_path: Path, dynamic: bool):
    tiny = W1.copy()
    tiny[:, 7] *= np.float32(1e-37)
    source = two_layers(tmp_path / "in.onnx", w1=tiny)
    out = tmp_path / "out.onnx"
    report = quantize(source, out, calibration=CALIBRATION, dynamic=dynamic, policy="condensed")
    (kept,) = report.kept
    assert (kept.name, kept.form) == ("w1", "condensed float32")
    assert kept.reason.startswith("the scale of its weight in row 7 would be ")
    assert kept.error is None
    assert "CondensedGemm" in node_types(out)


def test_weights_that_are_not_finite_stay_float(tmp_path: Path):
    source = two_layers(tmp_path / "in.onnx", w2=np.full_like(W2, np.inf))
    with pytest.raises(ExportError, match=r"the outputs of .* are not finite on 96 samples"):
        quantize(source, tmp_path / "out.onnx", calibration=CALIBRATION)
    assert [layer.obstacle for layer in load_float_model(source).layers] == [
        None,
        "its weight holds values that are not finite",
    ]


# --- convolutions and attention ----------------------------------------------------------------


class Residual(nn.Module):
    """Two convolutions with norms and a residual sum, after a dense stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.norms[0](self.convs[0](x)))
        y = torch.relu(self.norms[1](self.convs[1](y)) + x)
        return self.head(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))


def residual_network(path: Path) -> Path:
    torch.manual_seed(0)
    model = Residual()
    with torch.no_grad():
        for conv in model.convs:
            conv.weight *= (torch.rand_like(conv.weight) < 0.1) * 3
        model.train()
        model(torch.randn(32, 3, 16, 16))
    export(model.eval(), torch.randn(2, 3, 16, 16), path, policy="dense", portable=True)
    return path


def test_residual_is_added_by_the_convolution_and_norms_are_folded(tmp_path: Path):
    source, out = residual_network(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    images = np.random.default_rng(0).standard_normal((40, 3, 16, 16)).astype(np.float32)
    report = quantize(source, out, calibration={"x": images}, policy="condensed")
    types = node_types(out)
    assert types.count("QLinearCondensedConv") == 2
    assert not {"Add", "BatchNormalization", "Relu"} & set(types)
    convs = [n for n in onnx.load(out).graph.node if n.op_type == "QLinearCondensedConv"]
    added = set(constants(out))
    assert sum(n.input[10] not in added for n in convs) == 1
    (expected,) = run(source, x=images)
    for library in (False, True):
        (actual,) = run(out, x=images, library=library)
        assert relative(expected, actual) < 0.02
    assert report.error.relative < 0.02


def test_convolutions_stay_floats_dynamically(tmp_path: Path):
    source = residual_network(tmp_path / "in.onnx")
    report = quantize(source, tmp_path / "out.onnx", dynamic=True, policy="condensed")
    forms = {layer.name: layer.form for layer in report.layers}
    assert forms.pop("head") == "dense int8"
    assert set(forms.values()) == {"dense float32", "condensed float32"}
    assert {x.reason for x in report.kept} == {"convolutions are quantized only with samples"}


@pytest.mark.parametrize("dynamic", [False, True])
def test_transformer_layer_keeps_its_residual_sums_in_float(tmp_path: Path, dynamic: bool):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu").eval()
    with torch.no_grad():
        for linear in (layer.linear1, layer.linear2):
            linear.weight *= (torch.rand_like(linear.weight) < 0.2) * 2
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    export(layer, torch.randn(2, 6, 32), source, policy="dense", portable=True)
    name = onnx.load(source).graph.input[0].name
    tokens = np.random.default_rng(0).standard_normal((40, 6, 32)).astype(np.float32)
    report = quantize(source, out, calibration={name: tokens}, dynamic=dynamic, policy="condensed")
    forms = {x.name: x.form for x in report.layers}
    assert [forms[name] for name in ("linear1", "linear2")] == ["condensed int8"] * 2
    assert "LayerNormalization" in node_types(out)
    (expected,) = run(source, **{name: tokens})
    (actual,) = run(out, library=True, **{name: tokens})
    assert relative(expected, actual) < 0.02


# --- what is refused ---------------------------------------------------------------------------


def test_static_quantization_of_a_file_needs_samples(source: Path, tmp_path: Path):
    with pytest.raises(ExportError, match=r"give them \(--calibration .*with --dynamic"):
        quantize(source, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("dynamic", [False, True])
def test_quantized_model_is_refused(source: Path, tmp_path: Path, dynamic: bool):
    once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
    quantize(source, once, calibration=CALIBRATION, dynamic=dynamic, policy="condensed")
    with pytest.raises(ExportError, match=r"once.onnx is quantized already \(node '.*' is a "):
        quantize(once, twice, calibration=CALIBRATION)
    assert not twice.exists()


def test_model_without_layers_is_refused(tmp_path: Path):
    source = write_model(tmp_path / "in.onnx", [node("Relu", ["x"])], {}, y=("batch", 48))
    with pytest.raises(ExportError, match=r"has no MatMul, Gemm or Conv of a constant weight"):
        quantize(source, tmp_path / "out.onnx", calibration=CALIBRATION)


def test_model_of_which_no_layer_can_be_quantized_is_refused(tmp_path: Path):
    nodes = [node("MatMul", ["x", "w"])]
    weights = {"w": W2.astype(np.float64)[:48]}
    source = write_model(tmp_path / "in.onnx", nodes, weights, elem_type=onnx.TensorProto.DOUBLE)
    onnx_model = onnx.load(source)
    onnx_model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    onnx.save(onnx_model, source)
    with pytest.raises(ExportError, match=r"no layer of .* w: it computes in float64"):
        quantize(source, tmp_path / "out.onnx", dynamic=True)


def test_output_may_be_no_file_that_is_read(source: Path, tmp_path: Path):
    before = source.read_bytes()
    with pytest.raises(ValueError, match=r"in.onnx is the model itself; give the result another"):
        quantize(source, source, calibration=CALIBRATION)
    samples = tmp_path / "calib.npz"
    np.savez(samples, **CALIBRATION)
    with pytest.raises(ValueError, match=r"calib.npz holds the samples"):
        quantize(source, samples, calibration=samples)
    assert source.read_bytes() == before


@pytest.mark.parametrize("dynamic", [False, True])
def test_names_that_the_quantizer_gives_are_free_for_it(tmp_path: Path, dynamic: bool):
    source = write_model(
        tmp_path / "in.onnx",
        [
            node("MatMul", ["x", "w_quantized"], "w_scale"),
            node("Relu", ["w_scale"], "x_zero_point"),
            node("MatMul", ["x_zero_point", "w"]),
        ],
        {"w_quantized": W1, "w": W2},
    )
    out = tmp_path / "out.onnx"
    quantize(source, out, calibration=CALIBRATION, dynamic=dynamic, policy="condensed")
    (expected,) = run(source, x=SAMPLES)
    (actual,) = run(out, x=SAMPLES)
    assert 0.001 < relative(expected, actual) < 0.02


@pytest.mark.parametrize("dynamic", [False, True])
def test_output_with_a_name_that_the_quantizer_gives_is_refused(tmp_path: Path, dynamic: bool):
    source = two_layers(tmp_path / "in.onnx")
    model = onnx.load(source)
    model.graph.output[0].name = model.graph.node[-1].output[0] = "x_scale"
    onnx.save(model, source)
    with pytest.raises(ExportError, match="'x_scale', a name that onnxruntime's quantizer"):
        quantize(source, tmp_path / "out.onnx", calibration=CALIBRATION, dynamic=dynamic)


def test_missing_model_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"none.onnx does not exist"):
        quantize(tmp_path / "none.onnx", tmp_path / "out.onnx", calibration=CALIBRATION)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "kl"}, "method is 'kl', it must be min-max, entropy, percentile"),
        ({"method": "entropy", "dynamic": True}, "method belongs to static quantization"),
        ({"max_error": 0.0}, "max_error is 0, it must be over 0"),
        ({"max_error": float("nan")}, "max_error is nan, it must be over 0"),
        ({"max_error": 0.1, "rank": False}, "max_error needs to know which layers hurt most"),
        ({"min_sparsity": 1.5}, "min_sparsity"),
        ({"policy": "fast"}, "policy is 'fast'"),
        ({"data_dir": "."}, "data_dir belongs to run folders"),
    ],
)
def test_arguments_out_of_range(source: Path, tmp_path: Path, options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        quantize(source, tmp_path / "out.onnx", calibration=CALIBRATION, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
