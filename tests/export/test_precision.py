"""Files whose whole graph is float16 or bfloat16."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

from fanin.export import ExportError, convert, export, half_precision, onnx_convert
from fanin.export.passes.emulate_half import EmulateHalfPass
from fanin.export.passes.set_precision import SetPrecisionPass

from .onnx_models import node, node_types, run, sparse, write_model

KIND = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
# Half the distance between neighbors, relative: what rounding to nearest can change.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

every_half_type = pytest.mark.parametrize("precision", ["float16", "bfloat16"])

W1, B1, W2 = sparse((48, 32)), np.linspace(-1, 1, 32, dtype=np.float32), sparse((32, 20), 0.8)
DENSE = sparse((20, 20), 0.0)


def network(path: Path, scale: float = 1.0) -> Path:
    nodes = [
        node("MatMul", ["x", "w1"], "h"),
        node("Add", ["h", "b1"], "a"),
        node("Relu", ["a"], "r"),
        node("MatMul", ["r", "w2"], "s"),
        node("MatMul", ["s", "dense"], "p"),
        node("Softmax", ["p"]),
    ]
    arrays = {"w1": W1 * np.float32(scale), "b1": B1, "w2": W2, "dense": DENSE}
    return write_model(path, nodes, arrays, y=("batch", 20))


def expected(x: np.ndarray) -> np.ndarray:
    hidden = np.maximum(x.astype(np.float64) @ W1 + B1, 0) @ W2 @ DENSE
    powers = np.exp(hidden - hidden.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def types(path: Path) -> dict[str, int]:
    graph = onnx.load(path).graph
    ports = {port.name: port.type.tensor_type.elem_type for port in (*graph.input, *graph.output)}
    return {tensor.name: tensor.data_type for tensor in graph.initializer} | ports


def test_float16_file_computes_and_stores_in_float16(tmp_path):
    out = tmp_path / "half.onnx"
    report = convert(network(tmp_path / "in.onnx"), out, policy="condensed", precision="float16")
    assert node_types(out) == ["CondensedGemm", "CondensedGemm", "MatMul", "Softmax"]
    found = types(out)
    assert {found[name] for name in ("x", "y", "dense", "w1.values", "w2.values")} == {
        TensorProto.FLOAT16
    }
    assert found["w1.bias"] == TensorProto.FLOAT  # sums are float32
    x = np.random.default_rng(0).standard_normal((5, 48)).astype(np.float16)
    for library in (False, True):
        (y,) = run(out, library=library, x=x)
        assert y.dtype == np.float16
        assert np.abs(y - expected(x)).max() < 8 * UNIT["float16"]
    assert report.precision == "float16"
    assert 0 < report.dense_precision_error < 0.002
    assert {layer.values_dtype for layer in report.layers} == {"float16"}
    assert 0 < report.weight_rounding_error < UNIT["float16"]
    against = [check for check in report.parity if "against" in check.engine]
    assert [check.engine.partition("against ")[2] for check in against] == [
        "float32",
        "dense in float16",
    ] * 2
    lost = report.dense_precision_error
    allowed = max(2e-3, 4 * lost)
    assert [check.tolerance for check in against] == pytest.approx([allowed, allowed + lost] * 2)


def test_bfloat16_file_says_what_was_compared_where_the_cpu_has_no_kernels(tmp_path):
    out = tmp_path / "half.onnx"
    report = convert(network(tmp_path / "in.onnx"), out, policy="condensed", precision="bfloat16")
    found = types(out)
    assert (found["x"], found["y"]) == (TensorProto.FLOAT, TensorProto.FLOAT)
    assert {found[name] for name in ("dense", "w1.values")} == {TensorProto.BFLOAT16}
    assert node_types(out)[0] == node_types(out)[-1] == "Cast"
    assert node_types(out).count("Cast") == 2
    engines = [check.engine for check in report.parity]
    assert any("reference, against float32" in engine for engine in engines)
    emulated = [engine for engine in engines if "rounded to bfloat16 after every op" in engine]
    assert len(emulated) == 4
    kernels = [line for line in report.not_checked if "no kernels in bfloat16" in line]
    assert len(kernels) == 2
    x = np.random.default_rng(0).standard_normal((5, 48)).astype(np.float32)
    (y,) = ReferenceEvaluator(str(out)).run(None, {"x": x})
    assert y.dtype == np.float32
    assert np.abs(y - expected(x)).max() < 8 * UNIT["bfloat16"]
    assert "bfloat16 throughout" in str(report.to_rich_table().caption)


@every_half_type
def test_dense_conversion_is_of_the_same_precision(precision, tmp_path):
    out = tmp_path / "dense.onnx"
    report = convert(network(tmp_path / "in.onnx"), out, policy="dense", precision=precision)
    found = types(out)
    weights = [name for name in found if name not in ("x", "y")]
    assert {found[name] for name in weights} == {KIND[precision]}
    dense = next(layer for layer in report.layers if layer.name == "dense")
    assert dense.bytes_dense == 2 * DENSE.size


def test_values_of_one_file_are_the_rounded_weights(tmp_path):
    out = tmp_path / "half.onnx"
    convert(network(tmp_path / "in.onnx"), out, policy="condensed", precision="float16")
    arrays = {t.name: numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer}
    dense = np.zeros((20, 32), np.float16)
    for row, columns, values in zip(
        arrays["w2.rows"], arrays["w2.indices"], arrays["w2.values"], strict=True
    ):
        for column, value in zip(columns, values, strict=True):
            dense[row, column] += value
    assert np.array_equal(dense, W2.T.astype(np.float16))


def test_a_range_that_float16_lacks_is_refused_and_bfloat16_named(tmp_path):
    source = network(tmp_path / "in.onnx", scale=1e4)
    nodes = onnx.load(source)
    del nodes.graph.node[-1]  # Softmax, which would hide the range
    nodes.graph.node[-1].output[0] = "y"
    onnx.save(nodes, source)
    out = tmp_path / "half.onnx"
    with pytest.raises(ExportError, match=r"Gemm 'MatMul_h' reaches 7\S+, .* 65504; take bfloat16"):
        convert(source, out, precision="float16", policy="condensed")
    assert not out.exists()
    convert(source, out, precision="bfloat16", policy="condensed")
    assert out.exists()


def test_a_loss_of_all_digits_is_refused(tmp_path):
    # Of float16 nothing is left under 3e-8, and of bfloat16 all is.
    nodes = [node("MatMul", ["x", "w1"], "h"), node("MatMul", ["h", "w2"])]
    arrays = {"w1": W1 * np.float32(1e-9), "w2": W2}
    source = write_model(tmp_path / "in.onnx", nodes, arrays, y=("batch", 20))
    with pytest.raises(ExportError, match=r"in float16 the dense model itself differs .* bfloat16"):
        convert(source, tmp_path / "half.onnx", precision="float16")
    convert(source, tmp_path / "half.onnx", precision="bfloat16")


def test_numbers_that_stand_for_infinity_are_no_overflow(tmp_path):
    mask = np.where(np.arange(32) < 20, 0, -1e9).astype(np.float32)
    nodes = [
        node("MatMul", ["x", "w1"], "h"),
        node("Where", ["low", "h", "far"], "m"),
        node("Softmax", ["m"]),
    ]
    arrays = {"w1": W1, "low": mask == 0, "far": np.float32(-1e9)}
    source = write_model(tmp_path / "in.onnx", nodes, arrays, y=("batch", 32))
    report = convert(source, tmp_path / "half.onnx", precision="float16", policy="condensed")
    assert any("set to its nearest number: far" in note for note in report.notes)


def test_what_the_reference_evaluator_cannot_run_is_said(tmp_path):
    # Its GatherElements is np.choose, which takes 64 arrays.
    nodes = [
        node("MatMul", ["x", "w1"], "h"),
        node("GatherElements", ["table", "picks"], "g", axis=0),
        node("ReduceSum", ["g", "axis"], "s", keepdims=0),
        node("Add", ["h", "s"]),
    ]
    arrays = {
        "w1": W1,
        "table": np.ones((100, 32), np.float32),
        "picks": np.full((70, 32), 99, np.int64),
        "axis": np.array([0]),
    }
    source = write_model(tmp_path / "in.onnx", nodes, arrays, y=("batch", 32))
    out = tmp_path / "half.onnx"
    report = convert(source, out, precision="bfloat16", policy="condensed")
    assert any("reference: it does not run this model" in line for line in report.not_checked)
    assert sum("rounded to bfloat16" in check.engine for check in report.parity) == 4


def test_a_weight_too_large_is_named(tmp_path):
    source = network(tmp_path / "in.onnx", scale=1e6)
    with pytest.raises(ExportError, match=r"w1.*too large for float16; bfloat16 has float32's"):
        convert(source, tmp_path / "half.onnx", precision="float16", verify=False)


def test_verification_refuses_wrong_values(tmp_path, monkeypatch):
    exact = half_precision.round_condensed

    def wrong(model, precision):
        result = exact(model, precision)
        for value in model.graph.initializers.values():
            if value.name == "w1.values":
                value.const_value = ir.tensor(value.const_value.numpy() * np.float16(1.5))
        return result

    monkeypatch.setattr(half_precision, "round_condensed", wrong)
    out = tmp_path / "half.onnx"
    with pytest.raises(ExportError, match=r"differs from float32 by .* over the .* allowed; nothi"):
        convert(network(tmp_path / "in.onnx"), out, policy="condensed", precision="float16")
    assert not out.exists()


def test_options_that_contradict_each_other_are_refused(tmp_path):
    source = network(tmp_path / "in.onnx")
    with pytest.raises(ValueError, match="precision is 'half', it must be float32 or float16 or b"):
        convert(source, tmp_path / "out.onnx", precision="half")
    with pytest.raises(ValueError, match="values_dtype is 'bfloat16' beside precision 'float16'"):
        convert(source, tmp_path / "out.onnx", precision="float16", values_dtype="bfloat16")


def test_models_in_8_bits_and_of_another_half_type_are_refused(tmp_path):
    scale = {"s": np.float32(0.1), "z": np.int8(0)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], "q"),
        node("DequantizeLinear", ["q", "s", "z"]),
    ]
    source = write_model(tmp_path / "in.onnx", nodes, scale, y=("batch", 48))
    with pytest.raises(ExportError, match="QuantizeLinear 'QuantizeLinear_q' computes in 8 bits"):
        convert(source, tmp_path / "out.onnx", precision="float16", verify=False)
    half = convert(network(tmp_path / "net.onnx"), tmp_path / "half.onnx", precision="float16")
    with pytest.raises(ExportError, match="'x' is float16 already; a bfloat16 file is made from"):
        convert(half.path, tmp_path / "out.onnx", precision="bfloat16")


def graph(nodes, arrays, *, opset=20, y=("batch", 8), y_type=TensorProto.FLOAT, x=("batch", 8)):
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
            [helper.make_tensor_value_info("y", y_type, y)],
            [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=9,
    )
    return ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model, strict_mode=True))


def halved(model, precision="float16", half_ports=True):
    result = SetPrecisionPass(precision, half_ports=half_ports)(model)
    proto = ir.serde.serialize_model(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto, result


def operators(proto):
    return [n.op_type for n in proto.graph.node]


def held(proto):
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def test_casts_stand_only_around_an_operator_without_the_type():
    arrays = {"k": sparse((4, 8, 3), 0.0)}
    nodes = [
        node("Relu", ["x"], "a"),
        node("Conv", ["a", "k"], "b"),
        node("Neg", ["b"], "c"),
        node("Abs", ["c"]),
    ]
    shapes = {"x": ("batch", 8, 9), "y": ("batch", 4, 7)}
    proto, result = halved(graph(nodes, arrays, opset=20, **shapes), "bfloat16")
    assert operators(proto) == ["Relu", "Cast", "Conv", "Cast", "Neg", "Abs"]
    assert held(proto)["k"].dtype == np.float32
    assert result.notes == ["computed in float32, between Casts: 1 Conv (half from opset 22)"]
    proto, result = halved(graph(nodes, arrays, opset=22, **shapes), "bfloat16")
    assert operators(proto) == ["Relu", "Conv", "Neg", "Abs"]
    assert not result.notes
    proto, _ = halved(graph(nodes, arrays, opset=20, **shapes), "float16")
    assert operators(proto) == ["Relu", "Conv", "Neg", "Abs"]


def test_inputs_that_are_always_float32_stay_so():
    nodes = [node("Resize", ["x", "", "scales"], mode="nearest")]
    proto, _ = halved(
        graph(nodes, {"scales": np.float32([1, 1, 2])}, x=("batch", 2, 4), y=("batch", 2, 8))
    )
    assert operators(proto) == ["Resize"]
    assert held(proto)["scales"].dtype == np.float32


def test_a_constant_that_both_types_need_is_stored_in_both():
    nodes = [
        node("CumSum", ["c", "axis"], "s"),
        node("Add", ["x", "c"], "a"),
        node("Mul", ["a", "s"]),
    ]
    constant = np.arange(8, dtype=np.float32)
    proto, _ = halved(graph(nodes, {"c": constant, "axis": np.int64(0)}))
    arrays = held(proto)
    assert arrays["c"].dtype == np.float32
    assert arrays["c_float16"].dtype == np.float16
    assert operators(proto) == ["CumSum", "Cast", "Add", "Mul"]
    x = np.ones((1, 8), np.float16)
    (y,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert np.array_equal(y[0], (1 + constant) * np.cumsum(constant))


def test_what_names_its_type_names_the_new_one():
    fill = helper.make_tensor("value", TensorProto.FLOAT, [1], [2.5])
    nodes = [
        node("Shape", ["x"], "n"),
        node("ConstantOfShape", ["n"], "f", value=fill),
        node("Cast", ["n"], "m", to=TensorProto.FLOAT),
        node("ReduceSum", ["m"], "t"),
        node("Add", ["f", "t"], "g"),
        node("Add", ["x", "g"]),
    ]
    proto, _ = halved(graph(nodes, {}))
    assert operators(proto) == [n.op_type for n in nodes]
    (y,) = ReferenceEvaluator(proto).run(None, {"x": np.zeros((3, 8), np.float16)})
    assert y.dtype == np.float16
    assert (y == 2.5 + 3 + 8).all()


def test_constants_for_infinity_and_epsilon_become_the_nearest_numbers():
    lowest = np.finfo(np.float32).min
    arrays = {"mask": np.float32([0, lowest, -np.inf]), "eps": np.float32(1e-12)}
    nodes = [node("Add", ["x", "mask"], "a"), node("Add", ["a", "eps"])]
    proto, result = halved(graph(nodes, arrays, x=("batch", 3), y=("batch", 3)))
    arrays = held(proto)
    assert np.array_equal(arrays["mask"], np.float16([0, -65504, -np.inf]))
    assert arrays["eps"] == np.float16(2.0**-24)
    assert result.notes == ["out of the range of float16, set to its nearest number: mask, eps"]


def test_branches_take_and_give_float32_and_compute_in_half():
    def branch(name, op):
        output = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        return helper.make_graph([node(op, ["h"], f"{name}_y")], name, [], [output])

    nodes = [
        node("Relu", ["x"], "h"),
        node(
            "If", ["c"], "b", then_branch=branch("then", "Neg"), else_branch=branch("else", "Abs")
        ),
        node("Add", ["b", "h"]),
    ]
    proto, _ = halved(graph(nodes, {"c": np.bool_(True)}))
    assert operators(proto) == ["Relu", "If", "Cast", "Add"]
    then = next(a.g for a in proto.graph.node[1].attribute if a.name == "then_branch")
    assert [n.op_type for n in then.node] == ["Neg", "Cast"]
    x = np.linspace(0, 4, 8, dtype=np.float16).reshape(1, 8)
    (y,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert (y == 0).all()


def test_emulation_rounds_as_the_type_does():
    weight = np.eye(8, dtype=np.float32)
    nodes = [node("MatMul", ["x", "w"], "p"), node("Add", ["p", "one"])]
    model = graph(nodes, {"w": weight, "one": np.float32(1)})
    proto, _ = halved(model, "bfloat16", half_ports=False)
    x = np.array([[0, 1, 2, 255, 256, 258, -3, 1.00390625]], np.float32)
    # Odd numbers over 256 have no bfloat16; ties go to the even neighbor.
    wanted = np.array([[1, 2, 3, 256, 256, 260, -2, 2]], np.float32)
    EmulateHalfPass("bfloat16")(model)
    emulated = ir.serde.serialize_model(model)
    onnx.checker.check_model(emulated, full_check=True)
    assert all(a.dtype == np.float32 for a in held(emulated).values())
    for made in (proto, emulated):
        (y,) = ReferenceEvaluator(made).run(None, {"x": x})
        assert np.array_equal(y, wanted)


def test_a_half_module_keeps_its_weights_to_the_bit(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 6)).eval()
    with torch.no_grad():
        for layer in (model[0], model[3]):
            layer.weight[torch.rand_like(layer.weight) < 0.8] = 0
    model = model.half()
    out = tmp_path / "half.onnx"
    report = export(
        model,
        torch.randn(2, 3, 6, 6).half(),
        out,
        policy="condensed",
        precision="float16",
        dense_baseline=True,
    )
    dense = {
        t.name: numpy_helper.to_array(t) for t in onnx.load(report.dense_path).graph.initializer
    }
    for name in ("0.weight", "0.bias", "3.weight", "3.bias"):
        parameter = model.get_parameter(name).detach().numpy()
        assert dense[name].dtype == np.float16
        assert sorted(dense[name].ravel()) == sorted(parameter.ravel())
    assert report.weight_rounding_error == 0
    assert types(out)["input"] == types(out)["output"] == TensorProto.FLOAT16
    condensed = next(layer for layer in report.layers if layer.name == "3.weight")
    assert condensed.bytes_dense == 2 * (128 * 6 + 6)


@every_half_type
def test_large_models_are_checked_layer_by_layer(precision, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_convert, "LARGE", 0)
    out = tmp_path / "half.onnx"
    report = convert(network(tmp_path / "in.onnx"), out, policy="condensed", precision=precision)
    assert types(out)["w1.values"] == KIND[precision]
    assert all("layer by layer" in check.engine for check in report.parity)
    assert any("outputs of the whole model" in line for line in report.not_checked)
    assert report.dense_precision_error is None
    assert "float32 by" not in str(report.to_rich_table().caption)
