"""Shapes: the server takes what the session itself takes, within its limits."""

import asyncio
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fanin.deploy import open_session
from fanin.deploy.serve.errors import RequestError
from fanin.deploy.serve.signature import Signature, TensorSpec

from ._serving import (
    INFER,
    Server,
    X,
    ask,
    binary_body,
    gain_model,
    json_body,
    post,
    requires_serving,
    save,
)

requires_serving()


def model(op, x, y, out, **attributes):
    """A model of one node with inputs x and optionally y."""
    names = ["x"] if y is None else ["x", "y"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(names, (x, y), strict=False)
    ]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, out)]
    nodes = [helper.make_node(op, names, ["out"], **attributes)]
    graph = helper.make_graph(nodes, "test", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def body(**arrays):
    entries = [json.loads(json_body(array, name))["inputs"][0] for name, array in arrays.items()]
    return json.dumps({"inputs": entries}).encode()


def ones(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 3), (0,)])
def test_empty_tensors_are_served_if_enabled(serving, tmp_path, shape):
    app = serving(model("Relu", ["n"] * len(shape), None, None), min_dimension=0)
    x = np.zeros(shape, np.float32)
    (expected,) = open_session(tmp_path / "m.onnx").run(None, {"x": x})
    for request, headers in ((json_body(x), {}), binary_body(x)):
        answer = post(app, INFER, request, headers)
        assert answer.status == 200, answer.body
        assert answer.array("out").shape == expected.shape == shape


def test_empty_condensed_layers_are_served(serving, save_condensed):
    app = serving(onnx.load(save_condensed("net.onnx")), min_dimension=0)
    answer = post(app, INFER, json_body(X[:0], name="X"))
    assert (answer.status, answer.array("Y").shape) == (200, (0, 4))


def test_empty_tensors_are_refused_by_default_even_if_the_runtime_would_crash(serving):
    """ONNX Runtime 1.32 aborts in LSTM when the batch is empty."""
    rng = np.random.default_rng(0)
    weights = {"w": (1, 20, 4), "r": (1, 20, 5)}
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=5)],
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["length", "batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(rng.random(shape, np.float32), name)
            for name, shape in weights.items()
        ],
    )
    opsets = [helper.make_opsetid("", 20)]
    app = serving(helper.make_model(graph, opset_imports=opsets, ir_version=9))
    answer = post(app, INFER, json_body(ones(3, 0, 4)))
    assert answer.status == 400
    assert "has size 0 in dimension 1; the server takes 1 to 4096" in answer.error
    assert post(app, INFER, json_body(ones(3, 1, 4))).status == 200


def test_sizes_of_one_symbol_may_differ_as_they_may_for_the_session(serving, tmp_path):
    app = serving(model("Concat", ["n", 2], ["n", 2], ["m", 2], axis=0))
    arrays = {"x": ones(3, 2), "y": 2 * ones(5, 2)}
    (expected,) = open_session(tmp_path / "m.onnx").run(None, arrays)
    answer = post(app, INFER, body(**arrays))
    assert answer.array("out").tolist() == expected.tolist()


def test_sizes_of_one_symbol_that_the_session_refuses_are_the_clients_error(serving):
    app = serving(model("Add", ["n", 2], ["n", 2], ["n", 2]))
    answer = post(app, INFER, body(x=ones(3, 2), y=ones(5, 2)))
    assert answer.status == 400
    assert "the model refuses these inputs" in answer.error


def test_with_batching_all_inputs_have_the_same_number_of_rows(serving):
    app = serving(model("Add", ["n", 2], ["n", 2], ["n", 2]), max_batch=8)
    answer = post(app, INFER, body(x=ones(3, 2), y=ones(1, 2)))
    assert answer.status == 400
    assert "the inputs differ in their number of rows ('x' has 3, 'y' has 1)" in answer.error


def test_empty_requests_take_part_in_batches(serving):
    app = serving(max_batch=16, batch_delay=0.05, min_dimension=0)
    inputs = [np.full((rows, 4), rows, np.float32) for rows in (0, 2, 0, 1)]

    async def together():
        return await asyncio.gather(*(ask(app, "POST", INFER, json_body(x)) for x in inputs))

    for x, answer in zip(inputs, asyncio.run(together()), strict=True):
        assert answer.array().shape == x.shape
        assert (answer.array() == 3 * x).all()


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 0, 3)])
def test_an_input_without_a_stated_shape_takes_any(serving, tmp_path, shape):
    app = serving(model("Relu", None, None, None), min_dimension=0)
    x = np.full(shape, -1, np.float32)
    assert open_session(tmp_path / "m.onnx").run(None, {"x": x})[0].shape == shape
    answer = post(app, INFER, json_body(x.reshape(shape)) if shape else scalar(-1.0))
    assert answer.status == 200, answer.body
    assert answer.array("out").shape == shape


def scalar(value):
    entry = {"name": "x", "shape": [], "datatype": "FP32", "data": [value]}
    return json.dumps({"inputs": [entry]}).encode()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([4096] * 6 + [0], "which is too large"),
        ([1] * 33, "has 33 dimensions; the server takes up to 32"),
        ([1] * 1000, "has 1000 dimensions"),
        ([4097], "the server takes 0 to 4096"),
        ([-1], "the server takes 0 to 4096"),
        ([0] * 32, None),
    ],
)
def test_shapes_that_no_array_can_have_are_refused(serving, shape, message):
    app = serving(model("Relu", None, None, None), min_dimension=0)
    entry = {"name": "x", "shape": shape, "datatype": "FP32", "data": []}
    answer = post(app, INFER, json.dumps({"inputs": [entry]}).encode())
    if message is None:
        assert answer.status in (200, 400)  # decided by the runtime
    else:
        assert (answer.status, message in answer.error) == (400, True), answer.body


def test_a_size_fixed_at_0_is_accepted():
    signature = Signature((TensorSpec("x", "FP32", (0, 3)),), ())
    signature.check_shapes({"x": (0, 3)}, 100)
    with pytest.raises(RequestError, match="has size 1 in dimension 0, but the model takes 0"):
        signature.check_shapes({"x": (1, 3)}, 100)


def test_an_empty_request_does_not_change_the_time_estimate(serving):
    app = serving(min_dimension=0)
    scheduler = app.state.fanin.repository.find("m").scheduler
    post(app, INFER, json_body(X))
    before = (scheduler._seconds_per_element, scheduler._min_seconds)
    post(app, INFER, json_body(X[:0]))
    assert (scheduler._seconds_per_element, scheduler._min_seconds) == before


def test_triton_s_client_sends_and_reads_empty_tensors(tmp_path):
    triton = pytest.importorskip("tritonclient.http", reason="pip install tritonclient[http]")
    path = save(gain_model(3), tmp_path / "m.onnx")
    options = ("--threads", 1, "--min-dimension", 0)
    with Server(path, *options, log=tmp_path / "server.log") as server:
        client = triton.InferenceServerClient(server.address)
        for binary in (False, True):
            for x in (X[:0], X):
                entry = triton.InferInput("x", list(x.shape), "FP32")
                entry.set_data_from_numpy(x, binary_data=binary)
                wanted = [triton.InferRequestedOutput("y", binary_data=binary)]
                answer = client.infer(
                    "m",
                    [entry],
                    outputs=wanted,
                    priority=2,
                    timeout=1_000_000,
                    parameters={"tenant": "a"},
                )
                got = answer.as_numpy("y")
                assert got.shape == x.shape
                assert (got == 3 * x).all()
        client.close()
