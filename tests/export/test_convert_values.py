"""Conversions of ONNX files whose condensed values are float16 or bfloat16."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fanin.export import CondensedWeight, ExportError, convert
from fanin.export.onnx_inspect import condensed_weights

from .onnx_models import node, run, sparse, write_model

W1, W2 = sparse((48, 32)), sparse((32, 20))
# Half the distance between neighbors, relative: what rounding to nearest can change.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

every_half_type = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


def two_products(first, second):
    return [
        node("MatMul", ["x", first], "h"),
        node("Relu", ["h"], "r"),
        node("MatMul", ["r", second]),
    ]


@pytest.fixture
def source(tmp_path):
    nodes = [
        node("MatMul", ["x", "w1"], "h"),
        node("Relu", ["h"], "r"),
        node("MatMul", ["r", "w2"]),
    ]
    return write_model(tmp_path / "in.onnx", nodes, {"w1": W1, "w2": W2}, y=("batch", 20))


def rounded(weight, dtype):
    """Round by the second implementation, float32 throughout."""
    half = CondensedWeight.from_dense(weight.T).astype(dtype)
    return half.to_dense().T


@every_half_type
def test_values_are_rounded_and_the_rounding_is_reported(source, tmp_path, dtype):
    before = source.read_bytes()
    exact = convert(source, tmp_path / "exact.onnx", policy="condensed")
    report = convert(source, tmp_path / "out.onnx", policy="condensed", values_dtype=dtype)
    assert source.read_bytes() == before
    stored = condensed_weights(tmp_path / "out.onnx")
    for layer, weight in zip(report.layers, (W1, W2), strict=True):
        (name,) = layer.nodes
        assert stored[name].values.dtype.name == dtype
        assert np.array_equal(stored[name].to_dense().T, rounded(weight, dtype))
        assert layer.values_dtype == dtype
        assert 0 < layer.rounding_error <= UNIT[dtype]
        assert layer.bytes_condensed == stored[name].nbytes
    assert 1e-6 < report.output_rounding_error < 4 * UNIT[dtype]
    assert report.parity_error < 1e-5
    assert report.file_bytes < exact.file_bytes
    x = np.random.default_rng(0).standard_normal((3, 48)).astype(np.float32)
    wanted = np.maximum(x.astype(float) @ rounded(W1, dtype), 0) @ rounded(W2, dtype)
    for library in (False, True):
        (got,) = run(tmp_path / "out.onnx", x=x, library=library)
        assert np.abs(got - wanted).max() < 1e-4


def test_weight_that_two_nodes_multiply_with_is_rounded_once(tmp_path):
    square = np.zeros((32, 32), np.float32)
    for shift in (0, 3, 7):  # the same fan-in everywhere, so that one array holds it
        square += np.roll(np.diag(np.linspace(0.1, 1.3, 32, dtype=np.float32)), shift, axis=0)
    sizes = {"x": ("batch", 32), "y": ("batch", 32)}
    source = write_model(tmp_path / "in.onnx", two_products("w", "w"), {"w": square}, **sizes)
    report = convert(source, tmp_path / "out.onnx", policy="condensed", values_dtype="float16")
    (layer,) = report.layers
    assert layer.values_dtype == "float16"
    graph = onnx.load(tmp_path / "out.onnx").graph
    half = [a for a in map(numpy_helper.to_array, graph.initializer) if a.dtype == np.float16]
    assert len(half) == 1
    assert layer.bytes_condensed == next(
        weight.nbytes for weight in condensed_weights(tmp_path / "out.onnx").values()
    )


def test_value_that_the_type_cannot_hold_is_named_and_nothing_written(tmp_path):
    large = W1.copy()
    large[large != 0] = 1e6
    source = write_model(tmp_path / "in.onnx", [node("MatMul", ["x", "w"])], {"w": large})
    with pytest.raises(ExportError, match=r"values\[0, 0\] is 1000000.0, too large for float16"):
        convert(source, tmp_path / "out.onnx", policy="condensed", values_dtype="float16")
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_type_without_a_condensed_layer_is_said_to_be_unused(source, tmp_path):
    report = convert(source, tmp_path / "out.onnx", portable=True, values_dtype="float16")
    assert "no layer is condensed, so no values are rounded to float16" in report.notes


def test_other_types_are_refused(source, tmp_path):
    with pytest.raises(ValueError, match="values_dtype is 'int8', it must be float32 or float16"):
        convert(source, tmp_path / "out.onnx", values_dtype="int8")


def test_rounding_without_verification_claims_no_measured_change(source, tmp_path):
    report = convert(
        source, tmp_path / "out.onnx", policy="condensed", values_dtype="float16", verify=False
    )
    assert report.output_rounding_error is None
    assert "outputs by" not in report.to_rich_table().caption
