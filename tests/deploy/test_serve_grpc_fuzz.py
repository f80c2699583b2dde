"""Malformed gRPC messages: never an internal error, and memory does not grow."""

import random

import numpy as np
import pytest

from .._waiting import PATIENCE
from ._serving import Server, gain_model, requires_serving, save
from .test_serve_fuzz import resident

requires_serving()
grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[grpc]'")

from fanin.deploy.serve import ModelSource, ServeSettings  # noqa: E402
from fanin.deploy.serve.grpc_api import messages  # noqa: E402
from fanin.deploy.serve.grpc_api.wire import length_field  # noqa: E402

from ._grpc import SERVICE, GrpcServing, code_of  # noqa: E402

X = np.arange(8, dtype=np.float32).reshape(2, 4)
SIZES = [-1, 0, 1, 2, 4, -(2**63), 2**31, 2**40, 2**62, 2**63 - 1]
# What a client has to answer for; never INTERNAL, UNKNOWN or UNAVAILABLE.
EXPECTED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "OUT_OF_RANGE"}
METHODS = [
    *("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex"),
    *("RepositoryModelLoad", "/grpc.health.v1.Health/Check"),
]


def valid(rng):
    """A valid request, raw or typed, whose description may then be spoilt."""
    request = messages.MESSAGES["ModelInferRequest"](model_name="m", id=rng.choice(["", "7"]))
    entry = request.inputs.add(name="x", datatype="FP32", shape=[2, 4])
    if rng.random() < 0.5:
        request.raw_input_contents.append(X.tobytes())
    else:
        entry.contents.fp32_contents.extend(X.ravel().tolist())
    return request


def spoil(rng, request):
    """Change one thing in a valid request."""
    entry = request.inputs[0]
    kind = rng.randrange(9)
    if kind == 0:
        entry.shape[rng.randrange(2)] = rng.choice(SIZES)
    elif kind == 1:
        entry.shape.extend(rng.choices(SIZES, k=rng.randrange(1, 60)))
    elif kind == 2:
        entry.datatype = rng.choice(["", "FP64", "BYTES", "FP32\0", "é", "BF16"])
    elif kind == 3:
        sizes = (0, 1, 31, 33, 64)
        request.raw_input_contents.extend(rng.randbytes(rng.choice(sizes)) for _ in range(2))
    elif kind == 4 and request.raw_input_contents:
        request.raw_input_contents[0] = X.tobytes()[: rng.randrange(32)]
    elif kind == 5:
        entry.contents.bytes_contents.extend([b"\xff", b""])
        entry.contents.int_contents.extend([rng.randrange(-(2**31), 2**31)])
    elif kind == 6:
        name = rng.choice(["sequence_id", "binary_data_output", "timeout", "shared_memory_region"])
        request.parameters[name].int64_param = rng.choice(SIZES)
        entry.parameters[name].string_param = "x"
    elif kind == 7:
        request.outputs.add(name=rng.choice(["y", "z", "", "é" * 2000]))
        request.outputs.add(name="y")
    else:
        request.model_version = rng.choice(["1", "2", "-1", "../1", "9" * 5000])
        request.model_name = rng.choice(["m", "n", "", "../m", "m" * 5000])
    return request


def case(rng):
    """A method and the bytes of a message."""
    method = "ModelInfer" if rng.random() < 0.9 else rng.choice(METHODS)
    kind = rng.randrange(6)
    if kind == 0:
        return method, rng.randbytes(rng.choice([0, 1, 2, 5, 50, 5000]))
    request = valid(rng)
    if kind <= 3:
        return method, spoil(rng, request).SerializeToString()
    body = bytearray(request.SerializeToString())
    if kind == 4:
        del body[rng.randrange(len(body)) :]
    for _ in range(rng.randrange(1, 4) if body else 0):
        body[rng.randrange(len(body))] = rng.randrange(256)
    if rng.random() < 0.2:  # a field that announces more than there is, or far too much
        body += length_field(rng.randrange(1, 9), rng.choice([1, 1000, 2**31, 2**63]))
    return method, bytes(body)


def test_2000_spoilt_messages_are_answered_with_the_clients_errors(tmp_path):
    rng = random.Random(0)
    source = ModelSource("m", save(gain_model(3), tmp_path / "m.onnx"))
    server = GrpcServing(ServeSettings((source,), poll=0, threads=1, trial_timeout=0))
    try:
        codes = []
        with grpc.insecure_channel(server.address) as channel:
            for _ in range(2000):
                method, body = case(rng)
                path = method if method.startswith("/") else f"{SERVICE}/{method}"
                code, text = code_of(channel.unary_unary(path), body, timeout=PATIENCE)
                assert code in EXPECTED, (method, body, code, text)
                assert (code == "OK") == (text == "")
                codes.append(code)
        assert codes.count("OK") > 100  # or this would test only the first check
        assert codes.count("INVALID_ARGUMENT") > 800
        assert codes.count("NOT_FOUND") > 20
        response = server.call("ModelInfer", valid(rng).SerializeToString())
        assert messages.MESSAGES["ModelInferResponse"].FromString(response).outputs[0].name == "y"
        assert server.state.budget.held == 0
        assert server.metric("fanin_in_flight_requests") == 0
    finally:
        server.close()


@pytest.mark.slow
def test_5000_requests_leave_the_server_as_it_was(tmp_path):
    rng = random.Random(0)
    model = save(gain_model(3), tmp_path / "m.onnx")
    options = ("--threads", 1, "--grpc-port", 0, "--poll", 0)
    with Server(f"m={model}", *options, log=tmp_path / "log") as server:
        address = server.events("serving")[0]["grpc"]
        with grpc.insecure_channel(address) as channel:
            infer = channel.unary_unary(f"{SERVICE}/ModelInfer")

            def ask(count):
                for number in range(count):
                    spoilt = number % 5 == 4
                    body = (case(rng)[1]) if spoilt else valid(rng).SerializeToString()
                    assert code_of(infer, body, timeout=PATIENCE)[0] in EXPECTED

            ask(1500)
            before = resident(server.process.pid)
            ask(5000)
            assert resident(server.process.pid) < before * 1.02 + 1024
        assert server.events("request") == []
    assert "Traceback" not in (tmp_path / "log").read_text()
