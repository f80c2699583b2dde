"""Raw binary requests: the shape follows from the number of bytes, or they are refused."""

import json

import numpy as np
import pytest

from fanin.deploy.serve.errors import RequestError
from fanin.deploy.serve.protocol import decode
from fanin.deploy.serve.signature import Signature, TensorSpec

from ._serving import HEADER, json_body, post, requires_serving

Y, Z = TensorSpec("y", "FP32", ("n",)), TensorSpec("z", "INT64", (1,))


def read(shape, size, datatype="FP32", body=None, batched=False, min_dimension=1):
    model = Signature((TensorSpec("x", datatype, shape),), (Y, Z), batched)
    body = np.arange(size, dtype=np.uint8).tobytes() if body is None else body
    return decode(body, "0", model, 100, min_dimension)


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((2, 3), 24, (2, 3)),
        ((), 4, ()),
        ((1,), 4, (1,)),
        (("batch", 3), 24, (2, 3)),
        ((2, "length", 3), 48, (2, 2, 3)),
        ((2, None), 40, (2, 5)),
        ((0, 3), 0, (0, 3)),
    ],
)
def test_the_shape_follows_from_the_bytes(shape, size, expected):
    asked = read(shape, size)
    assert asked.inputs["x"].shape == expected
    assert asked.inputs["x"].tobytes() == np.arange(size, dtype=np.uint8).tobytes()
    assert asked.id is None
    assert asked.outputs == (("y", True), ("z", True))


def test_no_bytes_are_an_empty_tensor_where_those_are_taken():
    assert read(("batch", 3), 0, min_dimension=0).inputs["x"].shape == (0, 3)
    with pytest.raises(RequestError, match="has size 0 in dimension 0; the server takes 1 to 100"):
        read(("batch", 3), 0)


def test_a_batched_request_is_one_row_if_another_size_is_open():
    assert read(("batch", "length"), 20, batched=True).inputs["x"].shape == (1, 5)
    assert read(("batch", 5), 40, batched=True).inputs["x"].shape == (2, 5)


@pytest.mark.parametrize(
    ("shape", "size", "message"),
    [
        ((2, 3), 20, r"has 20 bytes, but input 'x', FP32 \[2, 3\], takes 24$"),
        (("batch", 3), 20, r"has 20 bytes, but input 'x', FP32 \[batch, 3\], takes a multiple of"),
        (
            ("batch", None),
            24,
            r"does not determine the shape of input 'x', FP32 \[batch, \?\]: describe",
        ),
        (("batch", 0), 0, "does not determine the shape of input 'x'"),
        (("batch", 3), 12 * 101, "has size 101 in dimension 0; the server takes 1 to 100"),
    ],
)
def test_bytes_that_do_not_determine_the_shape_are_refused(shape, size, message):
    with pytest.raises(RequestError, match=message) as caught:
        read(shape, size)
    assert caught.value.status == 400
    assert "JSON:" not in str(caught.value)


def test_a_model_with_two_inputs_is_refused_by_name():
    model = Signature((Y, Z), (Y,))
    with pytest.raises(RequestError, match=r"models with one input, but this one has 2 \(y, z\)"):
        decode(b"1234", "0", model, 100)


@pytest.mark.parametrize("shape", [(1,), (), (1, 1), ("batch",), ("batch", 1)])
def test_a_string_is_the_whole_body(shape):
    array = read(shape, 0, "BYTES", "né\0".encode()).inputs["x"]
    assert array.shape == (1,) * len(shape)
    assert array.ravel().tolist() == ["né\0"]


def test_several_strings_and_other_encodings_are_refused():
    with pytest.raises(RequestError, match="does not determine the shape"):
        read((2,), 0, "BYTES", b"ab")
    with pytest.raises(RequestError, match="is not UTF-8"):
        read((1,), 0, "BYTES", b"\xff")


def test_a_bool_is_the_byte_0_or_1():
    assert read((2,), 0, "BOOL", b"\1\0").inputs["x"].tolist() == [True, False]
    with pytest.raises(RequestError, match="a BOOL is the byte 0 or 1"):
        read((2,), 0, "BOOL", b"\1\2")


def test_the_server_answers_a_raw_request_with_binary_outputs(serving):
    requires_serving()
    app = serving()
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    answer = post(app, "/v2/models/m/infer", x.tobytes(), {HEADER: "0"})
    assert answer.status == 200
    assert answer.array().tobytes() == (3 * x).tobytes()
    head = json.loads(answer.body[: int(answer.headers[HEADER.lower()])])
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 32}
    assert "id" not in head
    answer = post(app, "/v2/models/m/infer", json_body(x), {HEADER: "0"})
    assert answer.status == 400
    assert "a raw binary request (Inference-Header-Content-Length: 0)" in answer.error
