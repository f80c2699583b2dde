"""Engines of 8-bit integers: their grids and graph forms, and when one is left out."""

import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from fanin.deploy.bench.engines.child import conditions
from fanin.deploy.bench.engines.int8_forms import FORMS, save_int8_form
from fanin.deploy.bench.engines.onnx_models import X_QUANTIZED, null_session
from fanin.deploy.bench.engines.peers import int8_peer_engines, peer_engines, peer_model
from fanin.deploy.bench.engines.peers.deepsparse_int8 import deepsparse_int8_file
from fanin.deploy.bench.engines.quantized_layer import Grid, QuantizedLayer
from fanin.deploy.bench.measure.layer_problem import (
    layer_problem,
    quantized_layer,
    quantized_layer_problem,
)
from fanin.deploy.bench.measure.loop import measure
from fanin.deploy.bench.measure.problem import Sample, rms_error
from fanin.deploy.bench.measure.timing import Timing
from fanin.deploy.bench.suites.layer_engines import INT8_ENGINES, layer_engines
from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.ort_ops.format.condensed import CondensedWeight

PACKAGES = Path(__file__).with_name("fake_packages")
DEEPSPARSE = Path(__file__).parents[2] / ".cache/deepsparse-venv/bin/python"
NONE = Path("no/python")
QUICK = Timing(rounds=2, turn=1e-3, lead_in=0, max_warmup=0.05)


@pytest.fixture(scope="module")
def weight():
    """32 → 20 with 17 active neurons of 9 weights."""
    return random_sparse_layer("random", np.random.default_rng(0), 32, 20, 17, 9)


@pytest.fixture(scope="module")
def layer(weight):
    return quantized_layer(weight, 0)


@pytest.fixture
def fake_deepsparse(monkeypatch):
    """This Python with a fake DeepSparse; returns what sets the share of its operators."""
    path = os.pathsep.join([str(PACKAGES), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    return lambda share: monkeypatch.setenv("FAKE_SUPPORTED", str(share))


def run(path, feeds):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20),
)
def test_a_grid_holds_0_and_its_values_to_half_a_step(values):
    values = np.array(values, np.float32)
    grid = Grid.over(values)
    assert 0 <= grid.zero_point <= 255
    assert grid.dequantize(np.array([grid.zero_point], np.uint8)) == 0
    # The zero point is rounded as well, which may push an end beyond by half a step.
    error = np.abs(grid.dequantize(grid.quantize(values)) - values).max()
    assert error <= 1.001 * grid.scale + 1e-30


def test_a_grid_saturates_and_rounds_half_to_even():
    grid = Grid(0.5, 10)
    numbers = grid.quantize(np.array([-100, -0.25, 0.25, 0.75, 1000], np.float32))
    assert numbers.tolist() == [0, 10, 10, 12, 255]


def test_each_row_has_a_scale_of_its_own_and_rows_of_zeros_one(weight):
    layer = QuantizedLayer.of(weight, Grid(0.02, 128), Grid(0.1, 100))
    dense = weight.to_dense()
    assert layer.integers.dtype == np.int8
    assert np.abs(layer.integers).max(axis=1)[weight.rows].tolist() == [127] * 17
    assert (layer.integers[dense == 0] == 0).all()
    dead = np.setdiff1d(np.arange(20), weight.rows)
    assert layer.scales[dead].tolist() == [1] * 3
    error = np.abs(layer.integers * layer.scales[:, None] - dense)
    assert (error <= 0.5001 * layer.scales[:, None]).all()
    one = layer.with_one_scale()
    assert len(set(one.scales.tolist())) == 1
    assert np.abs(one.integers).max() == 127


@pytest.mark.parametrize("form", FORMS)
def test_every_form_computes_the_layer(form, weight, layer, tmp_path):
    made = save_int8_form(tmp_path / "model.onnx", form, layer, 3)
    x = np.random.default_rng(1).standard_normal((3, 32), np.float32)
    exact = x @ weight.to_dense().T + weight.bias
    floats = form == "dynamic" or form.endswith("-float")
    given = x if floats else layer.x.quantize(x)
    columns = form.startswith("spatial")
    given = (given.T if columns else given).reshape(made["shape"])
    y = run(made["model"], {"x" if floats else X_QUANTIZED: given})
    assert y.dtype == given.dtype == made["dtype"]
    y = y.reshape(20, 3).T if columns else y.reshape(3, 20)
    y = y if floats else layer.y.dequantize(y)
    np.testing.assert_allclose(y, exact, atol=0.03 * np.abs(exact).max())


@pytest.mark.parametrize("outputs", [20, 32, 40])
def test_the_null_session_of_8_bits_reads_and_writes_as_many_bytes(outputs, tmp_path):
    engine = null_session(tmp_path, 2, 32, outputs, 1, X_QUANTIZED)
    engine.prepare({"x": np.zeros((2, 32), np.float32), X_QUANTIZED: np.zeros((2, 32), np.uint8)})
    engine.run()
    (y,) = engine.output()
    assert (y.dtype, y.shape) == (np.uint8, (2, outputs))
    engine.close()


def test_the_inputs_of_both_types_vary_together(weight, layer):
    problem = quantized_layer_problem(weight, layer, 2, 0)
    for sample in (problem.timed, problem.varied, problem.fresh):
        assert (layer.x.quantize(sample.inputs["x"]) == sample.inputs[X_QUANTIZED]).all()
    assert problem.timed.inputs[X_QUANTIZED][0, 0] != problem.varied.inputs[X_QUANTIZED][0, 0]
    problem.vary(problem.varied)
    for name, array in problem.inputs.items():
        np.testing.assert_array_equal(array, problem.varied.inputs[name])


def test_the_rms_error_is_relative_to_the_outputs():
    sample = Sample({}, [np.array([3.0, -4.0]), np.zeros(2)])
    got = [np.array([3.3, -3.6], np.float32), np.ones(2, np.float32)]
    assert rms_error(got, sample) == pytest.approx(0.1)
    assert rms_error([np.array([3.0, -4.0]), np.zeros(2)], sample) == 0


@pytest.mark.parametrize("batch", [1, 4])
def test_onnx_runtime_computes_both_forms_dense_and_condensed(batch, weight, layer, tmp_path):
    names = [name for name in INT8_ENGINES if name.startswith(("dense", "condensed"))]
    engines, null = layer_engines(names, weight, batch, 1, tmp_path, NONE, layer)
    problem = quantized_layer_problem(weight, layer, batch, 0)
    measured, measured_null = measure(engines, problem, QUICK, null=null)
    assert [one.excluded for one in (*measured, measured_null)] == [None] * (len(names) + 1)
    errors = {one.name: one.rms_error for one in measured}
    assert errors["dense"] < 1e-6
    assert 1e-4 < errors["dense-int8-static"] < 3e-2
    # The same integers, so the same numbers.
    assert errors["condensed-int8-static"] == errors["dense-int8-static"]
    assert errors["condensed-int8-dynamic"] == pytest.approx(errors["dense-int8-dynamic"], rel=0.1)


@pytest.mark.parametrize("option", ["torch-int8-static", "torch-int8-dynamic"])
def test_torch_computes_the_layer_with_the_kernels_it_has(option, weight, layer, tmp_path):
    torch = pytest.importorskip("torch")
    engines = int8_peer_engines(option, layer, 3, 1, tmp_path, NONE)
    assert [one.name for one in engines] == [f"{option}-x86", f"{option}-onednn"]
    measured, _ = measure(engines, quantized_layer_problem(weight, layer, 3, 0), QUICK)
    for one, library in zip(measured, ("x86", "onednn"), strict=True):
        if library in torch.backends.quantized.supported_engines:
            assert one.excluded is None
            assert 1e-4 < one.rms_error < 5e-2
            assert f"kernels of {library}" in one.version
        else:
            assert one.excluded is not None


@pytest.mark.parametrize("batch", [1, 4])
def test_openvino_computes_the_layer_in_8_bits_or_is_left_out(batch, weight, layer, tmp_path):
    pytest.importorskip("openvino")
    engines = int8_peer_engines("openvino-int8", layer, batch, 1, tmp_path, NONE)
    problem = quantized_layer_problem(weight, layer, batch, 0)
    (measured,), _ = measure(engines, problem, QUICK)
    if measured.excluded is None:
        assert "1 of 1 layers in 8 bits" in measured.version
        assert measured.rms_error < 3e-2
    else:
        assert "layers in 8 bits" in measured.excluded


@pytest.mark.parametrize("option", ["deepsparse-int8", "deepsparse-int8-float"])
def test_deepsparse_computes_every_form(option, fake_deepsparse, weight, layer, tmp_path):
    fake_deepsparse(0.9)
    python = Path(sys.executable)
    engines = int8_peer_engines(option, layer, 4, 1, tmp_path, python)
    names = [f"{option}-{form}" for form in ("matmul", "conv", "spatial")]
    assert [one.name for one in engines] == names
    measured, _ = measure(engines, quantized_layer_problem(weight, layer, 4, 0), QUICK)
    assert [one.excluded for one in measured] == [None] * 3
    assert all(1e-4 < one.rms_error < 3e-2 for one in measured)
    assert "90% of the operators its own" in measured[0].version
    assert len(int8_peer_engines(option, layer, 1, 1, tmp_path, python)) == 2


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_deepsparse_that_hands_the_layer_on_is_left_out(
    precision, fake_deepsparse, weight, layer, tmp_path
):
    fake_deepsparse(0.89)
    python = Path(sys.executable)
    if precision == "int8":
        engines = int8_peer_engines("deepsparse-int8", layer, 1, 1, tmp_path, python)
        problem = quantized_layer_problem(weight, layer, 1, 0)
    else:
        engines = peer_engines("deepsparse", weight, 1, 1, tmp_path, python)
        problem = layer_problem(weight, 1, 0)
    for one in measure(engines, problem, QUICK)[0]:
        assert "has kernels for 89% of the operators" in one.excluded
        assert "at least 90% must be its own" in one.excluded


@pytest.mark.slow
@pytest.mark.skipif(not DEEPSPARSE.is_file(), reason="make deepsparse-env has not been run")
@pytest.mark.parametrize("option", ["deepsparse-int8", "deepsparse-int8-float"])
def test_deepsparse_has_kernels_for_every_form(option, tmp_path):
    weight = random_sparse_layer("random", np.random.default_rng(0), 256, 64, 64, 26)
    layer = quantized_layer(weight, 0)
    engines = int8_peer_engines(option, layer, 16, 1, tmp_path, DEEPSPARSE)
    measured, _ = measure(engines, quantized_layer_problem(weight, layer, 16, 0), QUICK)
    assert [one.excluded for one in measured] == [None] * 3
    assert all(1e-4 < one.rms_error < 5e-2 for one in measured)


def test_without_deepsparse_one_engine_says_how_to_get_it(weight, layer, tmp_path):
    (engine,) = int8_peer_engines("deepsparse-int8", layer, 4, 1, tmp_path, NONE)
    (measured,), _ = measure([engine], quantized_layer_problem(weight, layer, 4, 0), QUICK)
    assert measured.name == "deepsparse-int8"
    assert "run make deepsparse-env" in measured.excluded


@pytest.fixture
def child_runtimes(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(conditions.__file__).parent))
    return importlib.import_module("runtimes")


def compiled(*kernels):
    """An OpenVINO model of layers with these kernels."""

    def node(kind, kernel):
        info = {"layerType": SimpleNamespace(value=kind)}
        info["primitiveType"] = SimpleNamespace(value=kernel)
        return SimpleNamespace(get_rt_info=lambda: info)

    nodes = [node("Subgraph", "jit_avx512_f32"), *(node("FullyConnected", one) for one in kernels)]
    graph = SimpleNamespace(get_ordered_ops=lambda: nodes)
    return SimpleNamespace(get_runtime_model=lambda: graph)


def test_openvinos_kernels_tell_whether_it_computes_in_8_bits(child_runtimes):
    layers_in_int8 = child_runtimes._layers_in_int8
    narrow, wide = "brgemm_avx512_amx_I8", "brgemm_avx512_f32"
    text = layers_in_int8(compiled(*[narrow] * 9, wide))
    assert text == "9 of 10 layers in 8 bits (brgemm_avx512_amx_I8)"
    with pytest.raises(RuntimeError, match="8 of 10 layers in 8 bits, the others by brgemm_avx"):
        layers_in_int8(compiled(*[narrow] * 8, wide, wide))
    with pytest.raises(RuntimeError, match="0 of 0 layers"):
        layers_in_int8(compiled())


def network(path, *, biased=True):
    """A network of a convolution, a shared input of two products, and a MatMul of activations."""
    rng = np.random.default_rng(0)

    def random(*shape):
        return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))

    arrays = {"conv": random(4, 2, 3, 3), "conv_bias": random(4), "a": random(6, 64)}
    arrays |= {"b": np.ascontiguousarray(random(5, 64).T), "bias": random(6), "shape": [-1, 64]}
    nodes = [
        helper.make_node("Conv", ["x", "conv", "conv_bias"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["flat"]),
        helper.make_node("Gemm", ["flat", "a", *["bias"][:biased]], ["g"], transB=1),
        helper.make_node("MatMul", ["flat", "b"], ["m"]),
        helper.make_node("Transpose", ["g"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["t", "m"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "network",
        [info("x", 1, ["batch", 2, 6, 6])],
        [info("y", 1, [6, 5])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_a_network_for_deepsparse_has_its_8_bit_operators_and_computes_the_same(tmp_path):
    path, target = network(tmp_path / "net.onnx"), tmp_path / "deepsparse.onnx"
    rng = np.random.default_rng(1)
    inputs = [{"x": rng.standard_normal((2, 2, 6, 6), np.float32)} for _ in range(4)]
    changes = deepsparse_int8_file(path, target, inputs)
    assert changes == "1 Conv, 1 Gemm, 1 MatMul in 8 bits"
    kinds = [node.op_type for node in onnx.load(target).graph.node]
    assert kinds.count("QLinearConv") == 1
    assert kinds.count("MatMulInteger") == 2
    assert kinds.count("MatMul") == 1  # of two activations
    assert "Gemm" not in kinds
    exact, got = run(path, inputs[0]), run(target, inputs[0])
    np.testing.assert_allclose(got, exact, atol=0.05 * np.abs(exact).max())
    used = {name for node in onnx.load(target).graph.node for name in node.input}
    assert {tensor.name for tensor in onnx.load(target).graph.initializer} <= used


def test_a_network_in_8_bits_is_an_engine_of_deepsparse(fake_deepsparse, tmp_path):
    fake_deepsparse(0.5)
    path = network(tmp_path / "net.onnx", biased=False)
    x = np.random.default_rng(1).standard_normal((2, 2, 6, 6), np.float32)
    more = (1, tmp_path, Path(sys.executable))
    engine = peer_model("deepsparse", path, x.shape, (6, 5), *more, calibration=[{"x": x}])
    assert (engine.name, engine.precision) == ("deepsparse-int8", "int8")
    assert "1 Conv, 1 Gemm, 1 MatMul in 8 bits" in engine.form
    with pytest.raises(RuntimeError, match="has kernels for 50% of the operators"):
        engine.prepare({"x": x})
    engine.close()


def test_weights_of_one_input_are_quantized_as_well():
    weight = CondensedWeight.from_dense(np.array([[2.0]], np.float32), np.zeros(1, np.float32))
    layer = quantized_layer(weight, 0)
    assert layer.integers.tolist() == [[127]]
    assert layer.integer_bias.tolist() == [0]
