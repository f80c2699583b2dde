"""The doctor's plan of a model: it is the binding's, for the sizes that the layers meet."""

import builtins

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy import doctor, doctor_plan
from fanin.deploy.doctor import check_plan
from fanin.deploy.doctor_plan import plan_model
from fanin.deploy.doctor_probe import FindingError
from fanin.ort_ops import _native
from fanin.ort_ops.dispatch_cost import SPINNING, DispatchCalibration, DispatchCost, describe_cpus


@pytest.fixture(autouse=True)
def calibration(tmp_path, monkeypatch):
    """Keep the plans from the user's own measurements; returns where they would be."""
    monkeypatch.setenv("FANIN_CALIBRATION", str(tmp_path / "own.json"))
    return tmp_path / "own.threads.json"


def condensed(rows, fan_in, width, dtype=np.float32):
    rng = np.random.default_rng(0)
    columns = rng.permuted(np.tile(np.arange(width), (rows, 1)), axis=1)[:, :fan_in]
    return {
        "values": rng.standard_normal((rows, fan_in)).astype(dtype),
        "indices": np.sort(columns).astype(np.uint16),
        "bias": np.zeros(rows, np.float32),
        "rows": np.arange(rows, dtype=np.int32),
    }


def node(name, op, x, y, weights, graph, **attributes):
    arrays = {**weights, "residual": np.zeros(1, np.float32)}
    names = [f"{name}.{part}" for part in arrays]
    graph["initializers"] += [
        numpy_helper.from_array(array, key)
        for key, array in zip(names, arrays.values(), strict=True)
    ]
    graph["nodes"].append(
        helper.make_node(op, [x, *names], [y], name=name, domain="ai.fanin", **attributes)
    )


def save(path, graph, shape, output, element=TensorProto.FLOAT):
    made = helper.make_graph(
        graph["nodes"],
        "test",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        graph["initializers"],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.fanin", 1)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=9), path)
    return path


GEMM = {"in_features": 512, "out_features": 768}
CONV = {
    "kernel_shape": [3, 3],
    "strides": [2, 2],
    "pads": [1, 1, 1, 1],
    "dilations": [1, 1],
    "group": 1,
    "in_channels": 16,
    "out_channels": 64,
}


@pytest.fixture
def network(tmp_path):
    """A convolution, whose 64 x 8 x 8 outputs are 8 rows of a linear layer."""
    graph = {"nodes": [], "initializers": []}
    node("block/conv [1]", "CondensedConv", "x", "c", condensed(64, 30, 144), graph, **CONV)
    graph["initializers"].append(numpy_helper.from_array(np.array([0, 8, 512]), "shape"))
    graph["nodes"].append(helper.make_node("Reshape", ["c", "shape"], ["r"]))
    node("fc", "CondensedGemm", "r", "y", condensed(768, 50, 512), graph, **GEMM)
    return save(tmp_path / "m.onnx", graph, ["batch", 16, 16, 16], "y")


def test_plans_are_those_of_the_binding_for_the_sizes_that_the_layers_meet(network):
    found = plan_model(network, 16, [1, 4])
    assert list(found.layers) == [1, 4]
    arrays = condensed(768, 50, 512)
    cost = (SPINNING.fixed, SPINNING.per_thread)
    gemm = _native.PackedGemm(**arrays, **GEMM, threads=16)
    geometry = {name: tuple(v) if isinstance(v, list) else v for name, v in CONV.items()}
    conv = _native.PackedConv(**condensed(64, 30, 144), **geometry, threads=16)
    for batch in (1, 4):
        first, second = found.layers[batch]
        assert (first.node, second.node) == ("block/conv [1]", "fc")
        for layer, expected in (
            (first, conv.plan((batch, 16, 16), 16, cost)),
            (second, gemm.plan(8 * batch, 16, cost)),
        ):
            assert layer.plan.threads == expected.threads
            assert layer.plan.microseconds == pytest.approx(expected.microseconds)
            assert layer.plan.longest == pytest.approx(expected.longest)


def test_a_convolution_of_one_axis(tmp_path):
    graph = {"nodes": [], "initializers": []}
    line = {name: v[: len(v) // 2] if isinstance(v, list) else v for name, v in CONV.items()}
    node("conv", "CondensedConv", "x", "y", condensed(64, 12, 48), graph, **line)
    ((layer,),) = plan_model(
        save(tmp_path / "m.onnx", graph, ["n", 16, 400], "y"), 4, [2]
    ).layers.values()
    two = {name: (1, *v) if isinstance(v, list) else v for name, v in line.items()}
    packed = _native.PackedConv(**condensed(64, 12, 48), **{**two, "pads": (0, 1, 0, 1)}, threads=4)
    expected = packed.plan((2, 1, 400), 4, (SPINNING.fixed, SPINNING.per_thread))
    assert layer.plan.microseconds == pytest.approx(expected.microseconds)


def test_weights_of_16_bits_are_planned(tmp_path):
    graph = {"nodes": [], "initializers": []}
    node("fc", "CondensedGemm", "x", "y", condensed(768, 50, 512, np.float16), graph, **GEMM)
    ((layer,),) = plan_model(
        save(tmp_path / "m.onnx", graph, ["n", 512], "y"), 4, [1]
    ).layers.values()
    assert layer.plan.threads > 1


def test_a_layer_that_computes_in_bfloat16_is_planned_for_its_kernels(tmp_path):
    graph = {"nodes": [], "initializers": []}
    weights = condensed(768, 50, 512, ml_dtypes.bfloat16)
    node("fc", "CondensedGemm", "x", "y", weights, graph, **GEMM, compute=16)
    ((layer,),) = plan_model(
        save(tmp_path / "m.onnx", graph, ["n", 512], "y"), 4, [64]
    ).layers.values()
    packed = _native.PackedGemm(**weights, **GEMM, threads=4, compute="bfloat16")
    expected = packed.plan(64, 4, (SPINNING.fixed, SPINNING.per_thread))
    assert layer.plan.microseconds == pytest.approx(expected.microseconds)


def test_a_fixed_batch_is_the_one_that_is_planned(tmp_path):
    graph = {"nodes": [], "initializers": []}
    node("fc", "CondensedGemm", "x", "y", condensed(768, 50, 512), graph, **GEMM)
    path = save(tmp_path / "m.onnx", graph, [32, 512], "y")
    assert list(plan_model(path, 4, [1, 8]).layers) == [32]


def test_costs_that_were_measured_here_are_taken(network, calibration):
    slow = DispatchCost(1e6, 0.0)
    DispatchCalibration(describe_cpus(), (2,), slow, slow).save(calibration)
    found = plan_model(network, 16, [1])
    assert found.measured
    assert [layer.plan.threads for layer in found.layers[1]] == [1, 1]


def test_measurements_that_cannot_be_read_are_a_finding(network, calibration):
    calibration.write_text("{}")
    check, plan = check_plan(network, 4, [1])
    assert not check.ok
    assert plan is None
    assert "own.threads.json is no calibration of threads" in check.detail
    assert "fanin calibrate" in check.remedy


def test_open_sizes_are_a_finding(tmp_path):
    graph = {"nodes": [], "initializers": []}
    node("fc", "CondensedGemm", "x", "y", condensed(768, 50, 512), graph, **GEMM)
    path = save(tmp_path / "m.onnx", graph, ["n", "tokens", 512], "y")
    with pytest.raises(FindingError, match=r"input 'x' has the shape \['n', 'tokens', 512\]"):
        plan_model(path, 4, [1])


def as_constant(model, tensor):
    model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))


def as_input(model, tensor):
    info = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    model.graph.input.append(info)


@pytest.mark.parametrize("move", [as_constant, as_input])
def test_only_constant_weights_have_a_plan(tmp_path, move):
    graph = {"nodes": [], "initializers": []}
    node("fc", "CondensedGemm", "x", "y", condensed(768, 50, 512), graph, **GEMM)
    path = save(tmp_path / "m.onnx", graph, ["n", 512], "y")
    model = onnx.load(path)
    move(model, model.graph.initializer[0])
    del model.graph.initializer[0]
    onnx.save(model, path)
    ((layer,),) = plan_model(path, 4, [1]).layers.values()
    if move is as_constant:
        assert layer.plan.threads > 1
    else:
        assert layer.plan is None
        assert layer.reason == "weights not constant: 1"


@pytest.mark.parametrize(
    ("package", "remedy"), [("onnx", "pip install onnx"), ("_native", "fanin again")]
)
def test_what_is_missing_is_named(network, monkeypatch, package, remedy):
    real = builtins.__import__

    def without(name, globals=None, locals=None, fromlist=(), level=0):
        if name == package or package in (fromlist or ()):
            raise ImportError(f"no {package}")
        return real(name, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(FindingError, match="missing") as raised:
        plan_model(network, 4, [1])
    assert remedy in raised.value.remedy


def run(*arguments):
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)], env={"COLUMNS": "200"})


def test_the_command_shows_a_row_for_each_layer(network, monkeypatch):
    monkeypatch.setattr(doctor, "run_checks", list)
    done = run(network, "--threads", 64, "--batch", 8)
    assert done.exit_code == 0, done.output
    assert "ok    plan for 64 threads" in done.output
    assert "block/conv [1]" in done.output
    assert "batch 1" in done.output
    assert "batch 8" in done.output
    assert "not measured" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--threads", 2], "goes with a model"), (["--batch", 2], "goes with a model")],
)
def test_options_without_their_companion_are_refused(arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_a_layer_that_does_not_run_has_no_plan(network, monkeypatch):
    result = {"shapes": {"1": {"fc": [2, 512]}}}
    monkeypatch.setattr(doctor_plan, "run_child", lambda *_: (result, ""))
    first, second = plan_model(network, 4, [1]).layers[1]
    assert (first.plan, first.reason) == (None, "did not run")
    assert second.plan is not None
