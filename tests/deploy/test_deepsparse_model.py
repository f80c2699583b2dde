"""Models are written in operators that DeepSparse compiles, and compute the same."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fanin.deploy.bench.engines.peers.deepsparse_model import UnsupportedModelError, deepsparse_file

ort = pytest.importorskip("onnxruntime")


def write(path, nodes, *, opset=18, x=("batch", 3, 5, 7), constants=()):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.save(model, path)
    return path


def outputs(path, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 4
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def converted(path, tmp_path, shape):
    """Write it for DeepSparse, compare, and list the operators."""
    out = tmp_path / "out.onnx"
    deepsparse_file(path, out)
    before, after = outputs(path, shape), outputs(out, shape)
    assert before.shape == after.shape
    assert np.allclose(before, after, rtol=1e-6, atol=1e-6)
    model = onnx.load(out)
    assert model.ir_version <= 8
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("axes", [(2, 3), (-1, -2)])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [17, 18])
def test_mean_over_the_pixels_is_global_pooling(tmp_path, axes, keepdims, opset):
    if opset == 18:
        node = helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=keepdims)
        constants = [("axes", np.array(axes, np.int64))]
    else:
        node = helper.make_node("ReduceMean", ["x"], ["y"], keepdims=keepdims, axes=axes)
        constants = []
    path = write(tmp_path / "in.onnx", [node], opset=opset, constants=constants)
    wanted = ["GlobalAveragePool"] + ["Flatten"] * (1 - keepdims)
    assert converted(path, tmp_path, (2, 3, 5, 7)) == wanted


@pytest.mark.parametrize(
    ("axes", "shape"), [((1, 2), (2, 3, 5, 7)), ((3,), (2, 3, 5, 7)), ((1, 2), (2, 3, 5))]
)
def test_other_means_stay(tmp_path, axes, shape):
    node = helper.make_node("ReduceMean", ["x", "axes"], ["y"])
    path = write(
        tmp_path / "in.onnx",
        [node],
        x=("batch", *shape[1:]),
        constants=[("axes", np.array(axes, np.int64))],
    )
    assert converted(path, tmp_path, shape) == ["ReduceMean"]


def test_gates_are_written_as_ramps(tmp_path):
    nodes = [
        helper.make_node("HardSwish", ["x"], ["a"], name="swish"),
        helper.make_node("HardSigmoid", ["a"], ["b"], alpha=1 / 6),
        helper.make_node("HardSigmoid", ["b"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    kinds = converted(write(tmp_path / "in.onnx", nodes), tmp_path, (2, 3, 5, 7))
    ramp = ["Mul", "Add", "Clip"]
    assert kinds == [*ramp, "Mul", *ramp, *ramp, "Relu"]


@pytest.mark.parametrize("gate", ["HardSigmoid", "HardSwish"])
@pytest.mark.parametrize("bias", [None, "", "bias"])
def test_convolution_before_a_gate_has_a_bias_of_its_own_width(tmp_path, gate, bias):
    """DeepSparse takes the scalar of the Add for the bias and refuses to compile."""
    rng = np.random.default_rng(1)
    given = [] if bias is None else [bias]
    nodes = [
        helper.make_node("Conv", ["x", "weight", *given], ["a"], kernel_shape=[1, 1]),
        helper.make_node(gate, ["a"], ["y"]),
    ]
    constants = [("weight", rng.standard_normal((6, 3, 1, 1)).astype(np.float32))]
    if bias:
        constants.append((bias, rng.standard_normal(6).astype(np.float32)))
    path = write(tmp_path / "in.onnx", nodes, constants=constants)
    converted(path, tmp_path, (2, 3, 5, 7))
    graph = onnx.load(tmp_path / "out.onnx").graph
    dims = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    assert dims[graph.node[0].input[2]] == [6]


@pytest.mark.parametrize("transposed", [0, 1])
def test_matrix_product_before_a_gate_has_a_bias_of_its_own_width(tmp_path, transposed):
    weight = np.random.default_rng(1).standard_normal((7, 6)).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "weight"], ["a"], transB=transposed),
        helper.make_node("HardSigmoid", ["a"], ["y"]),
    ]
    weight = np.ascontiguousarray(weight.T) if transposed else weight
    path = write(tmp_path / "in.onnx", nodes, x=("batch", 7), constants=[("weight", weight)])
    converted(path, tmp_path, (2, 7))
    graph = onnx.load(tmp_path / "out.onnx").graph
    dims = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    assert dims[graph.node[0].input[2]] == [6]


def test_weight_that_is_computed_is_left_alone(tmp_path):
    nodes = [
        helper.make_node("Relu", ["raw"], ["weight"]),
        helper.make_node("Conv", ["x", "weight"], ["y"], kernel_shape=[1, 1]),
    ]
    raw = np.random.default_rng(1).standard_normal((6, 3, 1, 1)).astype(np.float32)
    path = write(tmp_path / "in.onnx", nodes, constants=[("raw", raw)])
    assert converted(path, tmp_path, (2, 3, 5, 7)) == ["Relu", "Conv"]
    assert len(onnx.load(tmp_path / "out.onnx").graph.node[1].input) == 2


def test_what_is_rewritten_is_named(tmp_path):
    nodes = [
        helper.make_node("HardSwish", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("HardSwish", ["b"], ["c"]),
        helper.make_node("HardSigmoid", ["c"], ["y"]),
    ]
    path = write(tmp_path / "in.onnx", nodes)
    assert deepsparse_file(path, tmp_path / "out.onnx") == "rewritten: 1 HardSigmoid, 2 HardSwish"
    plain = write(tmp_path / "plain.onnx", [helper.make_node("Relu", ["x"], ["y"])])
    assert deepsparse_file(plain, tmp_path / "out.onnx") == "as it is"


def test_model_that_cannot_be_made_old_enough_is_refused_with_the_remedy(tmp_path):
    node = helper.make_node("Gelu", ["x"], ["y"])
    path = write(tmp_path / "in.onnx", [node], opset=20)
    with pytest.raises(UnsupportedModelError, match="export with --opset 17"):
        deepsparse_file(path, tmp_path / "out.onnx")
