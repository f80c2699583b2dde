"""Exports whose condensed values are float16 or bfloat16."""

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from fanin.export import CondensedWeight, ExportError, export, load_condensed, save_condensed
from fanin.export.onnx_inspect import condensed_weights
from fanin.export.onnx_op import condensed_layer_model, no_residual
from fanin.ort_ops.reference import condensed_gemm

from .conftest import export_condensed

HALF_TYPES = ["float16", "bfloat16"]
# Half the distance between neighbors, relative: what rounding to nearest can change.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

every_half_type = pytest.mark.parametrize("dtype", HALF_TYPES)


def sparse_model(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 10))
    for layer in (model[0], model[2]):
        with torch.no_grad():
            layer.weight[torch.rand_like(layer.weight) < 0.8] = 0
    return model


def condensed(seed=0, shape=(12, 50)):
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal(shape).astype(np.float32)
    dense[rng.random(shape) < 0.8] = 0
    bias = rng.standard_normal(shape[0]).astype(np.float32)
    return CondensedWeight.from_dense(dense, bias)


@every_half_type
def test_astype_rounds_values_to_nearest_and_leaves_the_rest(dtype):
    weight = condensed()
    half = weight.astype(dtype)
    assert half.values.dtype.name == dtype
    wanted = torch.from_numpy(weight.values.copy()).to(getattr(torch, dtype)).float().numpy()
    assert np.array_equal(half.values.astype(np.float32), wanted)
    assert half.to_dense().dtype == np.float32
    for part in ("indices", "rows", "bias"):
        assert np.array_equal(getattr(half, part), getattr(weight, part))
    assert weight.nbytes - half.nbytes == 2 * weight.values.size
    assert np.array_equal(half.astype("float32").values, wanted)


def test_astype_refuses_other_types_and_values_out_of_range():
    weight = condensed()
    with pytest.raises(ValueError, match="values cannot be 'int8', they can be float32 or float16"):
        weight.astype("int8")
    large = CondensedWeight.from_dense(np.array([[0, 1, 1e5]], np.float32))
    with pytest.raises(ValueError, match=r"values\[0, 1\] is 100000.0, too large for float16"):
        large.astype("float16")
    assert float(large.astype("bfloat16").values[0, 1]) == pytest.approx(1e5, rel=2.0**-8)


def test_other_types_of_values_are_refused():
    weight = condensed()
    with pytest.raises(ValueError, match="values is float64, it must be float32 or float16 or bf"):
        CondensedWeight(
            weight.values.astype(np.float64), weight.indices, weight.rows, weight.bias, 50, 12
        )


@every_half_type
def test_safetensors_keep_the_type_of_values(dtype, tmp_path):
    half = condensed().astype(dtype)
    save_condensed(tmp_path / "layer.safetensors", {"a": half})
    read = load_condensed(tmp_path / "layer.safetensors")["a"]
    assert read.values.dtype == half.values.dtype
    assert read.values.tobytes() == half.values.tobytes()


@pytest.mark.parametrize("dtype", ["float32", *HALF_TYPES])
@pytest.mark.parametrize("x_dtype", ["float32", "float16"])
@pytest.mark.parametrize("library", [False, True], ids=["function", "library"])
def test_one_layer_models_agree_with_the_reference(dtype, x_dtype, library):
    ort = pytest.importorskip("onnxruntime")
    weight = condensed().astype(dtype)
    model = condensed_layer_model(weight, None, with_residual=True, clip_min=0.0, x_dtype=x_dtype)
    onnx.checker.check_model(model, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if library:
        from fanin.ort_ops import register

        register(options)
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(1)
    for batch in (1, 17):
        x = rng.standard_normal((batch, 50)).astype(x_dtype)
        residual = rng.standard_normal((batch, 12)).astype(x_dtype)
        (y,) = session.run(None, {"x": x, "residual": residual})
        wanted = condensed_gemm(
            x,
            weight.values,
            weight.indices,
            weight.bias,
            weight.rows,
            residual,
            in_features=50,
            out_features=12,
            clip_min=0.0,
        )
        assert y.dtype == x_dtype
        rounding = 2.0**-11 * np.abs(wanted) if x_dtype == "float16" else 0.0
        assert (np.abs(y - wanted) <= rounding + 1e-5).all()


def test_bfloat16_activations_run_through_the_function_without_the_library():
    ort = pytest.importorskip("onnxruntime")
    weight = condensed().astype("bfloat16")
    model = condensed_layer_model(weight, None)
    node = model.graph.node[0]
    node.input[0], node.output[0] = "x16", "y16"
    cast_in = onnx.helper.make_node("Cast", ["x"], ["x16"], to=onnx.TensorProto.BFLOAT16)
    cast_out = onnx.helper.make_node("Cast", ["y16"], ["y"], to=onnx.TensorProto.FLOAT)
    nodes = [cast_in, node, cast_out]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    none = next(array for array in model.graph.initializer if array.name == "residual")
    none.CopyFrom(numpy_helper.from_array(no_residual("bfloat16"), "residual"))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(2).standard_normal((3, 50)).astype(ml_dtypes.bfloat16)
    (y,) = session.run(None, {"x": x.astype(np.float32)})
    layer = (weight.values, weight.indices, weight.bias, weight.rows)
    wanted = condensed_gemm(x, *layer, in_features=50, out_features=12)
    assert (np.abs(y - wanted) <= 2.0**-8 * np.abs(wanted) + 1e-5).all()


def test_models_of_other_activations_are_refused():
    with pytest.raises(ValueError, match="x_dtype is 'bfloat16', it must be float32 or float16"):
        condensed_layer_model(condensed(), 1, x_dtype="bfloat16")


@every_half_type
def test_export_stores_rounded_values_and_reports_the_rounding(dtype, tmp_path):
    model = sparse_model()
    before = [parameter.clone() for parameter in model.parameters()]
    x = torch.randn(4, 40)
    report = export_condensed(model, x, tmp_path / "m.onnx", values_dtype=dtype)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))

    graph = onnx.load(tmp_path / "m.onnx").graph
    stored = [
        array
        for array in map(numpy_helper.to_array, graph.initializer)
        if array.dtype.name == dtype and array.ndim == 2
    ]
    assert len(stored) == 2
    for layer in report.condensed_layers:
        assert layer.values_dtype == dtype
        assert 0 < layer.rounding_error <= UNIT[dtype]
    assert 0 < report.weight_rounding_error <= UNIT[dtype]
    assert report.parity_error < 1e-5
    # The rounded model is another one: without its own torch outputs, parity would fail.
    assert 1e-5 < report.output_rounding_error < 4 * UNIT[dtype]
    assert f"values rounded to {dtype}" in report.to_rich_table().caption


class Functional(nn.Module):
    """A module and a parameter of the model itself, which may also be looked up."""

    def __init__(self, *, looked_up=False):
        super().__init__()
        self.first, second = sparse_model()[::2]
        self.table = nn.Parameter(second.weight.detach().clone())
        self.looked_up = looked_up

    def forward(self, x):
        y = nn.functional.linear(self.first(x).relu(), self.table)
        return y + self.table[:, 3] if self.looked_up else y


@every_half_type
def test_layers_that_are_condensed_in_the_graph_are_rounded_too(dtype, tmp_path):
    model = Functional()
    before = model.table.detach().clone()
    report = export_condensed(model, torch.randn(4, 40), tmp_path / "m.onnx", values_dtype=dtype)
    types = {layer.name: layer.values_dtype for layer in report.condensed_layers}
    assert types == {"first.weight": dtype, "table": dtype}
    assert all(0 < layer.rounding_error <= UNIT[dtype] for layer in report.condensed_layers)
    weights = condensed_weights(tmp_path / "m.onnx")
    for layer, tensor in zip(report.layers, (model.table, model.first.weight), strict=True):
        (node,) = layer.nodes
        assert weights[node].values.dtype.name == dtype
        rounded = tensor.detach().to(getattr(torch, dtype)).float().numpy()
        assert np.array_equal(weights[node].to_dense(), rounded)
    assert report.parity_error < 1e-5
    assert report.output_rounding_error > 1e-5
    assert report.notes == ()
    assert torch.equal(model.table, before)


def test_packed_attention_is_rounded(tmp_path):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(32, 2, 48, batch_first=True)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            with torch.no_grad():
                parameter.mul_(torch.rand_like(parameter) < 0.2)
    report = export_condensed(
        model, torch.randn(2, 5, 32), tmp_path / "m.onnx", values_dtype="float16"
    )
    assert {layer.name for layer in report.condensed_layers} == {
        "self_attn.in_proj_weight",
        "self_attn.out_proj.weight",
        "linear1.weight",
        "linear2.weight",
    }
    assert {layer.values_dtype for layer in report.condensed_layers} == {"float16"}
    stored = condensed_weights(tmp_path / "m.onnx").values()
    assert {weight.values.dtype.name for weight in stored} == {"float16"}
    assert report.parity_error < 1e-5


def test_weight_that_something_else_reads_keeps_float32_and_is_named(tmp_path):
    report = export_condensed(
        Functional(looked_up=True), torch.randn(4, 40), tmp_path / "m.onnx", values_dtype="float16"
    )
    types = {layer.name: layer.values_dtype for layer in report.condensed_layers}
    assert types == {"first.weight": "float16", "table": "float32"}
    (note,) = report.notes
    assert note.startswith("values are not rounded to float16 where something else reads")
    assert note.endswith(": table")
    assert report.parity_error < 1e-5


def test_layer_that_gets_another_form_is_not_rounded(tmp_path):
    model = sparse_model()
    x = torch.randn(4, 40)
    report = export(model, x, tmp_path / "m.onnx", policy="dense", values_dtype="float16")
    assert {layer.decision for layer in report.layers} == {"dense"}
    assert {layer.values_dtype for layer in report.layers} == {"float32"}
    assert report.output_rounding_error == 0
    stored = map(numpy_helper.to_array, onnx.load(tmp_path / "m.onnx").graph.initializer)
    assert any(np.array_equal(array, model[0].weight.detach().numpy()) for array in stored)


def test_ablated_neurons_of_rounded_layers_are_folded(tmp_path):
    model = sparse_model()
    with torch.no_grad():
        model[0].weight[::3] = 0
    report = export(
        model, torch.randn(4, 40), tmp_path / "m.onnx", policy="condensed", values_dtype="bfloat16"
    )
    assert report.folded == ("10 ablated neurons of 0",)
    assert {layer.values_dtype for layer in report.layers} == {"bfloat16"}
    assert report.parity_error < 1e-5


def test_float32_exports_report_no_rounding(tmp_path):
    report = export_condensed(sparse_model(), torch.randn(4, 40), tmp_path / "m.onnx")
    assert report.weight_rounding_error == report.output_rounding_error == 0
    assert "rounded" not in report.to_rich_table().caption


def test_export_refuses_other_types_and_weights_out_of_range(tmp_path):
    model = sparse_model()
    with pytest.raises(ValueError, match="values_dtype is 'int8', it must be float32 or float16"):
        export_condensed(model, torch.randn(4, 40), tmp_path / "m.onnx", values_dtype="int8")
    with torch.no_grad():
        model[0].weight[model[0].weight != 0] = 1e6
    with pytest.raises(ExportError, match=r"0: values\[0, 0\] is 1000000.0, too large"):
        export_condensed(model, torch.randn(4, 40), tmp_path / "m.onnx", values_dtype="float16")
    assert not (tmp_path / "m.onnx").exists()
